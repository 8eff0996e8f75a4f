"""A run that leaves the finite numbers."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from train_helpers import AtStep, equal, final, rows, small, status

from mpelu.lab import cli
from mpelu.lab.run import checkpoint
from mpelu.lab.training import network
from mpelu.lab.training.display import Display, Progress
from mpelu.lab.training.launch import resume, train
from mpelu.lab.training.process import World


@pytest.mark.parametrize("lr", [1e3, 1e9])
def test_divergence_names_step_module_and_quantity(tmp_path: Path, lr: float) -> None:
    run = tmp_path / "run"
    config = small(
        activation="relu", model="nopre-nobn-resnet-11", lr=lr, checkpoint_every=1, epochs=20
    )
    outcome = train(config, run)
    assert (outcome.state, outcome.exit_code) == ("diverged", 1)
    told = status(run)
    where = told["diverged"]
    assert told["state"] == "diverged"
    assert where["step"] == outcome.step + 1
    assert where["quantity"] in ("activation", "loss", "gradient")
    names = dict(network.build(config, 10, 1, 8).named_modules())
    assert where["module"] in names
    assert outcome.message.startswith(f"diverged at step {where['step']}: the {where['quantity']}")
    # Whatever is kept is from before, and finite.
    assert checkpoint.steps_of(run)[-1] == outcome.step
    assert not (run / "model.safetensors").exists()


def poison(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Puts infinity into a layer in the middle, from a step on."""
    forward = torch.nn.Conv2d.forward
    calls = {"steps": 0}

    def poisoned(self: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
        output = forward(self, images)
        if self.training and torch.is_grad_enabled() and self.in_channels == 1:
            calls["steps"] += 1
        if calls["steps"] >= step and self.training and tuple(self.weight.shape[:2]) == (8, 4):
            output = output * math.inf
        return output

    monkeypatch.setattr(torch.nn.Conv2d, "forward", poisoned)


def test_the_first_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, step=3)
    outcome = train(small(), tmp_path / "run")
    expected = "diverged at step 3: the activation of blocks.1.branch.0 isn't finite"
    assert outcome.message == expected
    assert outcome.step == 2


def poison_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the gradient of a layer in the middle NaN."""

    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(
            context: torch.autograd.function.FunctionCtx, images: torch.Tensor
        ) -> torch.Tensor:
            return images.clone()

        @staticmethod
        def backward(
            context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
        ) -> torch.Tensor:
            return gradient * math.nan

    forward = torch.nn.Conv2d.forward

    def poisoned(self: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
        output = forward(self, images)
        if tuple(self.weight.shape[:2]) == (8, 4):
            output = Poison.apply(output)  # type: ignore[no-untyped-call]
        return output

    monkeypatch.setattr(torch.nn.Conv2d, "forward", poisoned)


def test_a_gradient_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_gradient(monkeypatch)
    outcome = train(small(), tmp_path / "run")
    expected = "diverged at step 1: the gradient of blocks.1.branch.0 isn't finite"
    assert outcome.message == expected


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the CPU be taken for a device whose values can't be read without waiting, as a GPU."""
    monkeypatch.setattr(World, "reads_freely", property(lambda world: False))


class Readings(TorchDispatchMode):
    """Counts how often a tensor's values are read into Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        for name in ("tolist", "numpy", "cpu"):  # these read a CPU tensor without an operation
            monkeypatch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return method(*args, **kwargs)

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        data_dependent = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        self.count += func.overloadpacket in (*data_dependent, torch.ops.aten.is_nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("more", [{}, {"clip_norm": 1.0, "ema": 0.9, "accumulate": 2}])
def test_a_step_waits_for_the_device_only_where_it_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: None, more: dict[str, Any]
) -> None:
    readings = Readings(monkeypatch)
    counts: list[int] = []

    class Counting(Display):
        def step(self, progress: Progress) -> None:
            counts.append(readings.count)
            readings.count = 0

    config = small(epochs=None, iterations=13, batch_size=6, log_every=4, **more)
    with readings:
        train(config, tmp_path / "run", display=Counting())
    assert counts[0] > 0  # data, network and the first snapshot
    assert [step for step, count in enumerate(counts, 1) if count and step > 1] == [4, 8, 12, 13]


def test_what_is_read_late_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: None
) -> None:
    config = small(test_every=2, checkpoint_every=7)
    train(config, tmp_path / "late")
    monkeypatch.undo()
    train(config, tmp_path / "at-once")
    assert equal(final(tmp_path / "late"), final(tmp_path / "at-once"))


@pytest.mark.parametrize(
    ("log_every", "what"),
    [(3, "the activation of blocks.1.branch.0"), (4, "the loss"), (50, "the loss")],
)
def test_a_divergence_that_is_noticed_late_has_the_number_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: None, log_every: int, what: str
) -> None:
    poison(monkeypatch, step=3)
    run = tmp_path / "run"
    outcome = train(small(log_every=log_every, checkpoint_every=2), run)
    assert outcome.message == f"diverged at step 3: {what} isn't finite"
    assert outcome.step == status(run)["step"] == 2
    assert status(run)["diverged"]["step"] == 3
    assert checkpoint.steps_of(run) == [2]
    assert all(row["step"] < 3 for row in rows(run))


def test_a_gradient_that_is_noticed_late_has_the_name_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: None
) -> None:
    poison_gradient(monkeypatch)
    outcome = train(small(), tmp_path / "run")
    expected = "diverged at step 1: the gradient of blocks.1.branch.0 isn't finite"
    assert (outcome.message, outcome.step) == (expected, 0)


def test_a_signal_is_not_kept_waiting(tmp_path: Path, waiting: None) -> None:
    interrupting = AtStep(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome = train(small(log_every=50), tmp_path / "run", display=interrupting)
    assert (outcome.state, outcome.step) == ("interrupted", 6)
    assert resume(tmp_path / "run").state == "finished"
    train(small(log_every=50), tmp_path / "whole")
    assert equal(final(tmp_path / "run"), final(tmp_path / "whole"))


def test_the_command_ends_with_1_and_so_does_its_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    settings = ["--model", "nopre-nobn-resnet-11", "--activation", "relu", "--lr", "1e9"]
    settings += ["--train-limit", "96", "--test-limit", "32", "--batch-size", "32"]
    assert cli.main(["train", *settings, "--threads", "1", "--out", run]) == 1
    assert "diverged at step" in capsys.readouterr().out
    assert cli.main(["train", "--resume", run]) == 1
    assert "has already ended: diverged at step" in capsys.readouterr().out
    assert cli.main(["train", "--resume", run, "--quiet"]) == 1
    assert capsys.readouterr().err.startswith("diverged at step")
