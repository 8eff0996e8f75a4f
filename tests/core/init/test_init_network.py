"""A whole network at one call: what feeds what, predicted against measured variances, the rest."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpelu import MPELU, functional, init
from mpelu.init import initialize_

METHODS = ["taylor", "exact", "msra", "xavier", "gaussian", "lsuv"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(depth: int, width: int, alpha: float = 1.0, beta: float = 1.0) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range(depth - 1):
        layers += [MPELU(width, alpha, beta), nn.Linear(width, width)]
    return nn.Sequential(*layers)


def circular(before: int, after: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    """A convolution without the losses of zero padding."""
    return nn.Conv2d(before, after, kernel, padding=kernel // 2, padding_mode="circular", **options)


class Block(nn.Module):
    """shortcut + branch, then `after`."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.after = branch, shortcut, after

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.after(self.branch(x) + self.shortcut(x))
        return output


class Untraceable(nn.Module):
    """Control flow on values, which torch.fx cannot follow."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.activation = MPELU(width, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum() > 1e30:
            return x
        output: Tensor = self.second(self.activation(x))
        return output


def rows(model: nn.Module, inputs: Any = None, method: Any = "taylor", **options: Any) -> Any:
    report = initialize_(model, inputs, method, generator=seeded(), **options)
    return {row.layer: row for row in report.rows}


def variances(model: nn.Module, x: Tensor, kinds: type | tuple[type, ...]) -> list[float]:
    """Variance of what enters each module of the kinds."""
    found: list[float] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args: found.append(args[0].var().item()))
        for module in model.modules()
        if isinstance(module, kinds)
    ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


# Numbers


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.25, 1.0), (98.0, 0.01), (3.0, 0.5)])
def test_exact_keeps_the_variance_of_a_deep_plain_network(alpha: float, beta: float) -> None:
    depth, width, seeds = 100, 128, 4
    logs = torch.zeros(depth - 1)
    for seed in range(seeds):
        model = plain(depth, width, alpha, beta)
        initialize_(model, method="exact", generator=seeded(seed))
        x = torch.randn(32, width, generator=seeded(100 + seed))
        logs += torch.tensor(variances(model, x, MPELU)).log() / seeds
    # A quarter of the width of the benchmark and half its seeds, so three times its noise on a
    # logarithmic scale.
    assert logs.min() > 3 * math.log(0.4)
    assert logs.max() < 3 * math.log(2)


def test_taylor_lets_it_drift_as_predicted() -> None:
    model = plain(100, 512)
    x = torch.randn(64, 512, generator=seeded(1))
    last = initialize_(model, x, "taylor", generator=seeded()).rows[-1]
    assert last.predicted == pytest.approx(6.8e-4, rel=0.02)
    assert last.measured == pytest.approx(last.predicted, rel=0.6)


@pytest.mark.parametrize("method", METHODS)
def test_prediction_agrees_with_measurement(method: str) -> None:
    model = nn.Sequential(
        circular(3, 96),
        nn.BatchNorm2d(96),
        MPELU(96, torch.linspace(0, 3, 96), torch.linspace(0.1, 2, 96)),
        circular(96, 96, groups=4),
        nn.SiLU(),
        circular(96, 128, 1),
        nn.Dropout(0.5),
        nn.PReLU(128),
        nn.ConvTranspose2d(128, 96, 2, stride=2),
        nn.ELU(),
        nn.Conv2d(96, 128, 3),
    )
    x = 2 + torch.randn(16, 3, 10, 10, generator=seeded(1))
    for row in initialize_(model, x, method, generator=seeded()).rows:
        assert row.measured == pytest.approx(row.predicted, rel=0.25), row.layer
        if method == "exact":
            assert row.predicted == pytest.approx(1)


@pytest.mark.parametrize("kind", ["nopre", "pre", "post", "post relu", "projection"])
def test_exact_holds_the_variance_at_residual_sums(kind: str) -> None:
    width, depth = 128, 12

    def branch() -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, width), MPELU(), nn.Linear(width, width))

    blocks = {
        "nopre": lambda: Block(branch(), nn.Identity(), nn.Identity()),
        "pre": lambda: Block(nn.Sequential(MPELU(), branch()), nn.Identity(), nn.Identity()),
        "post": lambda: Block(branch(), nn.Identity(), MPELU()),
        "post relu": lambda: Block(branch(), nn.Identity(), nn.ReLU()),
        "projection": lambda: Block(branch(), nn.Linear(width, width), MPELU()),
    }
    model = nn.Sequential(
        nn.Linear(32, width), *[blocks[kind]() for _ in range(depth)], MPELU(), nn.Linear(width, 9)
    )
    x = torch.randn(512, 32, generator=seeded(1))
    report = initialize_(model, x, "exact", generator=seeded())
    entering = variances(model, x, (MPELU, nn.ReLU))
    # Identity shortcuts can only add, so a chain of them ends at twice the target. An activation
    # on the sum makes it ever less Gaussian, which the prediction takes it to be.
    limit, accuracy = {"projection": (1.5, 0.35), "nopre": (2.4, 0.35), "pre": (2.4, 0.35)}.get(
        kind, (2.4, 0.9)
    )
    assert min(entering) > 0.5
    assert max(entering) < limit
    for row in report.rows[:-1]:
        assert row.measured == pytest.approx(row.predicted, rel=accuracy), row.layer


def test_sums_after_batch_norm_grow_and_the_next_layer_knows() -> None:
    width = 128

    def block() -> Block:
        branch = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
        return Block(branch, nn.Identity(), nn.Identity())

    model = nn.Sequential(nn.Linear(width, width), *[block() for _ in range(4)])
    x = torch.randn(512, width, generator=seeded(1))
    stds = [row.std for row in initialize_(model, x, "exact", generator=seeded()).rows[1:]]
    expected = [1 / math.sqrt(width * (1 + added)) for added in range(4)]
    assert stds == pytest.approx(expected, rel=1e-6)
    for row in initialize_(model, x, "exact", generator=seeded()).rows:
        assert row.measured == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "average"])
def test_modes(mode: str) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    n = {"fan_in": 256, "fan_out": 64, "average": 160}[mode]
    for method in ("taylor", "exact", "msra"):
        row = rows(model, None, init.METHODS[method](mode=mode))["2.weight"]  # type: ignore[call-arg]
        assert row.fan == n
    assert rows(model, None, init.Taylor(mode=mode))["2.weight"].std == pytest.approx(
        (2 / n) ** 0.5
    )
    first, last = initialize_(model, method=init.Exact(mode=mode)).rows
    assert first.predicted == pytest.approx(64 / {"fan_in": 64, "fan_out": 256}.get(mode, 160))
    assert last.predicted == pytest.approx(256 / n)


def test_max_pooling_counts() -> None:
    model = nn.Sequential(
        nn.Conv2d(256, 256, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(256, 256, 1)
    )
    x = torch.randn(8, 256, 8, 8, generator=seeded(1))
    assert rows(model, x, "exact")["3.weight"].measured == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("padding", [1, "same"])
def test_zero_padding_counts(padding: int | str) -> None:
    layers: list[nn.Module] = [nn.Conv2d(64, 64, 3, padding=padding)]
    for _ in range(29):
        layers += [MPELU(64, 98.0, 0.01), nn.Conv2d(64, 64, 3, padding=padding)]
    model, x = nn.Sequential(*layers), torch.randn(16, 64, 6, 6, generator=seeded(1))
    found = initialize_(model, x, "exact", generator=seeded()).rows
    assert all(row.measured is not None and 0.5 < row.measured < 2 for row in found)
    # Without the shapes a tenth of the signal is lost at each layer.
    initialize_(model, None, "exact", generator=seeded())
    with torch.no_grad():
        assert model(x).var() < 0.1


def test_padding_by_hand() -> None:
    # Six positions, a kernel of three: the outer two lack one tap each.
    convolution = nn.Conv1d(4, 512, 3, padding=1)
    row = rows(nn.Sequential(convolution), torch.randn(512, 4, 6, generator=seeded(1)), "exact")
    assert row["0.weight"].std == pytest.approx((4 * 16 / 6) ** -0.5, rel=0.02)


def test_input_moments_count() -> None:
    model = nn.Sequential(nn.Linear(64, 512))
    x = 5 + 2 * torch.randn(256, 64, generator=seeded(1))
    row = rows(model, x, "exact")["0.weight"]
    assert row.std == pytest.approx(1 / math.sqrt(64 * 29), rel=0.02)
    assert row.measured == pytest.approx(1, rel=0.2)


# What feeds what


class Branching(nn.Module):
    """Concatenation, pooling, functional calls, reshapes and a parameter used directly."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.one = MPELU(8, 0.5, 2.0)
        self.left, self.right = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)
        self.joined = nn.Conv2d(12, 6, 1)
        self.weight = nn.Parameter(torch.empty(6, 6, 1, 1))
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.stem(x))
        left, right = (
            F.elu(self.left(x), 0.3),
            functional.mpelu(self.right(x), torch.tensor([2.0]), torch.tensor([0.5])),
        )
        x = torch.cat([left, right], 1)
        x = self.joined(F.dropout(x, 0.5, self.training))
        x = F.conv2d(F.max_pool2d(F.relu(x), 2), self.weight)
        x = F.adaptive_avg_pool2d(torch.tanh(x), 2)
        output: Tensor = self.head(torch.flatten(x, 1))
        return output


@pytest.mark.parametrize("with_inputs", [True, False])
def test_feeding_activations(with_inputs: bool) -> None:
    found = rows(Branching(), torch.randn(16, 3, 8, 8) if with_inputs else None, "taylor")
    assert [row.feed for row in found.values()] == [
        "input",
        "one (MPELU)",
        "one (MPELU)",
        "elu + mpelu",
        "relu",
        "tanh",
    ]
    assert found["left.weight"].alpha == 0.5
    assert found["left.weight"].beta == 2.0
    # Eight channels of ELU with slope 0.3 and four of MPELU with slope 1.
    factor = (8 * (1 + 0.09) + 4 * 2) / 12 / 2
    if with_inputs:  # some of these small weights are scaled by measurement
        assert not any(row.note for row in found.values())
        return
    assert [bool(row.note) for row in found.values()] == [False] * 4 + [True] * 2  # after pooling
    assert found["joined.weight"].std == pytest.approx((12 * factor) ** -0.5)
    assert found["weight"].std == pytest.approx(math.sqrt(2 / 6))
    assert found["head.weight"].std == pytest.approx(math.sqrt(1 / 24), rel=1e-5)


def test_channel_wise_parameters_reach_a_flattened_layer() -> None:
    alpha = torch.tensor([0.0, 1.0])
    model = nn.Sequential(nn.Conv2d(3, 2, 1), MPELU(2, alpha), nn.Flatten(), nn.Linear(18, 64))
    row = rows(model)["3.weight"]
    assert row.alpha == [0.0, 1.0]
    assert row.std == pytest.approx(math.sqrt(2 / (18 * 1.5)))


@pytest.mark.parametrize("with_inputs", [True, False])
def test_zero_channels_of_a_shortcut_count(with_inputs: bool) -> None:
    class Widened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(64, 64, 1), nn.Conv2d(96, 512, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.first(x))[:, :, ::2, ::2]
            output: Tensor = self.last(F.pad(x, (0, 0, 0, 0, 0, 32)))
            return output

    x = torch.randn(32, 64, 4, 4, generator=seeded(1)) if with_inputs else None
    row = rows(Widened(), x, "exact")["last.weight"]
    assert row.feed == "relu"
    assert row.std == pytest.approx((64 * 0.5) ** -0.5, rel=1e-6)


def test_each_group_has_its_own_deviation() -> None:
    model: Any = nn.Sequential(
        nn.Conv1d(4, 4, 1),
        MPELU(4, torch.tensor([0.0, 0.0, 3.0, 3.0])),
        nn.Conv1d(4, 800, 5, groups=2),
    )
    initialize_(model, method="taylor", generator=seeded())
    first, second = model[2].weight.std(dim=(1, 2)).square().view(2, -1).mean(1).sqrt().tolist()
    assert first == pytest.approx(math.sqrt(2 / 10), rel=0.1)
    assert second == pytest.approx(math.sqrt(2 / 100), rel=0.1)


@pytest.mark.parametrize("with_inputs", [True, False])
def test_own_activations_are_integrated(with_inputs: bool) -> None:
    class Swish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.beta = nn.Parameter(torch.linspace(0.5, 2, 64))

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(self.beta * x)

    model = nn.Sequential(nn.Linear(64, 64), Swish(), nn.Linear(64, 512))
    x = torch.randn(256, 64, generator=seeded(1))
    row = rows(model, x if with_inputs else None, "exact")["2.weight"]
    assert row.feed == "1 (Swish)"
    with torch.no_grad():
        assert model(x).var().item() == pytest.approx(1, rel=0.2)


def test_untraceable_models_need_inputs_and_then_work() -> None:
    model = Untraceable()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"torch\.fx can't trace requires inputs or input_shape"):
        initialize_(model)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    found = rows(model, torch.randn(8, 64))
    assert found["second.weight"].feed == "activation (MPELU)"


def test_modules_with_control_flow_and_nothing_to_set_are_passed_through() -> None:
    class Checked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.size(1) != 16:
                raise ValueError("sixteen features, please")
            return x

    model = nn.Sequential(Checked(), nn.Linear(16, 8))
    assert "assumed to pass its input on" in rows(model)["1.weight"].note
    assert not rows(model, torch.randn(16, 16))["1.weight"].note


def test_what_is_not_understood_is_said() -> None:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 16)
            self.query, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
            self.unused = nn.Linear(16, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.query(self.embedding(tokens))
            output: Tensor = self.out(torch.cumsum(x, -1))
            return output

    model = Summed()
    kept = {name: value.clone() for name, value in model.named_parameters()}
    report = initialize_(model, input_shape=(5,))
    found = {row.layer: row for row in report.rows}
    assert "assumed to be independent" in found["out.weight"].note
    for name in ("embedding.weight", "unused.weight"):
        assert found[name].rule == "left unchanged"
        assert torch.equal(kept[name], model.get_parameter(name))
        assert name in str(report)
    assert not torch.equal(kept["out.weight"], model.out.weight)


@pytest.mark.parametrize("with_inputs", [True, False])
def test_layers_that_training_drops_by_chance_are_reached(with_inputs: bool) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x if self.training else x + self.branch(x)

    model = nn.Sequential(nn.Linear(8, 8), Dropped())
    report = initialize_(model, torch.randn(4, 8) if with_inputs else None)
    assert all(row.rule.startswith("exact fan_in") for row in report.rows)
    assert model[1].training


@pytest.mark.parametrize("with_inputs", [True, False])
def test_arithmetic_with_numbers(with_inputs: bool) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 256), nn.Linear(256, 256)

        def forward(self, x: Tensor) -> Tensor:
            x = 1 - 2 * self.one(x) / 4
            output: Tensor = self.two(x - 0.5)
            return output

    model, x = Gated(), torch.randn(256, 64, generator=seeded(1))
    row = rows(model, x if with_inputs else None, "exact")["two.weight"]
    assert row.feed == "linear"
    assert row.std == pytest.approx((256 * (0.25 + 0.25)) ** -0.5, rel=0.02)
    with torch.no_grad():
        assert model(x).var().item() == pytest.approx(1, rel=0.2)


# Care for the model


def test_biases_norms_and_activations() -> None:
    model: Any = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), MPELU(8, 0.3, 0.7), nn.Linear(8, 2)
    )
    for parameter in model.parameters():
        nn.init.uniform_(parameter, 0.2, 0.9)
    model[1].running_mean.fill_(3)
    alpha = model[2].alpha.clone()
    initialize_(model, torch.randn(16, 8))
    assert not model[0].bias.any()
    assert torch.equal(model[1].weight, torch.ones(8))
    assert not model[1].bias.any()
    assert not model[1].running_mean.any()
    assert model[1].num_batches_tracked == 0
    assert torch.equal(model[2].alpha, alpha)


def test_frozen_parts_stay() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), MPELU(64), nn.Linear(64, 256), nn.Linear(256, 64)
    )
    nn.init.normal_(model[0].weight, std=0.4)
    for module in (model[0], model[1]):
        module.requires_grad_(False)
    nn.init.constant_(model[1].weight, 2.0)
    model[3].bias.requires_grad_(False)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    found = rows(model, torch.randn(512, 64, generator=seeded(1)), "exact")
    for name in ("0.weight", "0.bias", "1.weight", "1.running_mean", "3.bias"):
        assert torch.equal(kept[name], model.state_dict()[name])
    assert found["0.weight"].rule == "frozen"
    assert found["0.weight"].measured == pytest.approx(found["0.weight"].predicted, rel=0.1)
    assert found["3.weight"].measured == pytest.approx(1, rel=0.15)


def test_tied_weights_are_set_once() -> None:
    model: Any = nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
    )
    model[4].weight = model[2].weight
    report = initialize_(model, generator=seeded())
    assert [row.layer for row in report.rows] == ["0.weight", "2.weight"]
    assert model[4].weight is model[2].weight
    fresh = torch.empty(8, 8)
    generator = seeded()
    fresh.normal_(generator=generator)
    expected = init.taylor_normal_(fresh, alpha=0.0, generator=generator)
    assert torch.equal(model[2].weight, expected)


def test_several_inputs_positional_and_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            output: Tensor = self.c(torch.relu(self.a(one) + self.b(two)))
            return output

    one, two = torch.randn(5, 4), torch.randn(5, 6)
    for inputs in ((one, two), {"two": two, "one": one}, None):
        assert [row.feed for row in initialize_(Two(), inputs).rows] == ["input", "input", "relu"]


def test_mode_hooks_and_gradients_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 8))
    model[1].eval()
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    for method in METHODS:
        initialize_(model, torch.randn(16, 8), method)
        assert [module.training for module in model] == [True, False, True, True]
        assert all("forward" not in module.__dict__ for module in model.modules())
        assert all(p.requires_grad and p.grad is None for p in model.parameters())
    count = len(calls)
    model(torch.randn(4, 8))
    assert len(calls) == count + 1


def test_the_same_generator_gives_the_same_weights() -> None:
    one, two, x = plain(5, 16), plain(5, 16), torch.randn(8, 16)
    for model in (one, two):
        initialize_(model, x, "exact", generator=seeded(3))
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)


def test_compiled_models() -> None:
    inner = plain(3, 16)
    compiled: Any = torch.compile(inner, backend="eager")
    for inputs in (torch.randn(8, 16), None):
        report = initialize_(compiled, inputs)
        assert [row.feed for row in report.rows] == ["input", "1 (MPELU)", "3 (MPELU)"]
    inner.compile(backend="eager")
    assert initialize_(inner, torch.randn(8, 16)).rows[1].measured is not None


def test_distributed_models(tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(plain(3, 16))
        for inputs in (torch.randn(8, 16), None):
            assert initialize_(model, inputs).rows[1].layer == "2.weight"
    finally:
        torch.distributed.destroy_process_group()


def test_deep_models_need_no_deep_stack() -> None:
    model = plain(1500, 2)
    assert len(initialize_(model, method="exact").rows) == 1500
    assert len(initialize_(model, torch.randn(2, 2), method="exact").rows) == 1500


def test_report() -> None:
    torch.manual_seed(0)
    report = initialize_(plain(3, 16), torch.randn(512, 16), "exact")
    lines = str(report).splitlines()
    assert lines[0].startswith("exact fan_in: 3 weights set")
    assert lines[1].split()[:3] == ["layer", "fed", "by"]
    assert len({line.index("  ") for line in lines[2:5]}) <= 2
    plain_data = json.loads(json.dumps(report.to_dict()))
    assert plain_data["rows"][1]["alpha"] == 1.0
    assert plain_data["rows"][1]["rule"].startswith("exact fan_in")
    assert plain_data["rule"] == "exact fan_in"


class Long(nn.Module):
    """Many blocks with long names, each with a convolution whose scale is its own."""

    def __init__(self) -> None:
        super().__init__()
        block = "a_block_whose_name_is_so_long_that_no_table_has_room_for_it_in_its_first_column"
        for index in range(60):
            self.add_module(f"{block}_{index}", Scaled())

    def forward(self, x: Tensor) -> Tensor:
        for block in self.children():
            x = F.gelu(block(x))
        return x


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.table = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.weight, dim=1)) + self.table.sum() * 0


@pytest.mark.parametrize("method", ["exact", "deep", "lsuv"])
def test_a_long_report_is_short_and_narrow(method: str) -> None:
    report = initialize_(Long(), torch.randn(64, 16), method=method)
    lines = str(report).splitlines()
    assert len(lines) < 50
    assert all(len(line) <= 100 for line in lines)
    assert "set" in lines[0]
    # A note that all weights have is there once, with their number.
    [said] = [line for line in lines if "not as the weight of a layer" in line]
    assert said.startswith("60 weights: ")
    details = report.details().splitlines()
    assert all(len(line) <= 100 for line in details)
    assert sum("0.weight" in line or line.endswith("weight") for line in details) >= 6
    assert len(details) > 2 * 60
    assert len([line for line in details if "not as the weight of a layer" in line]) == 60


def test_the_parts_of_an_attentions_weight_have_names() -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    report = initialize_(model, torch.randn(8, 5, 16))
    parts = [row for row in report.rows if row.layer == "self_attn.in_proj_weight"]
    assert [row.part for row in parts] == ["q", "k", "v"]
    assert "self_attn.in_proj_weight (k)" in str(report)


def test_steps_of_a_computation_are_not_named_beside_what_a_reader_knows() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            h = F.silu(self.one(x))
            output: Tensor = self.two(h + h / (h + 1e3 * (h == 0)))
            return output

    report = initialize_(Steps(), torch.randn(64, 16))
    assert report.rows[1].feed == "silu + other"
    assert "eq" not in str(report).splitlines()[3]


def test_a_note_that_a_measurement_settles_is_left_out_whatever_it_says() -> None:
    class Said(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1

    @init.register_operation(Said)
    def _said(step: init.Step) -> init.Signal:
        note = init.Note("fed by said, whose weight a hook computes")
        return replace(step.first, doubts=(note,))

    model = nn.Sequential(nn.Linear(64, 64), Said(), nn.Linear(64, 64))
    assert "whose weight" in initialize_(model).rows[1].note
    assert not initialize_(model, torch.randn(256, 64)).rows[1].note


# Errors


def _nan_batch() -> Tensor:
    return torch.full((4, 8), math.nan)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (None, {"method": "kaiming"}, "one of"),
        (None, {"method": "lsuv"}, "lsuv requires inputs"),
        (torch.zeros(4, 7), {}, r"on inputs of shapes \[\[4, 7\]\]"),
        (torch.zeros(4, 7), {"method": "lsuv"}, r"on inputs of shapes \[\[4, 7\]\]"),
        ((torch.zeros(4, 8), torch.zeros(1)), {}, "the model can't run on inputs"),
        (torch.zeros(1, 8), {}, "more than 1 value per channel"),
        (_nan_batch(), {}, "expected finite inputs"),
        (_nan_batch(), {"method": "lsuv"}, "expected finite inputs"),
        ((), {}, "expected tensors as inputs"),
    ],
)
def test_errors_come_before_changes(inputs: Any, options: dict[str, Any], message: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), MPELU(8), nn.Linear(8, 8))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message) as raised:
        initialize_(model, inputs, **options)
    assert "\n" not in str(raised.value)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.Sequential(MPELU(), nn.ReLU()), ValueError, "has no weights"),
        (nn.Linear(2, 2, device="meta"), ValueError, "on the meta device"),
        (nn.LazyLinear(2), ValueError, "lazy"),
        ("model", TypeError, "got str"),
    ],
)
@pytest.mark.parametrize("method", ["taylor", "lsuv"])
def test_bad_models(model: Any, error: type[Exception], message: str, method: str) -> None:
    with pytest.raises(error, match=message):
        initialize_(model, torch.zeros(2, 2), method)


# Scales that no weight can have


class Inverse(nn.Module):
    """Attention by Newton's iteration for a matrix inverse: products of many signals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2) / 8, -1)
        inverse = scores.transpose(-1, -2) / (scores.sum(-2).max() * scores.sum(-1).max())
        one = torch.eye(x.size(-2))
        for _ in range(10):
            both = scores @ inverse
            inverse = 0.25 * inverse @ (13 * one - both @ (15 * one - both @ (7 * one - both)))
        output: Tensor = self.out(inverse @ self.value(x))
        return output


@pytest.mark.parametrize("method", ["exact", "taylor"])
@pytest.mark.parametrize("given", ["inputs", "shape"])
def test_a_prediction_gone_astray_makes_no_weight_vanish(given: str, method: str) -> None:
    model = nn.Sequential(Inverse(32), nn.ReLU(), nn.Linear(32, 8))
    x = torch.randn(16, 16, 32)
    report = (
        initialize_(model, x) if given == "inputs" else initialize_(model, input_shape=(16, 32))
    )
    assert all(1e-3 < row.std < 10 for row in report.rows)
    if given == "inputs":
        assert all(row.measured == pytest.approx(1, rel=0.3) for row in report.rows)
    if given == "shape":
        assert any("what feeds it couldn't be predicted" in row.note for row in report.rows)
    model(x).sum().backward()
    for weight in model.parameters():
        assert weight.grad is not None
        assert weight.dim() == 1 or weight.grad.any()


@pytest.mark.parametrize("method", ["exact", "taylor", "critical"])
@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (1e30, torch.float32), (1e38, torch.float32), (1e-38, torch.float32),
        (1e38, torch.bfloat16), (6e4, torch.float16), (1e-7, torch.float16),
        (1e100, torch.float64),
    ],
)  # fmt: skip
def test_weights_stay_in_the_range_of_their_type(
    scale: float, dtype: torch.dtype, method: str
) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(dtype)
    x = (torch.randn(64, 64, dtype=torch.float64).clamp(-1, 1) * scale).to(dtype)
    report = initialize_(model, x, method=method)
    for row in report.rows:
        weight = model.get_parameter(row.layer)
        assert weight.isfinite().all()
        assert weight.double().std().item() > 1e-30
        assert weight.double().unique().numel() > 8
    first = report.rows[0]
    if "out of the range of its type" not in first.note:
        assert first.measured == pytest.approx(first.predicted, rel=0.5)


# Few outputs


def relu_mlp(outputs: int, depth: int = 20, width: int = 128) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(depth - 1):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, outputs))


@pytest.mark.parametrize("method", ["exact", "taylor", "critical", "lsuv"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_mean_of_few_outputs_does_not_explode(outputs: int, method: str) -> None:
    squares, stds = [], []
    for seed in range(9):
        torch.manual_seed(seed)
        model = relu_mlp(outputs)
        report = initialize_(model, torch.randn(256, 128), method=method)
        with torch.no_grad():
            squares.append(model(torch.randn(1024, 128)).square().mean().item())
        head: Any = model[-1]
        stds.append(head.weight.std().item())
        assert report.rows[-1].measured == pytest.approx(squares[-1], rel=0.5)
    assert sorted(squares)[4] < 2
    if method != "lsuv":
        # E[x^2] before the head is one half.
        assert all(0.7 < std / (2 / 128) ** 0.5 < 1.4 for std in stds)


@pytest.mark.parametrize("outputs", [1, 2])
def test_few_samples_of_few_outputs_are_noted(outputs: int) -> None:
    few = initialize_(relu_mlp(outputs, depth=2), torch.randn(8, 128)).rows[-1]
    assert "too few values to judge" in few.note
    many = initialize_(relu_mlp(outputs, depth=2), torch.randn(256, 128)).rows[-1]
    assert "too few values to judge" not in many.note


def test_a_weight_of_one_element_is_scaled() -> None:
    report = initialize_(
        nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)), 3 + torch.rand(64, 1)
    )
    assert all(row.measured is not None and row.measured < 30 for row in report.rows)


def test_a_mean_that_all_samples_share_is_noted() -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        report = initialize_(relu_mlp(1), torch.randn(256, 128))
        assert "the mean square was measured" in report.rows[-1].note
        assert not report.rows[-2].note


def test_a_weight_by_hand_with_one_output_is_scaled_by_what_feeds_it() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(128, 1))

        def forward(self, x: Tensor) -> Tensor:
            # No rule predicts the sums.
            output: Tensor = torch.matmul(input=x.cumsum(1), other=self.weight)
            return output

    report = initialize_(nn.Sequential(nn.Linear(64, 128), Head()), torch.randn(256, 64))
    # The mean square of a sum of i values of variance one is i.
    assert report.rows[-1].std == pytest.approx((128 * 64.5) ** -0.5, rel=0.3)


@pytest.mark.parametrize("actions", [1, 2])
def test_a_head_of_few_actions_on_frames_trains_where_the_start_of_torch_does(actions: int) -> None:
    """Frames are alike: a dark background with a bright square."""

    def losses(initialized: bool) -> list[float]:
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(1)
        frames = torch.full((32, 4, 84, 84), 40, dtype=torch.uint8)
        places = torch.randint(8, 68, (32, 2), generator=generator).tolist()
        for frame, (row, column) in zip(frames, places, strict=True):
            frame[:, row : row + 8, column : column + 8] = 236
        x = frames / 255
        model = nn.Sequential(
            nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(),
            nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 128), nn.ReLU(),
            nn.Linear(128, actions),
        )  # fmt: skip
        if initialized:
            initialize_(model, x)
        target = torch.randn(32, actions, generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        found = []
        for _ in range(30):
            loss = (model(x) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    for each in (losses(False), losses(True)):
        assert each[-1] < each[0]
