"""Several processes on one machine give what one gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from train_helpers import final, rows, small, status

from mpelu.lab.run import checkpoint
from mpelu.lab.run.folder import lock
from mpelu.lab.training.launch import resume, train

NO_NORM = small(
    model="plain-15",
    model_options={"width": 2, "fc_width": 8, "batch_norm": False},
    image_size=20,
    crop=19,
    augment="crop-flip",
    init="msra",
    lr=0.02,
    train_limit=168,
    validation=34 / 168,
    test_limit=31,
    batch_size=19,
    accumulate=2,
)
"""Batches of 19 samples, cut to 10 and 9, and one of a single sample in each of three epochs; the
34 images for validation are those of one process."""

STOCHASTIC = small(model="stochastic-resnet-8", epochs=2)

SCRIPT = """
import json, os, signal, sys
from collections import Counter
from pathlib import Path
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
torch.set_num_threads(1)
from mpelu.lab.errors import UserError
from mpelu.lab.config import Config
from mpelu.lab.training.display import Display, Lines
from mpelu.lab.training.process import World
from mpelu.lab.training.launch import resume, train

folder = Path(sys.argv[1])
no_norm, stochastic = (Config.from_json(text) for text in sys.argv[2:])
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
train(no_norm, folder / "two", display=Lines())
train(stochastic, folder / "whole")

def train_with_signal(config, run):
    '''The process that shows nothing gets a signal in its step 6.'''
    steps = Counter()
    def signalling(optimizer, *_):
        steps[optimizer] += 1
        if steps[optimizer] == 6 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
    hook = register_optimizer_step_post_hook(signalling)
    outcome = train(config, run)
    hook.remove()
    return outcome
stopped = train_with_signal(stochastic, folder / "broken")
resumed = resume(folder / "broken")

# The CPU taken for a device whose values can't be read without waiting, as a GPU.
World.reads_freely = property(lambda world: False)
reduce, reductions = torch.distributed.all_reduce, []
def counted(*args):
    reductions[-1] += 1
    reduce(*args)
torch.distributed.all_reduce = counted
class Counting(Display):
    def step(self, progress):
        reductions.append(0)
reductions.append(0)
train(stochastic, folder / "late", display=Counting() if rank == 0 else None)
stopped_late = train_with_signal(stochastic, folder / "stopped-late")

try:
    resume(folder / "held")
except UserError as error:
    refused = str(error)
report = {"exit": stopped.exit_code, "step": stopped.step, "refused": refused}
report["late"] = [stopped_late.exit_code, stopped_late.step]
report["reductions"] = reductions
report["errors"] = [resumed.test_error, resumed.best_error]
(folder / f"report-{rank}.json").write_text(json.dumps(report))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes that torchrun started did all that the tests look at."""
    folder = tmp_path_factory.mktemp("distributed")
    (folder / "script.py").write_text(SCRIPT)
    train(small(epochs=1), folder / "held")
    configs = [json.dumps(asdict(config)) for config in (NO_NORM, STOCHASTIC)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with lock(folder / "held"):
        done = subprocess.run(
            [*torchrun, str(folder / "script.py"), str(folder), *configs],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr
    (folder / "output").write_text(done.stdout)
    return folder


def test_two_processes_and_one_give_the_same(folder: Path) -> None:
    train(NO_NORM, folder / "one")
    one, two = (load_file(folder / run / "model.safetensors") for run in ("one", "two"))
    assert set(one) == set(two)
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)
    for first, second in zip(rows(folder / "one"), rows(folder / "two"), strict=True):
        assert first.pop("kind") == second.pop("kind")
        assert second == pytest.approx(first, rel=1e-4)


def test_one_process_writes_and_prints(folder: Path) -> None:
    assert (folder / "output").read_text().count("finished after 24 steps") == 1
    environment = json.loads((folder / "two" / "environment.json").read_text())
    assert environment["processes"] == 2


def test_a_signal_to_one_stops_both_and_they_go_on_to_the_same_end(folder: Path) -> None:
    reports = [json.loads((folder / f"report-{rank}.json").read_text()) for rank in (0, 1)]
    assert [(report["exit"], report["step"]) for report in reports] == [(143, 7)] * 2
    assert reports[0]["errors"] == reports[1]["errors"]
    whole, broken = final(folder / "whole"), final(folder / "broken")
    assert whole["metrics.jsonl"] == broken["metrics.jsonl"]
    assert whole["model.safetensors"] == broken["model.safetensors"]


def test_processes_exchange_losses_and_signals_only_where_a_gpu_is_read(folder: Path) -> None:
    reports = [json.loads((folder / f"report-{rank}.json").read_text()) for rank in (0, 1)]
    by_step = enumerate(reports[0]["reductions"][:10], 1)  # a test's is with the step after it
    assert [step for step, count in by_step if count] == [4, 5, 6, 8, 10]
    whole, late = final(folder / "whole"), final(folder / "late")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert whole[name] == late[name]
    assert [report["late"] for report in reports] == [[143, 8]] * 2


def test_what_the_main_process_refuses_ends_all(folder: Path) -> None:
    for rank in (0, 1):
        report = json.loads((folder / f"report-{rank}.json").read_text())
        assert f"held: in use by process {os.getpid()} on" in report["refused"]


def test_a_run_of_two_goes_on_as_one(folder: Path) -> None:
    (folder / "two" / "status.json").unlink()
    assert checkpoint.steps_of(folder / "two")[-1] == 24
    assert resume(folder / "two").step == 24
    assert status(folder / "two")["state"] == "finished"
