"""Networks that are built in unusual ways: what is reported must be true of them too."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal, spectral_norm
from torch.utils._python_dispatch import TorchDispatchMode

import mpelu
from mpelu.activations.parametric import PELU
from mpelu.elementwise import average
from mpelu.init import METHODS, Deep, Exact, initialize_


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def variance(model: nn.Module, *inputs: Tensor) -> float:
    with torch.no_grad():
        output: Tensor = model(*inputs)
    return output.var().item()


def read_by(what: str, width: int) -> dict[str, Any]:
    """Arguments of initialize_."""
    if what == "shape":
        return {"input_shape": (width,)}
    return {"inputs": torch.randn(64, width)}


class Counted(TorchDispatchMode):
    """Counts the elements of the tensors that operations return."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **kwargs or {})
        self.elements += output.numel() if isinstance(output, Tensor) else 0
        return output


class Written(nn.Module):
    """A network whose forward is a function of itself and the input."""

    def __init__(self, forward: Callable[[Any, Any], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, input: Any) -> Any:
        return self.function(self, input)


@pytest.mark.parametrize("reads", ["shape", "inputs"])
def test_an_orthogonal_parametrization_is_left_as_it_was(reads: str) -> None:
    model = nn.Sequential(orthogonal(nn.Linear(16, 64)), nn.ReLU(), nn.Linear(64, 4))
    given: Any = {"input_shape": (16,)} if reads == "shape" else {"inputs": torch.randn(64, 16)}
    first: Any = model[0]
    before = first.weight.detach().clone()
    report = initialize_(model, **given)
    assert torch.equal(first.weight, before)
    assert "can't take random values" in report.rows[0].note
    assert 0.2 < variance(model, torch.randn(256, 16)) < 5


def test_a_weight_and_its_transpose_are_one() -> None:
    model = Written(
        lambda self, x: F.linear(torch.relu(self.encoder(x)), self.encoder.weight.t()),
        encoder=nn.Linear(128, 32),
    )
    report = initialize_(model, torch.randn(256, 128))
    assert [row.layer for row in report.rows] == ["encoder.weight"]
    encoder: Any = model.encoder
    assert variance(encoder, torch.randn(256, 128)) == pytest.approx(1, rel=0.2)


def test_parts_of_a_packed_weight_stay_apart() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        left, right = self.packed.weight[:, :16], self.packed.weight[:, 16:]
        return F.linear(x, left) + F.linear(x, right)

    report = initialize_(Written(forward, packed=nn.Linear(32, 32)), torch.randn(64, 16))
    assert [row.layer for row in report.rows] == ["packed.weight", "packed.weight"]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("scale", [0.05, 20.0])
def test_parts_of_a_packed_weight_are_balanced_each_on_its_own(dim: int, scale: float) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        left, right = self.packed.weight.chunk(2, dim)
        parts = [F.layer_norm(F.linear(x, each), each.shape[:1]) for each in (left, right)]
        return self.last(torch.cat(parts, 1))

    size = (128, 64) if dim == 0 else (64, 128)
    model = Written(forward, packed=nn.Linear(*size[::-1]), last=nn.Linear(128, 4))
    report = initialize_(model, scale * torch.randn(64, 64))
    packed: Any = model.packed
    for row, part in zip(report.rows, packed.weight.chunk(2, dim), strict=False):
        assert row.rule == "exact fan_in, balanced"
        assert part.std().item() == pytest.approx(row.std, rel=0.05)


def test_a_part_without_a_norm_keeps_its_scale_where_another_is_balanced() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        normed, plain = self.packed.weight.chunk(2)
        hidden = F.layer_norm(F.linear(x, normed), (64,))
        self.plain = F.linear(x, plain)
        return self.last(torch.cat([hidden, self.plain], 1))

    model: Any = Written(forward, packed=nn.Linear(64, 128), last=nn.Linear(128, 4))
    inputs = 0.05 * torch.randn(64, 64)
    report = initialize_(model, inputs)
    assert [row.rule for row in report.rows[:2]] == ["exact fan_in, balanced", "exact fan_in"]
    model(inputs)
    assert model.plain.var().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("other", ["layer", "product", "embedding"])
def test_a_weight_that_does_not_always_end_in_a_norm_is_not_balanced(other: str) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        normed = F.layer_norm(self.tied(x), (64,))
        if other == "layer":
            plain = self.tied(x)
        elif other == "product":
            plain = x * self.tied.weight
        else:
            plain = F.embedding(x[:, 0].abs().long(), self.tied.weight)
        return self.last(torch.cat([normed, plain], 1))

    model = Written(forward, tied=nn.Linear(64, 64, bias=False), last=nn.Linear(128, 4))
    report = initialize_(model, 0.05 * torch.randn(64, 64))
    assert report.rows[0].rule == "exact fan_in"


@pytest.mark.parametrize("wide", [lambda w: w, lambda w: w[64:] * 1.0])
def test_a_weight_is_written_as_far_as_any_use_of_it_reaches(
    wide: Callable[[Tensor], Tensor],
) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        hidden = F.linear(x, self.packed.weight[:64])
        return F.linear(hidden, wide(self.packed.weight))

    model = Written(forward, packed=nn.Linear(64, 128))
    packed: Any = model.packed
    with torch.no_grad():
        packed.weight.fill_(100)
    initialize_(model, torch.randn(64, 64))
    assert (packed.weight != 100).all()


def test_many_parts_of_one_weight_cost_no_more_than_their_number() -> None:
    def elements_seen(experts: int) -> Any:
        def forward(self: Any, x: Tensor) -> Any:
            weights = self.stacked.weight.view(experts, 32, 32)
            return sum(x @ weights[index] for index in range(experts))

        model = Written(forward, stacked=nn.Linear(32, 32 * experts, bias=False))
        with Counted() as counted:  # type: ignore[no-untyped-call]
            initialize_(model, input_shape=(32,))
        return counted.elements

    assert elements_seen(64) <= 2.2 * elements_seen(32)


def test_a_layer_used_in_every_block_shares_the_sums() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(30):
            x = x + self.layer(torch.relu(x))
        return x

    model = Written(forward, layer=nn.Linear(64, 64))
    initialize_(model, torch.randn(64, 64), generator=torch.Generator().manual_seed(0))
    assert 0.3 < variance(model, torch.randn(64, 64)) < 10


@pytest.mark.parametrize("reads", ["shape", "inputs"])
def test_a_later_use_with_another_variance_is_noted(reads: str) -> None:
    model = Written(
        lambda self, x: self.layer(torch.relu(5 * self.layer(x))), layer=nn.Linear(64, 64)
    )
    given: Any = {"input_shape": (64,)} if reads == "shape" else {"inputs": torch.randn(64, 64)}
    report = initialize_(model, **given)
    assert "at a later use" in report.rows[0].note


def test_products_of_signals_are_doubted_after_two_blocks() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.three(F.silu(self.one(x)) * self.two(x))
            return output

    report = initialize_(nn.Sequential(*[Gated() for _ in range(5)]), input_shape=(64,))
    assert "grows more than threefold" in report.rows[-1].note


def test_weights_after_one_that_a_hook_computes_are_noted_although_measured() -> None:
    hooked: Any = nn.Linear(16, 64)
    hooked.raw = nn.Parameter(hooked.weight.detach().clone())
    del hooked.weight
    hooked.register_forward_pre_hook(
        lambda module, args: setattr(module, "weight", module.raw.sort(1).values * 2)
    )
    hooked.weight = hooked.raw * 2
    model = nn.Sequential(hooked, nn.ReLU(), nn.Linear(64, 4))
    report = initialize_(model, torch.randn(64, 16))
    assert report.rows[0].layer == "2.weight"
    assert "whose weight a hook computes" in report.rows[0].note


def test_a_functional_call_with_computed_parameters_scales_the_parameter() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        doubled = {name: 2 * value for name, value in self.layer.named_parameters()}
        output: Tensor = torch.func.functional_call(self.layer, doubled, (x,))
        return output

    model = Written(forward, layer=nn.Linear(16, 64))
    initialize_(model, torch.randn(64, 16))
    assert variance(model, torch.randn(256, 16)) == pytest.approx(1, rel=0.3)


def test_shapes_without_biases_are_for_maps_without_biases() -> None:
    layers: list[nn.Module] = []
    for _ in range(20):
        layers += [nn.Linear(256, 256, bias=False), mpelu.MPELU()]
    model = nn.Sequential(*layers, nn.Linear(256, 256, bias=False))
    generator = torch.Generator().manual_seed(0)
    report = initialize_(model, input_shape=(256,), method="deep", generator=generator)
    output = model(nn.init.orthogonal_(torch.empty(64, 256), 16, generator)).detach()
    unit = output / output.norm(dim=1, keepdim=True)
    similarity = (unit @ unit.T).fill_diagonal_(0).sum() / (64 * 63)
    assert report.correlation is not None
    assert similarity.item() == pytest.approx(report.correlation, abs=0.06)


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.ConvTranspose2d(32, 64, 4), 1),
        (nn.ConvTranspose2d(32, 64, 4, stride=2, padding=1), 4),
        (nn.ConvTranspose2d(32, 64, 3, stride=2, output_padding=1), 3),
    ],
)
def test_transposed_layers_on_small_maps_know_their_inputs(layer: nn.Module, size: int) -> None:
    report = initialize_(nn.Sequential(layer), input_shape=(32, size, size))
    assert report.rows[0].predicted == pytest.approx(1)
    assert variance(layer, torch.randn(256, 32, size, size)) == pytest.approx(1, rel=0.25)


def test_an_embedding_tied_to_the_head_counts_as_it_will_be() -> None:
    model: Any = Written(
        lambda self, tokens: self.head(F.gelu(self.middle(self.words(tokens)))),
        words=nn.Embedding(50, 32), middle=nn.Linear(32, 32), head=nn.Linear(32, 50, bias=False),
    )  # fmt: skip
    model.head.weight = model.words.weight
    initialize_(model, input_shape=(8,))
    found = model.middle(model.words(torch.randint(0, 50, (64, 8))))
    assert found.var().item() == pytest.approx(1, rel=0.4)


def test_an_error_while_weights_are_written_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws = iter([torch.linalg.qr])

    def fails_the_second_time(*args: Any, **kwargs: Any) -> Any:
        return next(draws)(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "qr", fails_the_second_time)
        with pytest.raises(StopIteration):
            initialize_(model, method=Exact(distribution="orthogonal"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def numpy_state() -> list[int]:
    state: Any = numpy.random.get_state()  # noqa: NPY002
    found: list[int] = state[1].tolist()
    return found


def test_state_in_containers_and_other_random_states_are_put_back() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.cache = {"keys": torch.zeros(2), "steps": [[0]]}
            self.recent: deque[int] = deque([1], maxlen=3)

        def forward(self, x: Tensor) -> Tensor:
            cache: Any = self.cache
            cache["keys"] += 1
            cache["steps"][0].append(1)
            self.recent.append(2)
            random.random()
            numpy.random.rand()  # noqa: NPY002
            output: Tensor = self.layer(x)
            return output

    model = Remembers()
    states = random.getstate(), numpy_state()
    initialize_(model, torch.randn(4, 8))
    assert torch.equal(model.cache["keys"], torch.zeros(2))  # type: ignore[arg-type]
    assert model.cache["steps"] == [[0]]
    assert list(model.recent) == [1]
    assert (random.getstate(), numpy_state()) == states


def test_reading_a_weight_leaves_the_vectors_of_a_spectral_norm() -> None:
    model = nn.Sequential(spectral_norm(nn.Linear(16, 64)), nn.ReLU(), nn.Linear(64, 4)).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    initialize_(model, torch.randn(8, 16))
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_the_std_of_a_computed_weight_is_that_of_the_weight_as_it_is() -> None:
    class Adapted(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.base = nn.Linear(inputs, outputs)
            self.down = nn.Parameter(torch.randn(4, inputs) * 0.02)
            self.up = nn.Parameter(torch.zeros(outputs, 4))

        def forward(self, x: Tensor) -> Tensor:
            weight = self.base.weight + self.up @ self.down
            return F.linear(torch.cumsum(x, -1), weight)  # which no rule predicts

    model = nn.Sequential(Adapted(16, 64), nn.ReLU(), Adapted(64, 64), nn.ReLU(), Adapted(64, 4))
    report = initialize_(model, torch.randn(64, 16))
    scaled = [row for row in report.rows if row.rule.endswith("measured")]
    assert scaled
    for row in scaled:
        weight = model.get_parameter(row.layer)
        assert row.std == pytest.approx(weight.std(correction=0).item(), rel=1e-3)


def test_hooks_that_torch_fx_does_not_show_are_noted() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
    model[0].register_forward_hook(lambda module, args, output: output * 10)
    assert "whose output a hook may change" in initialize_(model).rows[-1].note
    measured = initialize_(model, torch.randn(64, 16)).rows[-1]
    assert measured.measured == pytest.approx(1, rel=0.25)


Pair = namedtuple("Pair", "one other")


@dataclass
class Batch:
    one: Tensor
    other: Tensor


@pytest.mark.parametrize("wrap", [tuple, list])
@pytest.mark.parametrize("kind", [Pair, Batch])
def test_inputs_keep_their_kind(kind: Callable[[Tensor, Tensor], Any], wrap: Any) -> None:
    model = Written(lambda self, pair: self.layer(pair.one + pair.other), layer=nn.Linear(8, 4))
    report = initialize_(model, wrap([kind(torch.randn(64, 8), torch.randn(64, 8))]))
    assert report.rows[0].measured == pytest.approx(1, rel=0.3)


def test_a_scripted_part_says_why_it_is_left() -> None:
    scripted = torch.jit.script(nn.Linear(8, 8))
    report = initialize_(nn.Sequential(scripted, nn.ReLU(), nn.Linear(8, 4)), torch.randn(16, 8))
    row = next(row for row in report.rows if row.layer == "0.weight")
    assert "inside a scripted module" in row.note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_shape": 64}, r"input_shape .*got 64"),
        ({"input_shape": (-64,)}, r"input_shape .*got \(-64,\)"),
        ({"input_shape": "64"}, r"input_shape .*got '64'"),
        ({"method": Deep(target=0.99)}, "initialize_: target: expected a target"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, message: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), mpelu.MPELU(64), nn.Linear(64, 4))
    with pytest.raises(ValueError, match=message):
        initialize_(model, **options)


def test_a_constant_is_not_scaled_by_what_rounding_leaves() -> None:
    model = nn.Sequential(nn.Linear(8, 8), mpelu.MPELU(8), nn.Linear(8, 2))
    zeros = torch.zeros(4, 8)
    report = initialize_(model, zeros, method="deep")
    assert all(row.std < 20 for row in report.rows)


def test_inputs_without_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected inputs with values, got .* shape \[0, 8\]"):
        initialize_(nn.Sequential(nn.Linear(8, 8)), torch.empty(0, 8))


def test_a_shape_that_does_not_fit_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="the model can't run on input_shape") as error:
        initialize_(nn.Sequential(nn.Linear(8, 8)), input_shape=(5,))
    assert "\n" not in str(error.value)
    assert caplog.records == []


class Soft(nn.Module):
    """A user's activation, which counts the points at which it is evaluated."""

    points = 0

    def __init__(self, limit: float = 1.0) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, input: Tensor) -> Tensor:
        Soft.points += input.numel()
        return self.limit * torch.tanh(input / self.limit)


def chain(*activations: nn.Module) -> nn.Sequential:
    layers = [part for each in activations for part in (nn.Linear(8, 8), each)]
    return nn.Sequential(*layers, nn.Linear(8, 2))


def points_of(model: nn.Module, method: str) -> int:
    before = Soft.points
    initialize_(model, method=method)
    return Soft.points - before


@pytest.mark.parametrize("method", ["exact", "critical"])
def test_equal_activations_are_integrated_once(method: str) -> None:
    first = points_of(chain(Soft(1.7)), method)
    many = points_of(chain(*(Soft(1.7) for _ in range(20))), method)
    assert many < 3 * first  # each is tried out; integrals take far more points


def test_activations_that_differ_anywhere_have_results_of_their_own() -> None:
    def std(activation: nn.Module) -> float:
        return initialize_(chain(activation), method="exact").rows[1].std

    changing = Soft(1.0)
    found = [std(changing)]
    changing.limit = 0.5
    found += [std(changing), std(Soft(2.0))]
    for limit, each in zip((1.0, 0.5, 2.0), found, strict=True):
        function = mpelu.activations.describe(Soft(limit))
        assert function is not None
        second = average(function.moments()[1])
        assert each == pytest.approx((8 * second) ** -0.5, rel=1e-12)
    learned = [nn.PReLU(), mpelu.MPELU(8, alpha=0.5), PELU(8)]
    assert len({std(each) for each in learned}) == 3


def test_a_function_that_depends_on_more_than_its_module_is_not_mistaken_for_another() -> None:
    settings = {"limit": 1.0}

    class Outside(nn.Module):
        def forward(self, input: Tensor) -> Tensor:
            return torch.clamp(input, max=settings["limit"])

    module = Outside()
    stds = []
    for limit in (1.0, 0.5):
        settings["limit"] = limit
        stds.append(initialize_(chain(module)).rows[1].std)
    assert stds[0] < stds[1]


@pytest.mark.parametrize("method", ["exact", "taylor", "critical"])
def test_a_deleted_model_is_freed_with_its_activations(method: str) -> None:
    class Local(Soft):
        pass

    model = chain(Local(1.3), Local(0.7))
    initialize_(model, torch.randn(16, 8), method=method)
    gone = [weakref.ref(each) for each in (model, model[1], Local)]
    del model, Local
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "default device": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
}


@pytest.mark.parametrize("method", ["exact", "taylor", "critical"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reads", ["nothing", "shape", "inputs"])
def test_the_mode_of_the_caller_changes_nothing(reads: str, mode: str, method: str) -> None:
    models = [chain(Soft(0.9), nn.ReLU(), mpelu.MPELU(8), nn.GELU()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    given: Any = {} if reads == "nothing" else read_by(reads, 8)
    reports = []
    for model, context in zip(models, (MODES[mode], contextlib.nullcontext), strict=True):
        with context():
            generator = torch.Generator("cpu").manual_seed(0)
            reports.append(initialize_(model, **given, method=method, generator=generator))
    assert reports[0] == reports[1]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_model_in_half_precision_is_read_by_its_shape() -> None:
    model = Written(
        lambda self, x: self.last(self.gru(x)[0]), gru=nn.GRU(8, 8), last=nn.Linear(8, 2)
    )
    report = initialize_(model.bfloat16(), input_shape=(5, 8))
    assert report.rows[-1].predicted == pytest.approx(1)


class Divided(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_reading_a_parametrization_leaves_a_large_weight_as_it_was(dtype: torch.dtype) -> None:
    first = nn.Linear(16, 16)
    nn.utils.parametrize.register_parametrization(first, "weight", Divided())
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    parametrized: Any = first
    original = parametrized.parametrizations.weight.original
    with torch.no_grad():
        original.uniform_(-1, 1).mul_(0.9 * torch.finfo(dtype).max)
    before = original.detach().clone()
    report = initialize_(model, 0.01 * torch.randn(64, 16).to(dtype))
    assert report.rows[0].rule == "left unchanged"
    assert torch.equal(original, before)


def test_a_computed_weight_may_be_changed_in_place_and_by_what_returns_its_input() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        weight = self.first.weight * 2
        weight.mul_(3)
        return self.last(torch.relu(F.linear(x, weight.to(x.dtype).contiguous())))

    model: Any = Written(forward, first=nn.Linear(64, 64, bias=False), last=nn.Linear(64, 4))
    report = initialize_(model, torch.randn(64, 64))
    assert report.rows[0].std == pytest.approx(6 * model.first.weight.std().item(), rel=0.05)


# Weights that are zero by design


def zeroed(layer: Any) -> Any:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Denoiser(nn.Module):
    """A residual block of a diffusion model between two convolutions."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.norm, self.conv = (
            nn.GroupNorm(4, channels),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.time = nn.Linear(16, channels)
        self.last = zeroed(nn.Conv2d(channels, channels, 3, padding=1))
        self.out = nn.Conv2d(channels, 3, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.conv(F.silu(self.norm(x))) + self.time(F.silu(time))[:, :, None, None]
        output: Tensor = self.out(x + self.last(F.silu(h)))
        return output


class Modulated(nn.Module):
    """A block of a diffusion transformer, whose modulation starts at zero (adaLN-zero)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zeroed(nn.Linear(16, 3 * width))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.out = nn.Linear(width, 8)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(time)).chunk(3, -1)
        h = self.norm(x) * (1 + scale) + shift
        output: Tensor = self.out(x + gate * self.down(F.gelu(self.up(h))))
        return output


class LowRank(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.weight.requires_grad_(False)
        self.down = nn.Linear(width, 4, bias=False)
        self.up = zeroed(nn.Linear(4, width, bias=False))
        self.out = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(self.base(x) + 2 * self.up(self.down(x)))
        return output


class Closed(nn.Module):
    """A residual block whose last norm has a scale of zero."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.conv, self.norm = nn.Conv2d(channels, channels, 3), nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)
        self.out = nn.Conv2d(channels, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        output: Tensor = self.out(x + F.pad(self.norm(self.conv(x)), (1, 1, 1, 1)))
        return output


ZEROS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "last.weight": (Denoiser, [(3, 16, 16), (16,)]),
    "modulation.weight": (Modulated, [(64,), (16,)]),
    "up.weight": (LowRank, [(64,)]),
    "norm.weight": (Closed, [(3, 16, 16)]),
    "2.weight": (
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), zeroed(nn.Linear(64, 10))), [(64,)],
    ),
}  # fmt: skip
"""By the path of the weight that is zero: the model, and the shapes of its inputs."""


@pytest.mark.parametrize("reads", ["inputs", "shape", "nothing"])
@pytest.mark.parametrize("name", ZEROS)
def test_a_weight_that_is_zero_by_design_stays_zero_and_says_so(name: str, reads: str) -> None:
    build, shapes = ZEROS[name]
    model = build()
    inputs = tuple(torch.randn(64, *shape) for shape in shapes)
    options: dict[str, Any] = {
        "inputs": {"inputs": inputs},
        "shape": {"input_shape": tuple(shapes)},
        "nothing": {},
    }
    report = initialize_(model, **options[reads])
    found = {row.layer: row for row in report.rows}
    assert not model.get_parameter(name).any()
    assert "stays zero" in found[name].note
    assert (found[name].rule, found[name].std) == ("left unchanged", 0)
    # What follows knows that nothing comes from the branch.
    last = report.rows[-1] if report.rows[-1].layer == "out.weight" else found.get("out.weight")
    if last is not None:
        assert last.predicted == pytest.approx(1, rel=1e-6)
        layers: Any = model.get_submodule("out")
        seen: list[Tensor] = []
        layers.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
        model(*inputs)
        assert seen[0].var().item() == pytest.approx(1, rel=0.6)


@pytest.mark.parametrize("method", ["exact", "taylor", "gaussian", "xavier", "lsuv", "deep"])
@pytest.mark.parametrize("name", ZEROS)
def test_one_argument_sets_weights_that_are_zero(name: str, method: str) -> None:
    build, shapes = ZEROS[name]
    inputs = tuple(torch.randn(64, *shape) for shape in shapes)
    for keep_zeros in (True, False):
        model = build()
        report = initialize_(model, inputs, method=METHODS[method](keep_zeros=keep_zeros))
        assert model.get_parameter(name).any() == (not keep_zeros)
        assert any("stays zero" in row.note for row in report.rows) == keep_zeros


def test_the_bias_of_a_weight_that_stays_zero_stays() -> None:
    first, head = nn.Linear(64, 64), zeroed(nn.Linear(64, 10))
    nn.init.constant_(head.bias, -3.0)
    model = nn.Sequential(first, nn.ReLU(), head)
    initialize_(model, torch.randn(64, 64))
    assert torch.equal(head.bias, torch.full((10,), -3.0))
    assert not first.bias.any()


@pytest.mark.parametrize("reads", ["inputs", "shape"])
def test_a_part_of_a_packed_weight_stays_zero(reads: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        one, other = self.packed.weight.chunk(2)
        return F.linear(x, one) + F.linear(x, other)

    model = Written(forward, packed=nn.Linear(32, 64))
    packed: Any = model.packed
    nn.init.zeros_(packed.weight[32:])
    report = initialize_(model, **read_by(reads, 32))
    assert ["stays zero" in row.note for row in report.rows] == [False, True]
    assert packed.weight[:32].any()
    assert not packed.weight[32:].any()


def test_what_zeros_feed_is_set_as_for_unit_variance_and_says_so() -> None:
    model = nn.Sequential(nn.Linear(64, 64), zeroed(nn.Linear(64, 64)), nn.Linear(64, 8))
    report = initialize_(model, torch.randn(64, 64))
    assert report.rows[2].std == pytest.approx(1 / 8, rel=0.01)
    assert "fed by zeros" in report.rows[2].note


def test_a_model_whose_weights_all_are_zero_is_set() -> None:
    for scale in (0.0, 1.0):
        norm = nn.BatchNorm1d(64)
        nn.init.constant_(norm.weight, scale)
        one, other = (zeroed(nn.utils.skip_init(nn.Linear, 64, 64)) for _ in range(2))
        report = initialize_(nn.Sequential(one, norm, nn.ReLU(), other), torch.randn(64, 64))
        assert all(row.rule.startswith("exact") for row in report.rows)
        assert norm.weight.all()


def test_tensors_in_a_list_feed_a_layer_too() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16))
            self.last = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.last(torch.einsum("bi,oi->bo", [x, self.weight]))
            return output

    report = initialize_(Spectral(), torch.randn(256, 16))
    assert report.rows[0].measured == pytest.approx(1, abs=0.3)


def test_moments_out_of_the_range_of_a_float_are_noted() -> None:
    class Grows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(20 * x)

    model = nn.Sequential(nn.Linear(8, 8), Grows(), nn.Linear(8, 8))
    for method in ("taylor", "exact"):
        report = initialize_(model, torch.randn(64, 8), method)
        assert report.rows[1].notes
        assert model[2].weight.isfinite().all()  # type: ignore[operator]


def test_complex_tensors_may_feed_a_layer() -> None:
    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16, dtype=torch.cfloat))
            self.last = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.einsum("bi,oi->bo", torch.fft.fft(x), self.weight)
            output: Tensor = self.last(torch.fft.ifft(spectrum).real)
            return output

    report = initialize_(Fourier(), torch.randn(256, 16))
    assert report.rows[-1].measured == pytest.approx(1, rel=0.5)


def test_biases_of_what_rounding_leaves_are_not_drawn() -> None:
    model = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(64, 64), nn.ReLU())])
    initialize_(model, method="critical")
    assert not any(layer.bias.any() for layer in model if isinstance(layer, nn.Linear))
