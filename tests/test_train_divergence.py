"""A run that leaves the finite numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from train_helpers import small, status

from mpelu.lab import cli
from mpelu.lab.run import checkpoint
from mpelu.lab.training import network
from mpelu.lab.training.launch import train


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


def test_the_first_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinity put into a layer in the middle, at the third step."""
    forward = torch.nn.Conv2d.forward
    calls = {"steps": 0}

    def poisoned(self: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
        output = forward(self, images)
        if self.training and torch.is_grad_enabled() and self.in_channels == 1:
            calls["steps"] += 1
        if calls["steps"] == 3 and self.training and tuple(self.weight.shape[:2]) == (8, 4):
            output = output * math.inf
        return output

    monkeypatch.setattr(torch.nn.Conv2d, "forward", poisoned)
    outcome = train(small(), tmp_path / "run")
    expected = "diverged at step 3: the activation of blocks.1.branch.0 isn't finite"
    assert outcome.message == expected
    assert outcome.step == 2


def test_a_gradient_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    outcome = train(small(), tmp_path / "run")
    expected = "diverged at step 1: the gradient of blocks.1.branch.0 isn't finite"
    assert outcome.message == expected


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
