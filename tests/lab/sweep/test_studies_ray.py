"""Runs on a real Ray of two workers, one of which is killed in the middle."""

import importlib.util
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpelu.lab import cli
from mpelu.lab.config import Config
from mpelu.lab.sweep import executors
from mpelu.lab.sweep.executors import perform
from mpelu.lab.sweep.study import Job, Options

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray isn't installed: pip install '.[ray]'"
)

LONG = Config(
    model="resnet-8", model_options={"width": 2}, iterations=400, batch_size=16, train_limit=64,
    test_limit=32, test_every=100, log_every=1, checkpoint_every=20, threads=1,
)  # fmt: skip


def kill_once_it_has_a_checkpoint(run: Path, killed: list[int]) -> None:
    while not any((run / "checkpoints").glob("*")):
        time.sleep(0.02)
    pid = json.loads((run / "status.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_a_lost_worker_is_replaced_and_its_run_continues(tmp_path: Path) -> None:
    jobs = [
        Job(name=name, setting=name, config=replace(LONG, seed=seed), folder=str(tmp_path / name))
        for seed, name in enumerate(("killed", "other"))
    ]
    killed: list[int] = []
    killer = threading.Thread(
        target=kill_once_it_has_a_checkpoint, args=(tmp_path / "killed", killed), daemon=True
    )
    killer.start()
    ended = list(executors.ray(jobs, Options(executor="ray", jobs=2)))
    assert killed, "the run was over before it could be killed"
    assert {done.name: done.state for done in ended} == {"killed": "finished", "other": "finished"}
    status = json.loads((tmp_path / "killed" / "status.json").read_text())
    assert status["pid"] != killed[0]
    # The same folder as without Ray and without the loss.
    perform(Job(name="plain", setting="plain", config=LONG, folder=str(tmp_path / "plain")))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("killed", "plain")]
    assert metrics[0] == metrics[1]


def test_without_ray_one_line_tells_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = ["--scale", "smoke", "--executor", "ray", "--out", str(tmp_path), "--quiet"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["reproduce", "lsuv", *arguments])
    assert caught.value.code == 2
    assert (
        "executor: Ray isn't installed; install it in the directory of mpelu with: "
        "pip install '.[ray]'" in capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []
