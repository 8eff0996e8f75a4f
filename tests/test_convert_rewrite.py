"""rewrite=True: an MPELU at every call of an activation's function."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from convert_models import Functional, ResNet
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import mpelu
from mpelu import MPELU


def test_every_call_has_an_mpelu_of_its_own() -> None:
    torch.manual_seed(0)
    model, x = Functional().eval(), torch.randn(4, 3, 6, 6)
    reference = copy.deepcopy(model)
    conversion = mpelu.convert(model, x, rewrite=True, keep_function=True)
    assert conversion.model is not model
    found = [(row.channels, row.dim) for row in conversion.swapped]
    assert found == [((6,), 1), ((12,), -1), ((4,), -1), ((4,), -1)]
    assert conversion.left == ()
    with torch.no_grad():
        assert_close(conversion.model(x), reference(x), rtol=0, atol=1e-5)
    conversion.model.train()
    assert conversion.model(x).grad_fn is not None


def test_the_mode_still_counts() -> None:
    """F.dropout(x, p, self.training) was traced in one mode and serves both."""
    torch.manual_seed(0)
    conversion = mpelu.convert(Functional(), x := torch.randn(4, 3, 6, 6), rewrite=True)
    model = conversion.model
    outputs = {}
    for is_training in (True, False, True):
        model.train(is_training)
        outputs[is_training] = [model(x) for _ in range(2)]
    assert torch.equal(*outputs[False])
    assert not torch.equal(*outputs[True])


def test_weights_are_those_of_the_original_and_its_checkpoint_loads() -> None:
    model = Functional()
    other = Functional().state_dict()
    conversion = mpelu.convert(model, torch.randn(4, 3, 6, 6), rewrite=True)
    mine = dict(conversion.model.named_parameters())
    assert all(mine[name] is parameter for name, parameter in model.named_parameters())
    loaded = mpelu.load_state_dict(conversion.model, other)
    assert sorted(loaded.new) == sorted(set(conversion.model.state_dict()) - set(other))
    assert torch.equal(conversion.model.state_dict()["out.weight"], other["out.weight"])


def test_only_modules_that_call_functions_are_traced() -> None:
    class Hard(nn.Module):
        """Untraceable, and a list of parts of which some are never called."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Functional(), nn.Linear(4, 4), nn.Linear(4, 5)])
            self.note = "kept"

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 1e30:
                x = x / 2
            shown: Tensor = self.parts[1](self.parts[0](x, scale=2.0))
            return shown

    torch.manual_seed(0)
    model, x = Hard().eval(), torch.randn(4, 3, 6, 6)
    reference = copy.deepcopy(model)
    conversion = mpelu.convert(model, x, rewrite=True, keep_function=True)
    assert conversion.model is model
    assert sum(type(each) is MPELU for each in model.modules()) == 4
    assert set(reference.state_dict()) < set(model.state_dict())
    with torch.no_grad():
        assert_close(model(x), reference(x), rtol=0, atol=1e-5)


class Arguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.size = nn.Linear(4, 6), 6
        self.hooked: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.linear(x), 0.2)
        x = F.elu(x, alpha=0.5)
        x = torch.celu(x, 2.0)
        shown: Tensor = F.relu(input=x - 0.1)
        return shown


def test_arguments_of_functions_are_kept() -> None:
    model, x = Arguments(), torch.randn(64, 4)
    expected = model(x).detach()
    handle = model.register_forward_hook(lambda *_: model.hooked.append(1))
    conversion = mpelu.convert(model, x, rewrite=True, keep_function=True)
    found: list[Any] = [each for each in conversion.model.modules() if type(each) is MPELU]
    alphas, betas = (
        [getattr(each, name)[0].item() for each in found] for name in ("alpha", "beta")
    )
    assert alphas == pytest.approx([0.2 / 0.01, 0.5, 2.0, 1e-6])
    assert betas == pytest.approx([0.01, 1.0, 0.5, 1.0])
    model.hooked.clear()
    assert_close(conversion.model(x), expected, rtol=0, atol=0.02)
    assert model.hooked == [1]
    handle.remove()


def test_what_torch_fx_cannot_trace_is_left_and_said() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(4, 6), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.linear(x))
            return F.relu(x) if x.sum() > 0 else F.silu(x)

    model = Branching()
    conversion = mpelu.convert(model, torch.randn(2, 4), rewrite=True)
    assert conversion.model is model
    assert [row.path for row in conversion.swapped] == ["act"]
    assert "torch.fx can't trace its module" in conversion.left[0].note


class Stateful(nn.Module):
    """Does what a trace doesn't see, in one of several ways."""

    steps: Tensor

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.act, self.way = nn.Linear(4, 6), nn.ReLU(), way
        self.register_buffer("steps", torch.zeros(()))
        self.calls, self.seen, self.last, self.scale = 0, [0], None, 2.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.linear(x))
        if self.way == "steps":
            self.steps += 1
        elif self.way == "calls":
            self.calls += 1
        elif self.way == "seen":
            self.seen.append(1)
        elif self.way == "last":
            self.last = x  # type: ignore[assignment]
        elif self.way == "torch":
            x = x * 2 if torch.rand(1).item() < 0.5 else x
        elif self.way == "python":
            x = x * 2 if random.random() < 0.5 else x
        elif self.way == "tensor":
            x = x + torch.rand(6)
        return F.relu(x) * self.scale


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("steps", "steps"),
        ("calls", "calls"),
        ("seen", "seen"),
        ("last", "last"),
        ("torch", "the state of a random generator"),
        ("python", "the state of a random generator"),
        ("tensor", "a tensor that it makes"),
    ],
)
def test_a_module_whose_trace_would_lack_something_is_left_as_it_was(way: str, said: str) -> None:
    model = Stateful(way)
    random.seed(0), torch.manual_seed(0)
    conversion = mpelu.convert(model, torch.ones(4, 4), rewrite=True)
    drawn = torch.rand(1), random.random()
    random.seed(0), torch.manual_seed(0)
    assert drawn == (torch.rand(1), random.random())
    assert conversion.model is model
    assert [row.path for row in conversion.swapped] == ["act"]
    assert conversion.left[0].note.partition("what its code changes: ")[2].startswith(said)
    state = model.steps.item(), model.calls, model.seen, model.last
    assert state == (0, 0, [0], None)
    assert not any("constant" in name for name in vars(model))


def test_numbers_that_a_trace_fixes_are_named() -> None:
    conversion = mpelu.convert(Stateful("none"), torch.randn(4, 4), rewrite=True)
    notes = {row.path: row.note for row in conversion.swapped}
    assert notes["relu_0"] == "fixed in the traced code: scale = 2.0"
    assert "__getattribute__" not in vars(Stateful)


@pytest.mark.parametrize("way", ["another number", "another call"])
def test_code_that_differs_by_mode_is_left(way: str) -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(4, 6), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.act(self.linear(x)))
            if way == "another number":
                return torch.add(x, x, alpha=2 if self.training else 3)
            return x if self.training else x.sigmoid()

    conversion = mpelu.convert(model := Moody(), torch.randn(2, 4), rewrite=True)
    assert conversion.model is model
    assert [row.was for row in conversion.left] == ["function relu"]
    assert "in training" in conversion.left[0].note


def test_functions_that_skip_and_replace_name() -> None:
    x = torch.randn(64, 4)
    model = nn.Sequential(Arguments(), nn.Linear(6, 4), Arguments())
    conversion = mpelu.convert(model, x, rewrite=True, skip="0", replace=(nn.ELU,))
    assert [(row.path, row.was) for row in conversion.swapped] == [("2.elu_1", "ELU")]


def test_rewritten_models_initialize_train_and_compile() -> None:
    torch.manual_seed(0)
    conversion = mpelu.convert(Functional(), x := torch.randn(8, 3, 6, 6), rewrite=True)
    model = conversion.model
    mpelu.init.initialize_(model, x, method="exact")
    optimizer = torch.optim.SGD(mpelu.param_groups(model, lr=0.01), lr=0.01)
    model(x).square().mean().backward()
    optimizer.step()
    assert all(each.grad is not None for each in model.parameters())
    model.eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    assert_close(compiled(x), model(x))


def test_nothing_to_rewrite_is_no_error() -> None:
    model = ResNet()
    conversion = mpelu.convert(model, torch.randn(2, 3, 8, 8), rewrite=True)
    assert conversion.model is model
