"""convert and activations that overwrite their inputs; what changes in a model is reported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import mpelu
from mpelu import MPELU


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.act: Any = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.last(self.after(self.first(x)))
        return shown

    def after(self, h: Tensor) -> Tensor:
        shown: Tensor = self.act(h)
        return shown


class Unread(Body):
    """As most models: what was overwritten is not read again."""


class Shortcut(Body):
    def after(self, h: Tensor) -> Tensor:
        shown: Tensor = self.act(h) * 0.5
        return shown + h


class Slice(Body):
    def after(self, h: Tensor) -> Tensor:
        self.act(h[:, :4])
        return h


class FunctionOfSlice(Body):
    def after(self, h: Tensor) -> Tensor:
        F.relu(h[:, :4], inplace=True)
        return h


class FunctionOnView(Body):
    def after(self, h: Tensor) -> Tensor:
        view = h.view(-1)
        F.relu(h, True)
        return view.view(-1, 8)


class FunctionInAttribute(Body):
    def __init__(self) -> None:
        super().__init__()
        del self.act
        self.act = torch.relu_

    def after(self, h: Tensor) -> Tensor:
        self.act(h)
        return h


class OwnClass(Body):
    """Overwrites without an attribute that says so."""

    class Clamp(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clamp_(min=0)

    def __init__(self) -> None:
        super().__init__()
        self.act = self.Clamp()

    def after(self, h: Tensor) -> Tensor:
        self.act(h)
        return h


class OnlyInTraining(Body):
    def after(self, h: Tensor) -> Tensor:
        shown: Tensor = self.act(h)
        return shown + h if self.training else shown


@pytest.mark.parametrize(
    "kind",
    [
        Unread, Shortcut, Slice, FunctionOfSlice, FunctionOnView, FunctionInAttribute, OwnClass,
        OnlyInTraining,
    ],
)  # fmt: skip
def test_a_model_that_reads_what_was_overwritten_keeps_its_function(kind: type[Body]) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(16, 8)
    reference = copy.deepcopy(model)
    is_function = kind in (FunctionOfSlice, FunctionOnView)
    conversion = mpelu.convert(model, x, keep_function=True, rewrite=is_function)
    assert conversion.difference is not None
    assert conversion.difference < 1e-5
    assert {row.error for row in conversion.swapped} == {1e-6}
    found = [each for each in conversion.model.modules() if isinstance(each, MPELU)]
    assert [each.inplace for each in found] == [kind is not Unread] * len(found)
    gradients = []
    for each in (conversion.model, reference):
        given = x.clone().requires_grad_()
        each(given).square().sum().backward()
        assert given.grad is not None
        gradients.append(given.grad)
    assert_close(conversion.model(x), reference(x), rtol=0, atol=1e-4)
    assert_close(gradients[0], gradients[1], rtol=0, atol=1e-3)


def test_an_activation_is_in_place_only_where_the_model_counts_on_it() -> None:
    model = nn.Sequential(Unread(), Shortcut(), Unread(), Slice())
    mpelu.convert(model, torch.randn(16, 8))
    parts: list[Any] = list(model)
    assert [part.act.inplace for part in parts] == [False, True, False, True]


class IntoABuffer(Body):
    last_input: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last_input", torch.zeros(16, 8))

    def after(self, h: Tensor) -> Tensor:
        self.last_input.copy_(h)
        shown: Tensor = self.act(self.last_input[:, :4])
        return torch.cat([shown, h[:, 4:]], 1)


class LooksAtTheShape(Body):
    def after(self, h: Tensor) -> Tensor:
        shown: Tensor = self.act(h).reshape(h.size(0), h.shape[1])
        return shown


class IsTheOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        self.act(h)
        same: Tensor = h.detach()
        return same


@pytest.mark.parametrize(
    ("kind", "is_in_place"), [(IntoABuffer, True), (IsTheOutput, True), (LooksAtTheShape, False)]
)
def test_what_lasts_is_read_and_a_shape_is_not(kind: type[Any], is_in_place: bool) -> None:
    model = kind()
    mpelu.convert(model, torch.randn(16, 8))
    assert model.act.inplace == is_in_place


@pytest.mark.parametrize("kind", [Unread, Shortcut])
@pytest.mark.parametrize("keep_function", [False, True])
def test_the_number_of_forward_passes_does_not_grow(kind: type[Body], keep_function: bool) -> None:
    passes = []
    for count in (1, 5, 20):
        model = nn.Sequential(*(kind() for _ in range(count)))
        calls: list[int] = []
        model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        mpelu.convert(model, torch.randn(16, 8), keep_function=keep_function)
        passes.append(len(calls))
    assert len(set(passes)) == 1
    assert passes[0] <= 6


def test_one_activation_in_several_places_is_in_place_where_it_has_to_be() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.one = self.other = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            h = self.one(self.linear(x)) - 0.5
            shown: Tensor = self.other(h) * 2 + h
            return shown

    model = Twice()
    mpelu.convert(model, torch.randn(16, 8), keep_function=True)
    assert isinstance(model.one, MPELU)
    assert isinstance(model.other, MPELU)
    assert (model.one.inplace, model.other.inplace) == (False, True)


def test_without_inputs_an_activation_in_place_stays_so() -> None:
    model, x = Slice(), torch.randn(16, 8)
    reference = copy.deepcopy(model)
    mpelu.convert(model, keep_function=True, shared=True)
    assert_close(model(x), reference(x), rtol=0, atol=1e-5)
    trained, fresh = Slice(), Slice()
    mpelu.convert(trained, x)
    mpelu.convert(fresh)
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh(x), trained(x))


def test_a_difference_that_the_activations_do_not_explain_is_reported() -> None:
    class Asking(Body):
        def after(self, h: Tensor) -> Tensor:
            shown: Tensor = self.act(h)
            return shown if isinstance(self.act, nn.ReLU) else -shown

    conversion = mpelu.convert(Asking(), torch.randn(16, 8), keep_function=True)
    assert [row.error for row in conversion.rows] == [1e-6]  # true of the activation alone
    assert conversion.difference is not None
    assert conversion.difference > 0.1
    assert f"outputs differ by at most {conversion.difference:.1e}" in str(conversion)


def test_trials_leave_no_trace() -> None:
    """Not in buffers, hooks, modes and random numbers of torch and Python."""
    import random

    class Counting(Shortcut):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def after(self, h: Tensor) -> Tensor:
            random.random()
            return super().after(F.dropout(self.norm(h)))

    model = Counting()
    model.norm.eval()
    before = copy.deepcopy(model.state_dict())
    random.seed(1), torch.manual_seed(1)
    mpelu.convert(model, torch.ones(16, 8), keep_function=True)
    drawn = random.random(), torch.rand(1).item()
    random.seed(1), torch.manual_seed(1)
    assert drawn == (random.random(), torch.rand(1).item())
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)
    assert (model.training, model.norm.training) == (True, False)
    assert "forward" not in vars(model.act)
