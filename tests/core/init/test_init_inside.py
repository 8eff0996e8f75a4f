"""Calls without a rule: followed through the dispatcher's operations; and models without inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations as norms
from torch.nn.utils import parametrize

from mpelu.graph import record
from mpelu.init import Exact, Gaussian, initialize_
from mpelu.init.layers import PADDING_NOTE
from mpelu.init.operations import is_known

WIDTH = 64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.function(self.first(x)))
        return output


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """A composite operator, which the dispatcher takes apart, and one without shapes."""
    library = torch.library.Library("mpelu_tests", "DEF")
    library.define("triple(Tensor x, Tensor y) -> Tensor")
    library.define("weighted(Tensor x, Tensor w) -> Tensor")
    library.define("shapeless(Tensor x) -> Tensor")
    library.impl("triple", lambda x, y: 3 * torch.relu(x) + 0 * y, "CompositeImplicitAutograd")
    library.impl("weighted", lambda x, w: torch.relu(x) @ w.t(), "CompositeImplicitAutograd")
    library.impl("shapeless", lambda x: x.flip(-1) * 2, "CPU")
    yield torch.ops.mpelu_tests
    library._destroy()


@pytest.mark.parametrize(
    ("function", "scale"),
    [
        (Tripled.apply, 3.0),
        (lambda h: torch.addcmul(h, h.flip(0), torch.tensor(2.0)), None),
        (lambda h: torch.var_mean(h, -1, keepdim=True)[0] * h, None),
        (lambda h: torch.diff(h, dim=-1, append=h[:, :1]), None),
    ],
)
def test_what_a_function_without_a_rule_is_made_of_is_followed(
    function: Any, scale: float | None
) -> None:
    """Without values: nothing is measured, so the prediction itself is right."""
    model = Between(function)
    row = initialize_(model, input_shape=(WIDTH,), generator=seeded()).rows[-1]
    with torch.no_grad():
        variance = model(torch.randn(2048, WIDTH, generator=seeded(1))).var().item()
    assert not row.note
    assert variance == pytest.approx(1, rel=0.35)
    if scale is not None:  # E[(scale relu)^2] = scale^2 / 2
        assert row.std == pytest.approx((2 / WIDTH) ** 0.5 / scale)


def test_a_composite_operator_is_followed(operators: Any) -> None:
    model = Between(lambda h: operators.triple(h, h))
    row = initialize_(model, input_shape=(WIDTH,)).rows[-1]
    assert row.note == ""
    assert row.std == pytest.approx((2 / WIDTH) ** 0.5 / 3, rel=1e-6)


def test_a_weight_inside_an_operator_is_placed(operators: Any) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.weight = nn.Parameter(torch.ones(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = operators.weighted(self.first(x), self.weight)
            return output

    model = Weighted()
    rows = {row.layer: row for row in initialize_(model, torch.randn(256, WIDTH)).rows}
    assert rows["weight"].feed == "relu"
    assert model.weight.std().item() == pytest.approx((2 / WIDTH) ** 0.5, rel=0.1)
    with torch.no_grad():
        assert model(torch.randn(256, WIDTH)).var().item() == pytest.approx(1, rel=0.3)


def test_only_what_stays_unknown_gives_a_note(operators: Any) -> None:
    model = Between(lambda h: operators.shapeless(torch.nn.functional.softsign(h)))
    report = initialize_(model, input_shape=(WIDTH,))
    assert "shapeless, which has no rule" in report.rows[-1].note
    assert not report.rows[0].note


def test_a_model_with_an_operation_without_shapes_is_run_on_zeros(operators: Any) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 16), nn.Linear(16, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            output: Tensor = self.head(operators.shapeless(self.embedding(tokens)))
            return output

    rows = {row.layer: row for row in initialize_(Tokens(), input_shape=(5,)).rows}
    assert rows["head.weight"].rule == "exact fan_in"
    assert "shapeless" in rows["head.weight"].note


def test_an_elementwise_function_stays_one_call() -> None:
    model = Between(torch.special.i0)
    calls, _ = record(model, torch.randn(4, WIDTH), known=is_known)
    assert [call.name for call in calls][1:] == ["first", "special_i0", "last"]


def test_a_known_function_is_not_looked_into() -> None:
    model = Between(lambda h: F.layer_norm(torch.softmax(h, -1), (WIDTH,)))
    calls, _ = record(model, torch.randn(4, WIDTH), known=is_known)
    assert [call.name for call in calls][1:] == ["first", "softmax", "layer_norm", "last"]


# Parametrizations


DEPTH, WIDE = 10, 128


def normed_mlp(norm: Callable[[nn.Linear], nn.Module]) -> nn.Sequential:
    """Ten layers; those whose scale isn't free end in one without a norm."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(DEPTH):
        parts += [norm(nn.Linear(WIDE, WIDE)), nn.ReLU()]
    if norm not in (norms.weight_norm, nn.utils.weight_norm):
        parts[-2] = nn.Linear(WIDE, WIDE)
    return nn.Sequential(*parts[:-1])


def linear_layers(model: nn.Module) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, nn.Linear)]


def outputs_of(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Of every linear layer, by hooks."""
    found: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda module, args, output: found.append(output))
        for layer in linear_layers(model)
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


def read_by(what: str) -> dict[str, Any]:
    """Arguments of initialize_."""
    given: dict[str, dict[str, Any]] = {
        "inputs": {"inputs": torch.randn(256, WIDE)},
        "shape": {"input_shape": (WIDE,)},
        "nothing": {},
    }
    return given[what]


@pytest.mark.parametrize("kind", ["inputs", "shapes"])
def test_a_spectral_norm_is_left_and_said(kind: str) -> None:
    normed: Any = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), normed, nn.ReLU(), nn.Linear(WIDTH, 64)
    )
    original = normed.parametrizations.weight.original
    kept = original.clone()
    x = torch.randn(256, WIDTH)
    report = initialize_(model, x) if kind == "inputs" else initialize_(model, input_shape=(WIDTH,))
    row = report.rows[1]
    assert (row.rule, "parametrization sets its scale" in row.note) == ("left unchanged", True)
    assert torch.equal(kept, original)
    with torch.no_grad():
        assert model.eval()(torch.randn(256, WIDTH)).var().item() == pytest.approx(1, rel=0.5)


@pytest.mark.filterwarnings("ignore:.*norm.*:FutureWarning")
@pytest.mark.parametrize("reads", ["inputs", "shape", "nothing"])
@pytest.mark.parametrize("norm", [norms.spectral_norm, nn.utils.spectral_norm, norms.orthogonal])
def test_a_weight_whose_scale_is_not_free_is_left_with_its_bias_and_said(
    norm: Any, reads: str
) -> None:
    model = normed_mlp(norm)
    before = {name: value.clone() for name, value in model.named_parameters()}
    report = initialize_(model, **read_by(reads))
    assert all("parametrization sets its scale" in row.note for row in report.rows[:-1])
    assert {row.rule for row in report.rows[:-1]} == {"left unchanged"}
    for name, value in list(model.named_parameters())[:-2]:
        assert torch.equal(value, before[name])
    # What follows knows the scale that training steps see.
    seen = outputs_of(model.train(), torch.randn(512, WIDE))
    assert seen[-1].var().item() == pytest.approx(1, rel=0.5)
    for row, output in zip(report.rows, seen, strict=True):
        assert row.predicted is not None
        assert 0.5 < output.var().item() / row.predicted < 2


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("reads", ["inputs", "shape", "nothing"])
@pytest.mark.parametrize("method", ["exact", "critical", "deep", "taylor", "msra", "lsuv"])
@pytest.mark.parametrize("norm", [norms.weight_norm, nn.utils.weight_norm])
def test_weight_normed_layers_have_unit_variance_and_train(
    norm: Any, method: str, reads: str
) -> None:
    if method == "lsuv" and reads != "inputs":
        return
    model = normed_mlp(norm)
    names = [name for name, _ in model.named_parameters()]
    report = initialize_(model, method=method, **read_by(reads))
    assert len(report.rows) == DEPTH
    x = torch.randn(512, WIDE)
    for row, output in zip(report.rows, outputs_of(model, x), strict=True):
        assert "left" not in row.rule
        assert 0.4 < output.var().item() < 2.5
    for row, layer in zip(report.rows, linear_layers(model), strict=True):
        assert row.std == pytest.approx(layer.weight.std().item(), rel=0.1)
    assert names == [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        loss = F.mse_loss(model(x), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [norms.weight_norm, nn.utils.weight_norm])
def test_a_gaussian_weight_under_a_weight_norm_has_the_deviation_asked_for(norm: Any) -> None:
    model = normed_mlp(norm)
    for inputs in (None, torch.randn(64, WIDE)):
        initialize_(model, inputs, Gaussian(std=0.03))
        for layer in linear_layers(model):
            assert layer.weight.std().item() == pytest.approx(0.03, rel=0.1)
            assert not layer.bias.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_weight_norm_in_half_precision_follows_the_rule(dtype: torch.dtype) -> None:
    model = normed_mlp(norms.weight_norm).to(dtype)
    report = initialize_(model, torch.randn(64, WIDE, dtype=dtype))
    assert all("exact" in row.rule for row in report.rows)
    for output in outputs_of(model, torch.randn(512, WIDE, dtype=dtype)):
        assert 0.5 < output.float().var().item() < 2


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_recurrent_weight_under_a_weight_norm_follows_the_rule() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.utils.weight_norm(nn.LSTM(32, 64, batch_first=True), "weight_hh_l0")
            self.head = nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.cells(x)[0])
            return output

    model = Recurrent()
    plain = Recurrent()
    nn.utils.remove_weight_norm(plain.cells, "weight_hh_l0")
    x = torch.randn(64, 10, 32)
    rows = {row.layer: row for row in initialize_(model, x).rows}
    expected = {row.layer: row for row in initialize_(plain, x).rows}
    assert rows["cells.weight_hh_l0_v"].std == expected["cells.weight_hh_l0"].std
    cells: Any = model.cells
    assert cells.weight_hh_l0.std().item() == pytest.approx(
        expected["cells.weight_hh_l0"].std, rel=0.05
    )
    assert len(rows) == len(expected)


def test_a_part_of_a_weight_under_a_weight_norm_is_left_and_said() -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    norms.weight_norm(model.self_attn, "in_proj_weight")
    report = initialize_(model, torch.randn(8, 5, 16))
    left = {row.layer for row in report.rows if row.rule == "left unchanged" and row.note}
    assert "self_attn.parametrizations.in_proj_weight.original1" in left


def test_a_weight_norm_whose_length_is_frozen_is_left() -> None:
    model = normed_mlp(norms.weight_norm)
    first = linear_layers(model)[0]
    first.parametrizations.weight.original0.requires_grad_(False)
    weight = first.weight.detach().clone()
    report = initialize_(model, torch.randn(64, WIDE))
    assert report.rows[0].rule == "left unchanged"
    assert torch.equal(first.weight, weight)
    assert "exact" in report.rows[1].rule


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Mirrored(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT

    def right_inverse(self, x: Tensor) -> Tensor:
        return x.triu()


class Invertible(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sinh(x)

    def right_inverse(self, x: Tensor) -> Tensor:
        return torch.asinh(x)


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


class Normalized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


@pytest.mark.parametrize("reads", ["inputs", "shape", "nothing"])
@pytest.mark.parametrize("kind", [Twice, Mirrored, Invertible, Positive, Normalized])
def test_a_parametrization_of_the_users_follows_the_rule_or_says_that_it_does_not(
    kind: type[nn.Module], reads: str
) -> None:
    def parametrized(layer: nn.Linear) -> nn.Module:
        return parametrize.register_parametrization(layer, "weight", kind())

    model = normed_mlp(parametrized)
    before = {name: value.clone() for name, value in model.named_parameters()}
    report = initialize_(model, **read_by(reads))
    seen = outputs_of(model, torch.randn(512, WIDE))
    assert len(report.rows) == DEPTH
    for row, layer, output in zip(report.rows, linear_layers(model), seen, strict=True):
        if kind in (Positive, Normalized) and parametrize.is_parametrized(layer):
            assert "its parametrization" in row.note
            assert torch.equal(model.get_parameter(row.layer), before[row.layer])
        else:
            assert row.rule.startswith("exact")
            assert layer.weight.std().item() == pytest.approx(row.std, rel=0.05)
            if reads == "inputs":
                assert output.var().item() == pytest.approx(1, rel=0.4)


# The model is as before


def test_hooks_that_a_first_call_installs_are_taken_out_again() -> None:
    seen: list[int] = []

    class Captures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
            self.is_installed = False

        def forward(self, x: Tensor) -> Tensor:
            if not self.is_installed:
                self.inner.register_forward_hook(lambda *_: seen.append(1))
                self.is_installed = True
            seen.clear()
            output: Tensor = self.outer(self.inner(x))
            assert len(seen) == 1
            return output

    model = Captures()
    initialize_(model, torch.randn(4, 8))
    assert not model.inner._forward_hooks
    assert not model.is_installed
    model(torch.randn(4, 8))


def test_a_function_that_holds_a_batch_is_not_elementwise() -> None:
    offset = torch.randn(8, WIDTH)
    model = Between(lambda h: torch.maximum(h, offset))
    report = initialize_(model, torch.randn(8, WIDTH))
    assert report.rows[-1].rule.startswith("exact")


# Without inputs


def test_values_of_parameters_count_where_only_shapes_are_known() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(4, 32, 1), nn.Conv2d(32, 8, 1)
            self.gamma = nn.Parameter(torch.full((32,), 1e-3))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.last(self.first(x) * self.gamma.reshape(1, -1, 1, 1))
            return output

    row = initialize_(Scaled(), input_shape=(4, 6, 6)).rows[-1]
    assert row.std == pytest.approx(1e3 / 32**0.5)


@pytest.mark.parametrize("halvings", [1, 5])
def test_padding_of_maps_that_may_be_small_is_noted_without_shapes(halvings: int) -> None:
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1)]
    for _ in range(halvings):
        layers += [nn.MaxPool2d(2), nn.BatchNorm2d(8)]
    model = nn.Sequential(*layers, nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
    notes = [row.note for row in initialize_(model).rows]
    assert notes[0] == ""
    assert (PADDING_NOTE.text in notes[1]) == (halvings == 5)
    assert not any(
        PADDING_NOTE in row.notes for row in initialize_(model, input_shape=(3, 64, 64)).rows
    )


@pytest.mark.parametrize("pad", [nn.ZeroPad2d(2), lambda h: F.pad(h, (2, 2, 2, 2))])
def test_zeros_around_a_map_take_their_share(pad: Any) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(16, 256, 5)
            self.pad = pad

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.convolution(self.pad(x))
            return output

    model = Padded()
    initialize_(model, input_shape=(16, 4, 4), generator=seeded())
    with torch.no_grad():
        variance = model(torch.randn(512, 16, 4, 4, generator=seeded(1))).var().item()
    assert variance == pytest.approx(1, rel=0.1)


# Gradients


def test_the_default_balances_gradients_where_a_norm_makes_the_scale_free() -> None:
    layers: list[nn.Module] = []
    for index in range(24):
        width = 8 if index else 3
        layers += [nn.Conv2d(width, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    x = torch.randn(16, 3, 16, 16, generator=seeded())
    ratios = {}
    for mode in ("fan_in", "balanced"):
        report = initialize_(model, x, generator=seeded(), method=Exact(mode=mode))
        model(x).mul(torch.randn(16, 10, generator=seeded(1))).sum().backward()
        norms = [model[index].weight.grad.norm().item() for index in (0, -1)]  # type: ignore
        ratios[mode] = norms[0] / norms[1]
        model.zero_grad()
    assert ratios["fan_in"] > 10 > ratios["balanced"]
    assert report.rows[0].rule == "exact fan_in, balanced"
    assert report.rows[-1].predicted == pytest.approx(1)


def test_without_inputs_balanced_is_fan_in() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    stds = [
        [row.std for row in initialize_(model, method=Exact(mode=mode)).rows]
        for mode in ("fan_in", "balanced")
    ]
    assert stds[0] == stds[1]


def test_a_model_without_a_backward_pass_is_initialized() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.exp(self.norm(self.first(x)))
            h.mul_(2)  # autograd needs what it overwrites
            output: Tensor = self.last(h)
            return output

    report = initialize_(Overwrites(), torch.randn(16, 8))
    assert [row.rule.split(",")[0] for row in report.rows] == ["exact fan_in"] * 2
