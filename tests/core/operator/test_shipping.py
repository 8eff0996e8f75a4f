"""The snippets of docs/shipping.md, run."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import mpelu

PAGE = Path(__file__).parents[3] / "docs" / "shipping.md"


@pytest.mark.filterwarnings("ignore")  # torch's exporters have many
def test_snippets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnxruntime", "onnxscript", "safetensors"):
        pytest.importorskip(package)
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("torch.compile found no C++ compiler")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 25
    assert result.failed == 0


def scripts() -> dict[str, str]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return {block.split()[1]: block for block in blocks if re.match(r"# \w+\.py\n", block)}


def alphas(name: str, folder: Path) -> list[float]:
    """What two processes of a script say their alphas have come to."""
    path = folder / name
    path.write_text(scripts()[name], encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=120) for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [float(output.split()[-1]) for output, _ in said]


@pytest.mark.parametrize("name", ["train_ddp.py", "train_fsdp.py"])
def test_two_processes_learn_what_one_does(name: str, tmp_path: Path) -> None:
    assert set(scripts()) == {"train_ddp.py", "train_fsdp.py"}
    found = alphas(name, tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    mpelu.convert(model, torch.zeros(2, 8))
    optimizer = torch.optim.SGD(mpelu.param_groups(model, lr=0.1), momentum=0.9)
    batch = torch.randn(8, 8)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    assert isinstance(model[1], mpelu.MPELU)
    expected = model[1].alpha.sum().item()
    assert abs(expected - 16) > 0.01
    assert found == pytest.approx([expected] * 2, abs=1e-4)
