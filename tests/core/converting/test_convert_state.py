"""Converted models without example inputs, and state_dicts that travel."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from convert_models import Bottleneck, ChannelsLast, ResNet, Untraceable
from torch import nn
from torch.testing import assert_close

import mpelu
from mpelu import MPELU
from mpelu.activations.parametric import PELU
from mpelu.converting import MPELUByWidth, PendingMPELU


def trained(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """Converted with inputs, with alphas and betas of their own."""
    mpelu.convert(model, x)
    with torch.no_grad():
        for each in mpelu.activations.learnable_parameters(model):
            each.parameter.uniform_(0.5, 1.5)
    return model.eval()


CASES: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "several widths": (ResNet, (2, 3, 8, 8)),
    "one width": (lambda: Bottleneck(8, 8), (2, 8, 4, 4)),  # type: ignore[dict-item]
    "permuted": (ChannelsLast, (2, 8, 8, 8)),
    "untraceable tokens": (Untraceable, (2, 7, 6)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_state_dict_loads_into_a_model_converted_without_inputs(case: str) -> None:
    make, shape = CASES[case]
    x = torch.randn(shape)
    model = trained(make(), x)
    fresh = make().eval()
    assert all(row.note for row in mpelu.convert(fresh).rows)
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert_close(fresh(x), model(x), rtol=0, atol=0)
    # Without inputs nothing tells whether the model counts on an activation in place.
    assert str(fresh).replace(", inplace=True", "") == str(model)
    assert list(fresh.state_dict()) == list(model.state_dict())
    assert not any(isinstance(each, PendingMPELU) for each in fresh.modules())


def test_in_another_process(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    model = trained(ResNet(), x)
    torch.save({"state": model.state_dict(), "x": x, "y": model(x)}, tmp_path / "saved.pt")
    code = (
        "import sys, torch, mpelu\n"
        "from convert_models import ResNet\n"
        "saved = torch.load(sys.argv[1], weights_only=True)\n"
        "model = ResNet().eval()\n"
        "mpelu.convert(model)\n"
        "model.load_state_dict(saved['state'])\n"
        "assert torch.equal(model(saved['x']), saved['y'])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "saved.pt")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2] / "helpers")


@pytest.mark.parametrize("case", ["several widths", "one width", "permuted"])
def test_the_first_batch_makes_the_same_model_as_inputs(case: str) -> None:
    make, shape = CASES[case]
    x = torch.randn(shape)
    given, waiting = make().eval(), make().eval()
    mpelu.convert(given, x, alpha=0.25)
    mpelu.convert(waiting, alpha=0.25)
    waiting(x)
    assert str(waiting).replace(", inplace=True", "") == str(given)
    assert list(waiting.state_dict()) == list(given.state_dict())
    waiting.load_state_dict(given.state_dict())
    assert_close(waiting(x), given(x))


def test_widths_are_complete_after_the_first_batch() -> None:
    mpelu.convert(model := ResNet())
    model(torch.randn(2, 3, 8, 8))
    block: Any = model.layer1[0]
    assert type(block.relu) is MPELUByWidth
    assert list(block.relu.widths) == ["8", "16"]
    with pytest.raises(ValueError, match="expected 8 or 16 channels"):
        block.relu(torch.randn(2, 4, 3, 3))


def test_tokens_without_inputs_need_a_dimension() -> None:
    mpelu.convert(model := Untraceable())
    with pytest.raises(ValueError, match="pass dim=1 or dim=-1"):
        model(torch.randn(2, 7, 6))
    mpelu.convert(model := Untraceable(), dim=-1)
    model(torch.randn(2, 7, 6))
    act: Any = model.act
    assert type(act) is MPELU
    assert (act.num_parameters, act.dim) == (24, -1)


def test_an_ambiguous_shape_is_refused_rather_than_guessed() -> None:
    model = trained(Untraceable(), torch.randn(2, 7, 6))
    mpelu.convert(fresh := Untraceable())
    fresh.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"got input of shape \[2, 24, 24\] .* which fit both"):
        fresh(torch.randn(2, 24, 6))
    assert_close(fresh(x := torch.randn(2, 7, 6)), model(x))


def test_frozen_models_stay_frozen_without_inputs() -> None:
    model = ResNet().requires_grad_(False)
    mpelu.convert(model)
    model(torch.randn(2, 3, 8, 8))
    assert not any(each.requires_grad for each in model.parameters())
    mpelu.convert(single := nn.Sequential(nn.Linear(4, 6), nn.ReLU()).requires_grad_(False))
    single(torch.randn(2, 4))
    assert not single[1].alpha.requires_grad


def test_the_original_checkpoint_loads_before_the_first_batch() -> None:
    original = ResNet().eval()
    conversion = mpelu.convert(model := ResNet().eval())
    found = conversion.load_state_dict(original.state_dict())
    assert found.new == [f"layer1.{i}.relu.{name}" for i in range(2) for name in ("alpha", "beta")]
    model(x := torch.randn(2, 3, 8, 8))
    mpelu.convert(original, x)
    assert_close(model(x), original(x))


def test_functions_are_kept_without_inputs() -> None:
    acts = [nn.ELU(1), nn.CELU(2), nn.PReLU(), nn.ReLU(), PELU(6, 2.0, 2.0)]
    layers = [layer for act in acts for layer in (nn.Linear(6, 6), act)]
    model = nn.Sequential(*layers)
    expected = model(x := torch.randn(32, 6))
    conversion = mpelu.convert(model, keep_function=True)
    assert [row.error for row in conversion.rows] == [0.0, 0.0, 0.0, 1e-6, 0.0]
    assert_close(model(x), expected, rtol=0, atol=1e-5)
    assert all(type(model[index]) is MPELU for index in range(1, 10, 2))


def test_copies_and_pickles() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = trained(ResNet(), x)
    assert_close(copy.deepcopy(model)(x), model(x))
    mpelu.convert(waiting := ResNet())
    copied = copy.deepcopy(waiting).eval()
    copied.load_state_dict(model.state_dict())
    assert_close(copied(x), model(x))


@pytest.mark.parametrize("start", [{"alpha": 1.0}, {"slope": 1.0}])
def test_parameters_in_the_other_coordinates_load_without_inputs(start: dict[str, Any]) -> None:
    x = torch.randn(3, 4)
    given: dict[str, Any] = {"alpha": 0.5} if "slope" in start else {"slope": 0.5}
    trained = nn.Sequential(nn.Linear(4, 6), MPELU(6, **given))
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    mpelu.convert(model, **start)
    model.load_state_dict(trained.state_dict())
    assert_close(model(x), trained(x))
