"""Several processes on one machine give what one gives."""

from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import load_file
from train_helpers import final, rows, small, start, status

from mpelu.lab.train import checkpoint
from mpelu.lab.train.engine import resume, train

TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
)  # fmt: skip

NO_NORM = {
    "model": "plain-15",
    "model_options": {"width": 2, "fc_width": 8, "batch_norm": False},
    "image_size": 20,
    "crop": 19,
    "augment": "crop-flip",
    "init": "msra",
    "lr": 0.02,
    "test_limit": 31,
}


def test_two_processes_and_one_give_the_same(tmp_path):
    """21 steps; in each epoch one batch of 19 samples, cut to 10 and 9, and one of a single one."""
    config = small(**NO_NORM, train_limit=39 + 5 * 19 + 1, batch_size=19, epochs=3, accumulate=2)
    process = start(tmp_path / "two", config, launcher=TORCHRUN)
    output, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert output.count("finished after 24 steps") == 1
    train(config, tmp_path / "one", quiet=True)
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("one", "two"))
    start_weights = load_file(tmp_path / "one" / "checkpoints" / "step-00000024.safetensors")
    assert set(one) == set(two) == set(start_weights)
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)
    for first, second in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        assert first.keys() == second.keys()
        for key in first:
            assert second[key] == pytest.approx(first[key], rel=1e-4), key


def test_two_processes_stop_together_and_go_on(tmp_path):
    """One of them gets a signal; batch norm and stochastic depth on the way."""
    config = small(model="stochastic-resnet-8", epochs=2)
    run = tmp_path / "run"
    setup = """
import os, signal
from mpelu.lab.train import loop
after = loop.Loop._after
def signalling(self, lr, stopping):
    if self.state.step == 6 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    after(self, lr, stopping)
loop.Loop._after = signalling
outcome_of = train
def train(*arguments):
    outcome = outcome_of(*arguments)
    assert (outcome.state, outcome.exit_code) == ("interrupted", 143), outcome
    return type("Done", (), {"exit_code": 0})
"""
    process = start(run, config, setup, launcher=TORCHRUN)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert (status(run)["state"], status(run)["step"]) == ("interrupted", 7)
    process = start(run, config, launcher=TORCHRUN)
    output, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert "going on after step 7" in output
    process = start(tmp_path / "whole", config, launcher=TORCHRUN)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    whole, broken = final(tmp_path / "whole"), final(run)
    assert whole["metrics.jsonl"] == broken["metrics.jsonl"]
    assert whole["model.safetensors"] == broken["model.safetensors"]


def test_a_run_of_two_goes_on_as_one(tmp_path):
    config = small(**NO_NORM, epochs=1)
    process = start(tmp_path / "run", config, launcher=TORCHRUN)
    process.communicate(timeout=300)
    (tmp_path / "run" / "status.json").unlink()
    assert checkpoint.steps_of(tmp_path / "run") == [5]
    assert resume(tmp_path / "run", quiet=True).step == 5


def test_bad_input_ends_all_processes_with_one_line(tmp_path):
    setup = """
from mpelu.lab.errors import UserError
outcome_of = train
def train(*arguments):
    try:
        return outcome_of(*arguments)
    except UserError as error:
        assert "expected a folder that is empty" in str(error)
        return type("Refused", (), {"exit_code": 0})
run_exists = Path.exists
Path.exists = lambda self: self.name != "run" and run_exists(self)
"""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    setup = setup.replace("Path.exists = lambda", "_ = lambda")
    process = start(tmp_path / "other", small(), setup.replace("sys.argv[1]", "x"), TORCHRUN)
    process.communicate(timeout=300)
