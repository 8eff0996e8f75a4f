"""rewrite=True: an MPELU at every call of an activation's function."""

from __future__ import annotations

import copy
import io
import pickle
import random
from typing import Any, ClassVar

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
    assert conversion.model is model
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
    loaded = conversion.load_state_dict(other)
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
    values = [[each[0].item() for each in module.parameters()] for module in found]
    assert [module.coordinates for module in found] == ["slope", "paper", "paper", "paper"]
    assert values == [pytest.approx(pair) for pair in ([0.2, 0], [0.5, 1], [2, 0.5], [1e-6, 1])]
    model.hooked.clear()
    assert_close(conversion.model(x), expected, rtol=0, atol=1e-5)
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


def test_functions_in_attributes_are_swapped_there() -> None:
    """And torch's fast path, which would go by the attribute, is off."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)
    reference = copy.deepcopy(model)
    conversion = mpelu.convert(model, x, rewrite=True, keep_function=True)
    assert [row.path for row in conversion.rows] == ["layers.0.activation", "layers.1.activation"]
    assert conversion.rewritten == ()
    with torch.no_grad():
        assert_close(model(x), reference(x), rtol=0, atol=1e-5)

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.plain, self.relu = nn.Linear(4, 4), F.elu, F.relu

        def forward(self, x: Tensor) -> Tensor:
            shown: Tensor = self.relu(self.plain(F.silu(self.linear(x))) - 0.5, inplace=True)
            return shown

    called = Called()
    conversion = mpelu.convert(called, x[..., :4], rewrite=True)
    assert [row.path for row in conversion.swapped] == ["silu_0", "relu_1", "plain"]
    assert type(called.plain) is MPELU
    assert called(x[..., :4]).shape == (2, 5, 4)


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


class VAE(nn.Module):
    """Called by its methods as well as as a whole."""

    known: ClassVar[list[str]] = []

    def __init_subclass__(cls) -> None:
        VAE.known.append(cls.__name__)

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.mean, self.log_variance = (
            nn.Linear(8, 6),
            nn.Linear(6, 2),
            nn.Linear(6, 2),
        )
        self.up, self.out = nn.Linear(2, 6), nn.Linear(6, 8)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.hidden(x))
        return self.mean(h), self.log_variance(h)

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.out(F.relu(self.up(z))))

    def sample(self, count: int) -> Tensor:
        return self.decode(torch.randn(count, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x)
        z = mean
        if self.training:
            z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decode(z), mean, log_variance


def converted_vae() -> tuple[VAE, Tensor, mpelu.converting.Conversion]:
    torch.manual_seed(0)
    model, x = VAE(), torch.randn(4, 8)
    conversion = mpelu.convert(model, x, rewrite=True, alpha=3.0)
    with torch.no_grad():
        for each in mpelu.activations.learnable_parameters(model):
            each.parameter.mul_(torch.rand_like(each.parameter) + 0.5)
    return model, x, conversion


def test_methods_and_class_stay_and_agree_with_forward() -> None:
    model, x, conversion = converted_vae()
    plain = copy.deepcopy(VAE())
    plain.load_state_dict(model.state_dict(), strict=False)
    assert conversion.model is model
    assert isinstance(model, VAE)
    assert VAE.known == []
    assert repr(model).startswith("VAE(\n  (hidden): Linear(")
    assert sorted((row.path, row.channels) for row in conversion.rows) == [
        ("relu_0", (6,)), ("relu_1", (6,)),
    ]  # fmt: skip
    model.eval()
    shown, mean, _ = model(x)
    assert_close(model.encode(x)[0], mean, rtol=0, atol=0)
    assert_close(model.decode(mean), shown, rtol=0, atol=0)
    assert model.sample(3).shape == (3, 8)
    # By hand, and not what ReLU would have returned.
    y = model.hidden(x)
    modules: dict[str, Any] = dict(model.named_modules())
    acts = [modules[name] for name in ("relu_0", "relu_1")]
    encoded = [model.mean(F.elu(y).where(y > 0, each.alpha * torch.expm1(each.beta * y)))
               for each in acts]  # fmt: skip
    assert any(torch.allclose(mean, each, atol=1e-6) for each in encoded)
    assert not torch.allclose(mean, plain.encode(x)[0], atol=1e-2)
    lines = str(conversion).splitlines()
    assert lines[-1] == "converted in place, with new code for VAE: keep using the model you passed"
    # What forward did beside that is still done: noise in training alone.
    model.train()
    assert not torch.equal(model(x)[0], model(x)[0])


def test_a_rewritten_model_is_copied_pickled_compiled_and_exported() -> None:
    model, x, _ = converted_vae()
    model.eval()
    expected = model(x)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    for other in (copy.deepcopy(model), loaded, pickle.loads(pickle.dumps(loaded, protocol=4))):
        assert isinstance(other, VAE)
        assert other is not model
        assert list(other.state_dict()) == list(model.state_dict())
        assert_close(other(x), expected)
        assert_close(other.encode(x), model.encode(x))
        with torch.no_grad():
            other.hidden.weight.zero_()
        assert_close(model(x), expected)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    assert_close(compiled(x), expected)
    assert_close(torch.export.export(model, (x,)).module()(x), expected)
    assert_close(torch.jit.trace(model, x, check_trace=False)(x), expected)


def test_converting_once_more_rewrites_what_was_left() -> None:
    model, x = Arguments(), torch.randn(16, 4)
    mpelu.convert(model, x, rewrite=True, replace=(nn.ELU,))
    first = dict(model.named_modules())
    assert [name for name, each in first.items() if type(each) is MPELU] == ["elu_1"]
    conversion = mpelu.convert(model, x, rewrite=True)
    assert [row.path for row in conversion.swapped] == ["leaky_relu_0", "celu_2", "relu_3"]
    assert conversion.model is model
    assert isinstance(model, Arguments)
    assert model(x).isfinite().all()

    class More(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.is_second = nn.Linear(4, 4), nn.Linear(4, 4), False

        def first(self, x: Tensor) -> Tensor:
            return F.relu(self.one(x))

        def second(self, x: Tensor) -> Tensor:
            return F.relu(self.other(x))

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x)) if self.is_second else self.first(x)

    more = More()
    conversion = mpelu.convert(more, x, rewrite=True)
    assert [row.note for row in conversion.rows] == ["second, which wasn't run, still calls relu"]
    more.is_second = True
    conversion = mpelu.convert(more, x, rewrite=True)
    assert [row.path for row in conversion.swapped] == ["relu_1"]
    assert_close(copy.deepcopy(more)(x), more(x))
    assert_close(more.second(more.first(x)), more(x))


def test_a_method_that_others_call_is_rewritten_once() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 6), nn.Linear(6, 8)

        def block(this, layer: nn.Module, x: Tensor) -> Tensor:
            return F.relu(layer(x))

        def features(self, x: Tensor) -> Tensor:
            return self.block(self.other, self.block(self.one, x))

        def forward(self, x: Tensor) -> Tensor:
            return F.elu(self.features(x))

    model, x = Blocks(), torch.randn(5, 4)
    reference = copy.deepcopy(model)
    conversion = mpelu.convert(model, x, rewrite=True, keep_function=True)
    assert {row.path: row.channels for row in conversion.rows} == {"relu_0": (6, 8), "elu_0": (8,)}
    assert conversion.difference is not None
    assert conversion.difference < 1e-5
    assert_close(model.features(x), reference.features(x), rtol=0, atol=1e-5)


def test_methods_that_cannot_be_rewritten_are_left_with_the_reason() -> None:
    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(4, 4), nn.ReLU()

        def step(self, x: Tensor, twice: bool) -> Tensor:
            x = F.relu(self.linear(x))
            return 2 * x if twice else x

        def forward(self, x: Tensor) -> Tensor:
            shown: Tensor = self.act(self.step(self.step(x, True), False))
            return shown

    class Copied(Flagged):
        def __deepcopy__(self, memo: Any) -> Copied:
            return self

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.act(self.linear(x)))

    patched = Functional()
    patched.forward = patched.forward  # type: ignore[method-assign]
    traced = torch.fx.symbolic_trace(Arguments())
    for part, said in (
        (Flagged(), "step is called with different constants, of which a trace keeps one"),
        (Copied(), "its class defines how it is copied or pickled"),
        (traced, "its class defines how it is copied or pickled"),
    ):
        model = nn.Sequential(part, nn.ReLU())
        kind, x = type(part), torch.randn(3, 4)
        conversion = mpelu.convert(model, x, rewrite=True)
        assert conversion.left
        assert all(said in row.note for row in conversion.left)
        assert type(part) is kind
        assert model(x).isfinite().all()
    model = nn.Sequential(patched, nn.ReLU())
    conversion = mpelu.convert(model, torch.randn(2, 3, 6, 6), rewrite=True)
    assert all(
        "forward is an attribute of the module itself" in row.note for row in conversion.left
    )


def test_an_error_gives_a_rewritten_model_its_class_back() -> None:
    class Late(Functional):
        def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
            return super().forward(x, scale)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Late()

        def forward(self, x: Tensor) -> Tensor:
            if any(type(each) is MPELU for each in self.modules()):
                raise KeyboardInterrupt
            shown: Tensor = self.inner(x)
            return shown

    model, x = Outer().eval(), torch.randn(2, 3, 6, 6)
    expected = model(x)
    with pytest.raises(KeyboardInterrupt):
        mpelu.convert(model, x, rewrite=True, keep_function=True)
    assert type(model.inner) is Late
    assert "relu_0" not in dict(model.named_modules())
    assert torch.equal(model(x), expected)
