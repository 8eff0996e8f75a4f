"""Models as other people write them: what reading them must survive, and what it must find out."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpelu import MPELU
from mpelu.graph import record, trace
from mpelu.init import METHODS, Exact, Gaussian, Signal, Step, initialize_, register_operation

NAMES = ["taylor", "exact", "msra", "xavier", "gaussian", "lsuv"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(model: nn.Module, inputs: Any = None, method: str = "exact", **options: Any) -> Any:
    report = initialize_(model, inputs, method, generator=seeded(), **options)
    return {row.layer: row for row in report.rows}


class Between(nn.Module):
    """Linear, then a function, then linear."""

    def __init__(self, function: Any, width: int = 64, out: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, out)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.function(self.first(x)))
        return output


# Numbers that must not explode


class Scaled(nn.Module):
    """x + scale * f(norm(x))."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), scale))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.scale * self.linear(self.norm(x))
        return output


@pytest.mark.parametrize("method", ["taylor", "msra", "exact"])
@pytest.mark.parametrize("scale", [0.0, 1e-5, 0.1])
def test_small_learned_scales_do_not_make_the_head_explode(method: str, scale: float) -> None:
    blocks = [Scaled(64, scale) for _ in range(24)]
    model = nn.Sequential(nn.Linear(64, 64), *blocks, nn.LayerNorm(64), nn.Linear(64, 10))
    assert initialize_(model, method=method).rows[-1].std == pytest.approx(0.125)


class SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) ** 2


@pytest.mark.parametrize("activation", [SquaredReLU(), nn.Tanhshrink(), nn.Hardshrink()])
def test_taylor_without_a_tangent_takes_the_exact_moment(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(64, 64), activation, nn.Linear(64, 8))
    taylor, exact = (rows(model, None, method)["2.weight"] for method in ("taylor", "exact"))
    assert taylor.std == pytest.approx(exact.std)
    assert "tangents at zero vanish" in taylor.note
    assert not exact.note


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU])
def test_fifty_layers_with_an_unstable_fixed_point(activation: type[nn.Module]) -> None:
    layers: list[nn.Module] = [nn.Linear(128, 128)]
    for _ in range(49):
        layers += [activation(), nn.Linear(128, 128)]
    model = nn.Sequential(*layers)
    fresh = torch.randn(512, 128, generator=seeded(2))
    without = initialize_(model, method="exact", generator=seeded()).rows
    assert "grows more than threefold" in without[-1].note
    assert not without[1].note
    measured = initialize_(
        model, torch.randn(512, 128, generator=seeded(1)), "exact", generator=seeded()
    ).rows
    assert any("measured" in row.rule for row in measured)
    with torch.no_grad():
        assert 0.3 < model(fresh).var() < 3


@pytest.mark.parametrize("method", ["taylor", "msra"])
def test_first_order_rules_are_capped_where_they_would_explode(method: str) -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.one(x) + self.two(x)
            return output

    model = nn.Sequential(*[Doubling() for _ in range(16)])
    x = torch.randn(256, 64, generator=seeded(1))
    found = rows(model, x, method)
    assert any("above 10" in row.note for row in found.values())
    with torch.no_grad():
        assert model(x).var() < 100


def test_correlated_values_under_pooling_are_measured() -> None:
    """Neighbouring values aren't independent: pooling changes the moments less than predicted."""
    layers: list[nn.Module] = []
    for before in (3, 32, 32, 32, 32):
        layers += [nn.Conv2d(before, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64))
    x, fresh = (
        F.interpolate(torch.randn(32, 3, 8, 8, generator=seeded(seed)), scale_factor=8)
        for seed in (1, 2)
    )
    found = rows(model, x)
    assert any(row.rule.endswith("measured") for row in found.values())
    with torch.no_grad():
        assert 0.5 < model(fresh).var() < 2


def test_means_over_tokens_are_measured() -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix, self.head = (
                nn.Linear(16, 64),
                nn.Linear(32, 32),
                nn.Linear(64, 64),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
            output: Tensor = self.head(x.mean(1))
            return output

    model = Mixer()
    offsets = torch.randn(64, 1, 16, generator=seeded(1))  # that all tokens of an image share
    x, fresh = (offsets + torch.randn(64, 32, 16, generator=seeded(seed)) for seed in (2, 3))
    rows(model, x)
    with torch.no_grad():
        assert 0.5 < model(fresh).var() < 2


# Models that used to stop the walk


@pytest.mark.parametrize("method", NAMES)
def test_concatenation_with_an_empty_tensor(method: str) -> None:
    """As caches of keys and values start."""
    model = Between(lambda h: torch.cat([torch.tensor([]), h], -2))
    assert len(initialize_(model, torch.randn(4, 3, 64), method).rows) == 2


def test_printed_and_measured_proxies_can_be_traced() -> None:
    class Printed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
            self.token = nn.Parameter(torch.zeros(1, 8, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            h = self.one(x)
            assert h is not None, f"a message with {h}"
            assert f"{h}"
            h = F.avg_pool2d(h, h.size()[3])
            output: Tensor = self.two(h + self.token.expand(h.size(0), -1, -1, -1))
            return output

    found = rows(Printed())
    assert found["one.weight"].rule == found["two.weight"].rule == "exact fan_in"
    assert "window of unknown size" in found["two.weight"].note


@pytest.mark.parametrize(
    "function",
    [
        lambda h: F.lp_pool1d(h, 2, 2),
        lambda h: torch.cumsum(h, -1),
        lambda h: torch.fft.fft(h).real,
        lambda h: h.sort(-1)[0] * h.argsort(-1),
        lambda h: 1 / (1 + h * h),
    ],
)
@pytest.mark.parametrize("method", NAMES)
def test_any_function_gives_a_note_and_not_an_error(function: Any, method: str) -> None:
    width = function(torch.randn(2, 64)).size(-1)
    model = Between(function)
    model.last = nn.Linear(width, 64)
    x = torch.randn(64, 64, generator=seeded(1))
    found = rows(model, x, method)["last.weight"]
    assert math.isfinite(found.std)
    if method in ("taylor", "exact", "msra"):
        assert found.measured == pytest.approx(found.predicted, rel=0.25)
        assert rows(model, None, method, input_shape=(64,))["last.weight"].note


def test_maximum_unpooling() -> None:
    class Unpooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            pooled, indices = F.max_pool2d(self.one(x), 2, return_indices=True)
            output: Tensor = self.two(F.max_unpool2d(pooled, indices, 2))  # type: ignore[arg-type]
            return output

    assert len(rows(Unpooled(), torch.randn(2, 3, 8, 8))) == 2
    assert "max_unpool2d, which has no rule" in rows(Unpooled())["two.weight"].note


def test_a_layer_of_zero_width() -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.none = nn.Linear(8, 8), nn.Linear(8, 1)
            self.none.weight = nn.Parameter(torch.empty(0, 8))
            self.none.bias = nn.Parameter(torch.empty(0))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.one(x), self.none(x)], -1)

    for inputs in (torch.randn(4, 8), None):
        found = rows(Empty(), inputs)
        assert found["none.weight"].rule == "left unchanged"
        assert "exact" in found["one.weight"].rule


# Doubts


def test_a_doubt_goes_through_activations_and_ends_at_a_norm() -> None:
    class Doubtful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(8, 8) for _ in range(3))
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(torch.cumsum(self.one(x), -1))
            output: Tensor = self.three(self.norm(self.two(x)))
            return output

    found = rows(Doubtful())
    assert "cumsum" in found["two.weight"].note
    assert not found["three.weight"].note


def test_a_batch_of_uneven_examples_is_noted() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))

    even = torch.randn(64, 32, generator=seeded())
    assert not any(row.note for row in rows(model(), even).values())
    uneven = even * torch.linspace(0.5, 1.5, 64).unsqueeze(1)
    assert all("halves of the batch" in row.note for row in rows(model(), uneven).values())
    few = uneven[::16]  # by chance they may differ as much
    assert not any("halves" in row.note for row in rows(model(), few).values())


def test_a_registered_rule_takes_the_place_of_a_doubt() -> None:
    class Tripled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = 3 * torch.fft.fft(x).real / 32**0.5
            return output

    model = nn.Sequential(nn.Linear(64, 64), Tripled(), nn.Linear(64, 64))

    @register_operation(Tripled)
    def tripled(step: Step) -> Signal:
        signal = step.first
        return Signal(
            variance=9 * signal.variance,
            first_order=9.0,
            sources=signal.sources,
            channels=signal.channels,
        )

    x = torch.randn(256, 64, generator=seeded(1))

    row = rows(model, x)["2.weight"]
    assert row.std == pytest.approx(1 / (3 * 8), rel=0.15)


def test_a_function_of_the_same_name_is_not_taken_for_torchs() -> None:
    def relu(x: Tensor) -> Tensor:
        return x.cumsum(-1)

    model = Between(relu)
    assert "cumsum" in rows(model)["last.weight"].note


def test_values_assigned_to_a_new_tensor_are_followed() -> None:
    def steps(x: Tensor) -> Tensor:
        collected = torch.zeros_like(x[:1]).expand(x.size(0), -1).clone()
        for index in range(x.size(0)):
            collected[index] = torch.relu(x[index])
        return collected

    found = rows(Between(steps), torch.randn(16, 64, generator=seeded(1)))
    assert "exact" in found["last.weight"].rule
    assert found["last.weight"].measured == pytest.approx(1, rel=0.26)


@pytest.mark.parametrize("given", ["inputs", "nothing"])
def test_a_weight_multiplied_by_hand_is_a_layer_either_way(given: str) -> None:
    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(64, 32))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x) @ self.weight

    x = torch.randn(256, 64, generator=seeded(1)) if given == "inputs" else None
    assert rows(ByHand(), x)["weight"].std == pytest.approx((64 * 0.5) ** -0.5, rel=0.1)


# Nothing is changed but the weights


class Recalls(nn.Module):
    """Initializes itself on first use, keeps statistics, counts its calls, keeps its input."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("seen", torch.zeros(()))
        self.is_ready, self.calls = False, 0
        self.history: list[int] = []
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.history.append(self.calls)
        self.seen += 1
        if not self.is_ready:
            self.scale.data.copy_(torch.full((8,), 0.5))
            self.is_ready = True
        self.kept = x
        return x * self.scale


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("lsuv", "inputs"),
        *[(method, given) for method in NAMES[:-1] for given in ("inputs", "shape", "nothing")],
    ],
)
def test_modules_with_a_memory_are_as_before(method: str, given: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Recalls(), nn.BatchNorm1d(8), nn.Linear(8, 8))
    module: Any = model[1]
    options: dict[str, dict[str, Any]] = {
        "inputs": {"inputs": torch.randn(16, 8)},
        "shape": {"input_shape": (8,)},
        "nothing": {},
    }
    state = torch.random.get_rng_state()
    initialize_(model, method=method, generator=seeded(), **options[given])
    assert (module.is_ready, module.calls, module.history, module.kept) == (False, 0, [], None)
    assert torch.equal(module.scale, torch.ones(8))
    assert module.seen == 0
    assert model[2].num_batches_tracked == 0
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("method", NAMES)
def test_a_first_layer_that_works_in_place_leaves_the_inputs(method: str) -> None:
    x = torch.randn(16, 8) - 1
    kept = x.clone()
    initialize_(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)), x, method)
    assert torch.equal(x, kept)


class FailsLater(nn.Module):
    """Runs a given number of times on a batch of 16."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.passes = passes

    def forward(self, x: Tensor) -> Tensor:
        COUNT[0] += len(x) == 16
        if COUNT[0] > self.passes:
            raise RuntimeError("no more")
        return x + x.mean()


COUNT = [0]
"""Outside of the module, whose own attributes are put back after each pass."""


@pytest.mark.parametrize(
    ("mode", "passes"), [("fan_in", 0), ("fan_in", 1), ("balanced", 1), ("balanced", 2)]
)
def test_an_error_in_any_pass_leaves_the_model_as_it_was(mode: str, passes: int) -> None:
    model = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), FailsLater(passes), nn.Linear(8, 8)
    )
    nn.init.constant_(model[1].weight, 3.0)  # type: ignore[arg-type]
    before = copy.deepcopy(model.state_dict())
    COUNT[0] = 0
    with pytest.raises((ValueError, RuntimeError), match="no more"):
        initialize_(model, torch.randn(16, 8), generator=seeded(), method=Exact(mode=mode))
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


# What a weight is


def test_attention_runs_as_its_linear_layers() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.Sequential(nn.Linear(16, 32), layer, nn.Linear(32, 8))
    x = torch.randn(16, 10, 16, generator=seeded(1))
    report = initialize_(model, x, generator=seeded())
    names = [row.layer for row in report.rows]
    assert names.count("1.self_attn.in_proj_weight") == 3
    assert "1.self_attn.out_proj.weight" in names
    assert not any("left" in row.rule for row in report.rows)
    assert all(row.measured == pytest.approx(row.predicted, rel=0.26) for row in report.rows)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", ["no", "bool", "float", "padding", "3d"])
def test_watched_attention_computes_what_the_module_computes(
    batch_first: bool, need_weights: bool, masked: str
) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    query, key = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    mask = torch.rand(5, 7) < 0.3
    mask[:, 0] = False
    options: dict[str, Any] = {
        "no": {},
        "bool": {"attn_mask": mask},
        "float": {"attn_mask": torch.randn(5, 7)},
        "padding": {"key_padding_mask": torch.arange(7).expand(3, 7) > 4},
        "3d": {"attn_mask": mask.expand(12, 5, 7)},
    }[masked]
    options["need_weights"] = need_weights
    with torch.no_grad():
        expected = module(query, key, key, **options)
    outputs: list[Any] = []
    inputs = {"query": query, "key": key, "value": key, **options}
    calls, _ = record(module, inputs, finish=outputs.append)
    found = outputs[0]
    assert "linear" in {call.operation for call in calls}
    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None)
    if need_weights:
        torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_keep_their_state_in_range(kind: Any) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = kind(32, 128, num_layers=2, batch_first=True)
            self.head = nn.Linear(128, 32)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.recurrent(x)[0][:, -1])
            return output

    model, x = Last(), 5 * torch.randn(64, 32, 32, generator=seeded(1))
    found = rows(model, x)
    assert not any("left" in row.rule for row in found.values())
    assert found["recurrent.weight_ih_l0"].std == pytest.approx((2 * 32 * 25) ** -0.5, rel=0.05)
    with torch.no_grad():
        hidden = model.recurrent(x)[0][:, -1]
    assert found["head.weight"].measured == pytest.approx(1, rel=0.25)
    assert 0.01 < hidden.square().mean() < 1
    assert not model.recurrent.bias_ih_l0.any()


def test_products_with_a_parameter_are_layers() -> None:
    class Products(nn.Module):
        """As GPT-2's Conv1D, a per-head einsum, and a matrix product with a transposed weight."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(16, 64))
            self.v = nn.Parameter(torch.randn(4, 32, 64))
            self.u = nn.Parameter(torch.randn(64, 32))
            self.bias = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.addmm(self.bias, x, self.w)
            h = torch.einsum("bd,hkd->bhk", torch.relu(h), self.v)
            return h @ self.u.T

    model, x = Products(), torch.randn(256, 16, generator=seeded(1))
    found = rows(model, x)
    assert {name: row.fan for name, row in found.items()} == {"w": 16, "v": 64, "u": 32}
    assert not model.bias.any()
    for row in found.values():
        assert row.measured == pytest.approx(row.predicted, rel=0.26)


class Standardized(nn.Conv2d):
    """Weights of mean zero and variance 1 / fan_in, whatever the parameter."""

    def forward(self, input: Tensor) -> Tensor:
        flat = self.weight.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True, correction=0)
        weight = (flat * flat.size(1) ** -0.5).view_as(self.weight)
        return F.conv2d(input, weight, self.bias, padding=self.padding)


class Equalized(nn.Linear):
    """A weight of unit variance, scaled at run time."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight * 0.01 + 0, self.bias)


def test_computed_weights_are_placed_by_what_the_parameter_does() -> None:
    convolution = nn.Sequential(Standardized(64, 64, 1), nn.ReLU(), Standardized(64, 64, 1))
    x = torch.randn(8, 64, 6, 6, generator=seeded(1))
    found = rows(convolution, x)
    assert [row.rule for row in found.values()] == ["exact fan_in"] * 2
    assert found["2.weight"].measured == pytest.approx(found["2.weight"].predicted, rel=0.3)
    scaled = nn.Sequential(Equalized(64, 64), nn.ReLU(), Equalized(64, 64))
    found = rows(scaled, torch.randn(64, 64, generator=seeded(1)))
    with torch.no_grad():
        assert scaled(torch.randn(64, 64, generator=seeded(2))).var() == pytest.approx(1, rel=0.4)
    assert scaled[0].weight.std().item() == pytest.approx(100 / 8, rel=0.2)  # type: ignore[operator]


def test_a_computed_weight_that_is_used_twice_is_set_once() -> None:
    shared = Equalized(64, 64)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    report = initialize_(model, torch.randn(64, 64, generator=seeded(1)), generator=seeded())
    assert [row.layer for row in report.rows] == ["0.weight"]


def test_parametrized_weights_are_named_by_their_parameter() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(8, 64))
    found = rows(nn.Sequential(module, nn.ReLU(), nn.Linear(64, 8)), torch.randn(32, 8))
    assert found["0.parametrizations.weight.original1"].rule == "exact fan_in"
    assert [*found] == ["0.parametrizations.weight.original1", "2.weight"]


class HandWritten(nn.Module):
    """RMSNorm as Llama and T5 have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("method", ["taylor", "exact", "msra"])
def test_a_norm_written_by_hand_is_understood(method: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), HandWritten(64), nn.Linear(64, 256))
    nn.init.constant_(model[0].weight, 0.0)  # type: ignore[arg-type]
    for options in ({"input_shape": (64,)}, {"inputs": 10 * torch.randn(64, 64)}):
        report = initialize_(
            model, method=METHODS[method](keep_zeros=False), generator=seeded(), **options
        )
        row = report.rows[-1]
        assert row.std == pytest.approx(1 / 8, rel=0.05)


def test_layers_in_and_after_vmap_and_scripted_parts() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.three(torch.vmap(lambda v: self.two(torch.relu(v)))(self.one(x)))
            return output

    assert all("exact" in row.rule for row in rows(Mapped(), torch.randn(16, 8)).values())


@pytest.mark.filterwarnings("ignore:DTensor random operators")
def test_sharded_parameters_are_set(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = nn.Sequential(nn.Linear(8, 64), MPELU(64), nn.Linear(64, 4))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        found = rows(model, torch.randn(32, 8))
        assert all("exact" in row.rule for row in found.values())
        weight: Any = model[2].weight
        assert weight.full_tensor().std().item() == pytest.approx(found["2.weight"].std, rel=0.2)
    finally:
        torch.distributed.destroy_process_group()


# Shapes alone


def test_shapes_alone_know_what_padding_and_pooling_take() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 8),
    )  # fmt: skip
    found = rows(model, None, input_shape=(3, 6, 6))
    assert found["0.weight"].std == pytest.approx((27 * (16 / 18) ** 2) ** -0.5, rel=1e-6)
    mean, variance = (2 * math.pi) ** -0.5, 0.5 - 1 / (2 * math.pi)
    second = mean**2 + variance / 36
    assert found["4.weight"].std == pytest.approx((64 * second) ** -0.5, rel=1e-3)


def test_shapes_of_several_inputs_and_of_tokens() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 8), nn.Linear(6, 8)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            if a.size(0) > 100:
                raise ValueError("too many")
            output: Tensor = self.one(a) + self.two(b)
            return output

    assert len(rows(Two(), None, input_shape=((4,), (6,)))) == 2
    words = nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 8))
    assert rows(words, None, input_shape=(5,))["1.weight"].feed == "embedding"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_shape": (7,)}, r"the model can't run on input_shape \(7,\)"),
        ({"input_shape": (8,), "inputs": torch.zeros(2, 8)}, "got both"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message) as raised:
        initialize_(model, **options)
    assert "\n" not in str(raised.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_gaussian_weights_have_the_deviation_that_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    row = initialize_(model, method=Gaussian(std=0.05), generator=seeded()).rows[0]
    assert row.std == 0.05
    expected = torch.empty(64, 64).normal_(0, 0.01, generator=seeded()) * (0.05 / 0.01)
    assert torch.equal(model[0].weight, expected)  # type: ignore[arg-type]


# Signal and gradient


def test_balanced_mode_brings_gradients_before_norms_near_the_last() -> None:
    def network() -> nn.Sequential:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for before in (3, *[32] * 27):
            layers += [nn.Conv2d(before, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def ratio(model: nn.Sequential, x: Tensor) -> float:
        direction = torch.randn(64, 10, generator=seeded(3))
        (model(x) * direction).sum().backward()
        first, last = model[0].weight.grad, model[-1].weight.grad
        assert isinstance(first, Tensor)
        assert isinstance(last, Tensor)
        return float(first.norm() / last.norm())

    x, fresh = (torch.randn(64, 3, 12, 12, generator=seeded(seed)) for seed in (1, 2))
    ratios = {}
    for mode in ("fan_in", "balanced"):
        model = network()
        report = initialize_(model, x, generator=seeded(), method=Exact(mode=mode))
        ratios[mode] = ratio(model, fresh)
        assert report.rows[-1].measured == pytest.approx(1, rel=0.26)
    assert ratios["fan_in"] > 10
    assert 0.1 < ratios["balanced"] < 10


def test_two_passes_and_three_in_balanced_mode() -> None:
    counted = [0]
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
    model.register_forward_hook(lambda *_: counted.__setitem__(0, counted[0] + 1))
    for mode, passes in (("fan_in", 2), ("balanced", 3)):
        counted[0] = 0
        initialize_(model, torch.randn(16, 8), method=Exact(mode=mode))
        assert counted[0] == passes


def test_lsuv_restores_the_model_where_the_walk_fails() -> None:
    model = Between(lambda h: h.reshape(3, 5, 7))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the model can't run on inputs"):
        initialize_(model, torch.randn(4, 64), "lsuv")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


MEMORY = """
import torch
from torch import nn
from mpelu.init import initialize_

def kilobytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

def network(width):
    blocks = (nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())
    frozen = nn.Linear(width, width).requires_grad_(False)
    more = (part for _ in range(20) for part in (nn.Linear(width, width), nn.LayerNorm(width)))
    return nn.Sequential(frozen, *blocks, *more, nn.Linear(width, 4))

initialize_(network(16), torch.randn(1, 16))
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak counts from here
before = kilobytes("VmRSS")
model = network(1024)
size = sum(parameter.nbytes for parameter in model.parameters()) / 1024
initialize_(model, torch.randn(1, 1024))
print((kilobytes("VmHWM") - before) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_inputs_take_one_copy_of_the_model() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2.7  # 2.2 to 2.5 with the allocator's slack; 3.3 with two copies


class CountingNorm(nn.BatchNorm2d):
    """A norm whose own code counts its batches, with an activation inside, as timm has them."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()
        self.seen: list[str] = []

    def forward(self, input: Tensor) -> Tensor:
        assert self.num_batches_tracked is not None
        if self.training:
            self.num_batches_tracked.add_(1)
        self.seen.append("batch")
        return self.act(torch.batch_norm(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.running_mean, self.running_var,
            self.training, 0.1, self.eps, False,
        ))  # fmt: skip


class ChangesItself(nn.Module):
    """Changes all that a forward can, before torch.fx meets what it can't trace."""

    def __init__(self, traceable: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = CountingNorm(4)
        self.head = nn.Conv2d(4, 2, 1)
        self.traceable = traceable

    def forward(self, input: Tensor) -> Tensor:
        self.conv.weight.data.clamp_(-0.01, 0.01)
        with torch.no_grad():
            self.head.weight.mul_(2)
        self.head.register_forward_hook(lambda *_: None)
        self.head.eval()
        hidden: Tensor = self.norm(self.conv(input))
        if not self.traceable and hidden.shape[2] > 4:
            hidden = hidden[:, :, :4]
        result: Tensor = self.head(hidden)
        return result


@pytest.mark.parametrize("traceable", [False, True])
def test_a_trace_leaves_the_model_as_it_was(traceable: bool) -> None:
    model = ChangesItself(traceable)
    before = copy.deepcopy(model.state_dict())
    if traceable:
        trace(model)
    else:
        with pytest.raises(ValueError, match=r"torch\.fx"):
            initialize_(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(part.training for part in model.modules())
    assert model.norm.seen == []
    assert not model.head._forward_hooks


def test_shapes_put_together_from_unknown_sizes_are_no_signals() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, input: Tensor) -> Tensor:
            hidden = torch.relu(self.first(input))
            size = hidden.shape[:-1] + (2, 4)  # noqa: RUF005  (an unknown shape can't be unpacked)
            result: Tensor = self.last(hidden.view(size).flatten(-2))
            return result

    report = initialize_(Windows())
    assert [row.layer for row in report.rows] == ["first.weight", "last.weight"]
    assert report.rows[1].std == pytest.approx((2 / 8) ** 0.5)
