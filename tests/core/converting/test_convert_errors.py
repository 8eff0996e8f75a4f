"""convert refuses in one line, and an error leaves the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from convert_models import Functional, ResNet
from torch import Tensor, nn
from torch.nn import functional as F

import mpelu
from mpelu import MPELU, LazyMPELU


def structure(model: nn.Module) -> list[Any]:
    """Every module, attribute, parameter and hook by identity."""
    return [
        (
            path,
            id(module),
            sorted((key, id(value)) for key, value in vars(module).items()),
            [
                [(key, id(value)) for key, value in getattr(module, name).items()]
                for name in ("_modules", "_parameters", "_buffers", "_forward_hooks",
                             "_forward_pre_hooks")
            ],
        )
        for path, module in model.named_modules(remove_duplicate=False)
    ]  # fmt: skip


class Habits(nn.Module):
    """A function in an attribute, a shared activation, functional calls."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU(inplace=True)
        self.function = F.gelu
        self.body = nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 4), act)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.function(self.body(x)))


REFUSED: dict[str, tuple[Callable[[], tuple[nn.Module, dict[str, Any]]], str]] = {
    "inputs that fail": (
        lambda: (Habits(), {"inputs": torch.randn(2, 5)}),
        r"the model can't run on inputs of shapes \[\[2, 5\]\]: mat1 and mat2",
    ),
    "inputs that aren't finite": (
        lambda: (Habits(), {"inputs": torch.full((2, 4), torch.nan)}),
        "expected finite inputs",
    ),
    "no tensors": (lambda: (Habits(), {"inputs": [3]}), "expected tensors as inputs"),
    "nothing there": (
        lambda: (nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()), {}),
        "none in Sequential",
    ),
    "only functions": (
        lambda: (Functional(), {"inputs": torch.randn(2, 3, 6, 6)}),
        r"nothing to swap in Functional; function relu at Functional: called at .*convert_models.py"
        r":\d+; rewrite=True swaps it",
    ),
    "nothing kept": (
        lambda: (
            nn.Sequential(nn.Linear(4, 2), nn.GELU()),
            {"inputs": torch.randn(2, 4), "keep_function": True},
        ),
        "nothing to swap in Sequential; GELU at 1: no MPELU equals GELU",
    ),
    "everything skipped": (
        lambda: (Habits(), {"skip": ["body", "function"]}),
        "nothing to swap in Habits; function gelu at function: skipped, ReLU at body.1: skipped",
    ),
    "skip that matches nothing": (
        lambda: (Habits(), {"skip": "layer4"}),
        "skip='layer4' not found among the paths of the model",
    ),
    "dim of another path": (
        lambda: (Habits(), {"dim": {"body.2": 1}}),
        "dim='body.2' not found among the activations, such as function, body.1, body.3",
    ),
    "dim out of range": (
        lambda: (Habits(), {"inputs": torch.randn(2, 4), "dim": 2}),
        r"expected dim to be a dimension of the input of function, got 2 for shape \[2, 4\]",
    ),
    "a name in replace": (lambda: (Habits(), {"replace": ["relu"]}), "expected replace as a tuple"),
    "a class as replace": (lambda: (Habits(), {"replace": nn.ReLU}), "expected replace as a tuple"),
    "empty replace": (lambda: (Habits(), {"replace": ()}), "expected at least one class"),
    "alpha that is kept": (
        lambda: (Habits(), {"alpha": 0.5, "keep_function": True}),
        "keep_function=True sets alpha and requires None, got 0.5",
    ),
    "negative beta": (lambda: (Habits(), {"beta": -1.0}), "beta .*got -1"),
    "negative rate": (lambda: (Habits(), {"rate": -1.0}), "rate .*got -1"),
    "both coordinates": (
        lambda: (Habits(), {"alpha": 1.0, "rate": 1.0}),
        "got both",
    ),
    "beta of a function that is kept": (
        lambda: (Habits(), {"beta": 0.1, "keep_function": True}),
        "keep_function=True sets beta and requires None, got 0.1",
    ),
    "infinite alpha": (lambda: (Habits(), {"alpha": float("inf")}), "alpha"),
    "rewriting without inputs": (
        lambda: (Habits(), {"rewrite": True}),
        "rewrite=True requires inputs",
    ),
    "an activation": (lambda: (nn.ReLU(), {}), "expected a model that contains activations"),
    "a wrapper": (
        lambda: (nn.DataParallel(Habits()), {}),
        "got DataParallel",
    ),
    "a compiled part": (
        lambda: (nn.Sequential(_compiled(Habits()), nn.ReLU()), {}),
        "got a compiled Habits at 0",
    ),
    "lazy weights": (
        lambda: (nn.Sequential(nn.LazyLinear(4), nn.ReLU()), {}),
        "got a lazy LazyLinear at 0",
    ),
    "lazy activations": (
        lambda: (nn.Sequential(nn.Linear(4, 4), LazyMPELU(), nn.ReLU()), {}),
        "got a lazy LazyMPELU at 1",
    ),
    "converted before": (
        lambda: (nn.Sequential(nn.Linear(4, 2), MPELU(2)), {}),
        "Sequential is converted already: it has 1 MPELU and nothing else to swap$",
    ),
    "converted before, several": (
        lambda: (_converted(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.ELU())), {}),
        "Sequential is converted already: it has 2 MPELUs and nothing else to swap$",
    ),
    "converted before as far as it went": (
        lambda: (
            _converted(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.GELU()), keep_function=True),
            {"inputs": torch.randn(2, 4), "keep_function": True},
        ),
        "nothing to swap in Sequential, which has 1 MPELU already; GELU at 2: no MPELU equals GELU",
    ),
}


def _converted(model: nn.Module, **options: Any) -> nn.Module:
    return mpelu.convert(model, torch.randn(2, 4), **options).model


def _compiled(model: nn.Module) -> nn.Module:
    model.compile()
    return model


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line_with_the_model_as_it_was(case: str) -> None:
    make, said = REFUSED[case]
    model, options = make()
    before = structure(model)
    with pytest.raises((ValueError, TypeError), match=f"^convert: .*{said}") as caught:
        mpelu.convert(model, **options)
    assert "\n" not in str(caught.value)
    assert structure(model) == before


def test_scripted_and_quantized_models_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    with pytest.raises(ValueError, match="got RecursiveScript"):
        mpelu.convert(torch.jit.script(model))

    class Quantized(nn.Linear):
        pass

    Quantized.__module__ = "torch.ao.nn.quantized.dynamic.modules.linear"
    with pytest.raises(ValueError, match="got a quantized Quantized at 0; convert it before"):
        mpelu.convert(nn.Sequential(Quantized(4, 2), nn.ReLU()))
    with pytest.raises(TypeError, match=r"got (function|builtin)"):
        mpelu.convert(F.relu)  # type: ignore[arg-type]


class Late(nn.Module):
    """Fails in the pass that follows the swap."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Habits()

    def forward(self, x: Tensor) -> Tensor:
        if any(type(module) is MPELU for module in self.modules()):
            raise KeyboardInterrupt
        shown: Tensor = self.body(x)
        return shown


@pytest.mark.parametrize("rewrite", [False, True])
def test_an_interrupt_after_the_swap_undoes_it(rewrite: bool) -> None:
    model, x = Late(), torch.randn(2, 4)
    expected = model(x)
    before = structure(model)
    with pytest.raises(KeyboardInterrupt):
        mpelu.convert(model, x, rewrite=rewrite, keep_function=True)
    assert structure(model) == before
    assert torch.equal(model(x), expected)


def test_what_is_left_is_what_it_was() -> None:
    model = Habits()
    function, first, last = model.function, model.body[1], model.body[3]
    mpelu.convert(model, torch.randn(2, 4), skip=["function", "body.3"])
    assert type(model.body[1]) is MPELU
    assert model.body[3] is last
    assert model.function is function
    assert "function" in vars(model)
    assert first is last


LOADED: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (
        lambda state: {key: value for key, value in state.items() if key != "stem.weight"},
        "only MPELU's parameters are missing; missing: stem.weight$",
    ),
    "unexpected": (
        lambda state: {**state, "extra": torch.zeros(1)},
        "only MPELU's parameters are missing; unexpected: extra$",
    ),
    "shape": (
        lambda state: {**state, "head.bias": torch.zeros(3)},
        r"head.bias of shape \[10\], got \[3\]",
    ),
    "no tensor": (
        lambda state: {**state, "head.bias": 3},
        "head.bias of shape .* got int",
    ),
    "a path": (lambda state: "model.pt", "got str"),
}


@pytest.mark.parametrize("case", LOADED)
def test_checkpoints_that_do_not_fit_change_nothing(case: str) -> None:
    change, said = LOADED[case]
    other = ResNet().state_dict()
    conversion = mpelu.convert(model := ResNet(), torch.randn(2, 3, 8, 8))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises((ValueError, TypeError), match=f"^load_state_dict: .*{said}"):
        conversion.load_state_dict(change(other))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_model_without_memory_is_refused_with_inputs() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ValueError, match=r"got 0\.weight on meta; leave inputs out"):
        mpelu.convert(model, torch.randn(2, 4))
    mpelu.convert(model)
    assert isinstance(model[1], mpelu.MPELU)
