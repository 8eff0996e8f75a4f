"""Orthogonal weights, the critical rule, shapes by depth, "deep", and its rival TAT."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mpelu
from mpelu import models, theory
from mpelu.init import METHODS, Critical, Deep, Exact, Gaussian, Taylor, initialize_
from research import tailoring


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(depth: int, width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), mpelu.MPELU(width)]
    return nn.Sequential(*layers[:-1])


def variances(model: nn.Sequential, input: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Of the output of every linear layer and of the gradient there, for a random loss."""
    outputs, signal = [], input
    for module in model:
        signal = module(signal)
        if isinstance(module, nn.Linear):
            signal.retain_grad()
            outputs.append(signal)
    signal.backward(torch.randn(signal.shape, generator=seeded(seed)))
    gradients = [each.grad.var() for each in outputs if each.grad is not None]
    return torch.stack([each.detach().var() for each in outputs]), torch.stack(gradients)


def squares(matrix: Tensor) -> Tensor:
    """The smaller of the two products with its transpose, whose identity is orthogonality."""
    return matrix @ matrix.T if matrix.size(0) <= matrix.size(1) else matrix.T @ matrix


def is_orthogonal(matrix: Tensor) -> bool:
    product = squares(matrix.detach())
    scale = product.diagonal().mean()
    return torch.allclose(product, scale * torch.eye(len(product)), atol=1e-5 * scale.item())


class TestOrthogonal:
    @pytest.mark.parametrize(
        "layer",
        [
            nn.Linear(48, 32),
            nn.Linear(16, 64),
            nn.Conv2d(8, 24, 1),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.Conv2d(8, 16, 2),
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.Conv1d(8, 12, 3, padding=2),
        ],
        ids=str,
    )
    def test_a_layer_is_one_semi_orthogonal_matrix(self, layer: nn.Module) -> None:
        initialize_(
            nn.Sequential(layer), generator=seeded(), method=Exact(distribution="orthogonal")
        )
        assert isinstance(layer.weight, Tensor)
        assert is_orthogonal(layer.weight.flatten(1))

    @pytest.mark.parametrize("groups", [1, 4])
    def test_a_convolution_of_stride_one_has_its_matrix_in_the_middle(self, groups: int) -> None:
        layer = nn.Conv2d(16, 32, 3, padding=1, groups=groups)
        initialize_(
            nn.Sequential(layer), generator=seeded(), method=Exact(distribution="orthogonal")
        )
        middle = layer.weight[:, :, 1, 1]
        assert layer.weight.count_nonzero() == middle.count_nonzero()
        for block in middle.chunk(groups):
            assert is_orthogonal(block)

    def test_depthwise_kernels_keep_all_their_taps(self) -> None:
        layer = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        initialize_(
            nn.Sequential(layer), generator=seeded(), method=Exact(distribution="orthogonal")
        )
        assert (layer.weight != 0).all()
        norms = layer.weight.detach().flatten(1).norm(dim=1)
        torch.testing.assert_close(norms, norms[:1].expand(16))

    def test_the_norm_is_that_of_normal_weights(self) -> None:
        for shape in ((64, 32, 3), (32, 64, 3)):
            normal, orthogonal = (nn.Conv2d(*shape, padding=1) for _ in range(2))
            initialize_(nn.Sequential(normal), generator=seeded())
            initialize_(
                nn.Sequential(orthogonal),
                generator=seeded(),
                method=Exact(distribution="orthogonal"),
            )
            ratio = orthogonal.weight.norm() / normal.weight.norm()
            assert ratio.item() == pytest.approx(1, abs=0.02)

    def test_padding_takes_nothing_from_a_matrix_in_the_middle(self) -> None:
        network: Any = models.create(
            "plain-20",
            activation="identity",
            small_maps=True,
            width=16,
            input_size=8,
            num_classes=8,
        )
        initialize_(
            network,
            input_shape=(3, 8, 8),
            generator=seeded(),
            method=Exact(distribution="orthogonal"),
        )
        images = torch.randn(64, 3, 8, 8, generator=seeded(1))
        with torch.no_grad():
            first = network[:2](images)
            last = network[:-2](images)
        assert last.var().item() == pytest.approx(first.var().item(), rel=1e-4)

    def test_the_same_generator_gives_the_same_weights(self) -> None:
        one, two = mlp(3), mlp(3)
        for model in (one, two):
            initialize_(model, generator=seeded(3), method=Exact(distribution="orthogonal"))
        assert all(map(torch.equal, one.parameters(), two.parameters()))


class TestCritical:
    def test_400_layers_keep_signal_and_gradient_without_being_linear(self) -> None:
        model = mlp(400, 256)
        report = initialize_(
            model, method=Critical(distribution="orthogonal", target=0.42), generator=seeded()
        )
        assert report.correlation == pytest.approx(0.42, abs=1e-4)
        signal, gradient = variances(model, torch.randn(32, 256, generator=seeded(1)))
        for found in (signal, gradient / gradient[-1]):
            assert found.min() > 0.4
            assert found.max() < 2.5

    def test_the_exact_rule_lets_gradients_grow_where_the_critical_keeps_them(self) -> None:
        growth = {}
        for method in ("exact", "critical"):
            found = []
            for seed in range(3):
                model = mlp(60, 256)
                report = initialize_(
                    model, method=METHODS[method](distribution="orthogonal"), generator=seeded(seed)
                )
                images = torch.randn(64, 256, generator=seeded(seed + 1))
                _, gradient = variances(model, images, seed)
                found.append((gradient[0] / gradient[-1]).item())
            growth[method] = sum(found) / 3
        assert report.rows[0].gradient == pytest.approx(growth["critical"], rel=0.4)
        per_layer = 0.6681 / 0.6449  # E[f'^2] / E[f^2] of ELU
        assert growth["exact"] == pytest.approx(per_layer**59, rel=0.4)

    def test_biases_have_the_critical_variance(self) -> None:
        model: Any = mlp(20, 256)
        initialize_(model, method="critical", generator=seeded())
        found = theory.critical_variances(mpelu.activations.describe(nn.ELU()))  # type: ignore[arg-type]
        assert found is not None
        biases = torch.cat([model[index].bias for index in range(2, 38, 2)])
        assert biases.var().item() == pytest.approx(found[1], rel=0.1)
        assert model[2].weight.var().item() * 256 == pytest.approx(found[0], rel=0.05)
        assert not model[0].bias.any()  # fed by the input
        assert not model[38].bias.any()  # the last

    def test_layers_without_biases_and_before_norms_get_the_exact_rule(self) -> None:
        for layers in (
            [nn.Linear(64, 64, bias=False)],
            [nn.Linear(64, 64), nn.BatchNorm1d(64)],
        ):
            critical, exact = (
                nn.Sequential(nn.Linear(64, 64), nn.ELU(), *layers, nn.ELU(), nn.Linear(64, 64))
                for _ in range(2)
            )
            initialize_(critical, method="critical", generator=seeded())
            initialize_(exact, method="exact", generator=seeded())
            assert all(map(torch.equal, critical[2].parameters(), exact[2].parameters()))


class Residual(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.branches = nn.ModuleList(
            nn.Sequential(mpelu.MPELU(32), nn.Linear(32, 32)) for _ in range(blocks)
        )

    def forward(self, input: Tensor) -> Tensor:
        signal: Tensor = self.first(input)
        for branch in self.branches:
            signal = signal + branch(signal)
        return signal


def shapes(model: nn.Module) -> set[tuple[float, float]]:
    return {
        (round(module.alpha[0].item(), 5), round(module.beta[0].item(), 5))
        for module in model.modules()
        if isinstance(module, mpelu.MPELU)
    }


class TestShape:
    def test_a_plain_network_gets_the_shape_of_its_depth(self) -> None:
        model = mlp(41)
        report = initialize_(model, method=Exact(target=0.3))
        beta = theory.beta_for(theory.chain(40), 0.3)
        assert shapes(model) == {(round(1 / beta, 5), round(beta, 5))}
        assert report.correlation == pytest.approx(0.3, abs=1e-5)
        assert report.rows[-1].correlation == report.correlation
        assert "C_f(0): 0.3" in str(report)

    def test_two_inputs_come_as_close_as_predicted(self) -> None:
        model = mlp(31, 512)
        method = Critical(target=0.5, distribution="orthogonal")
        report = initialize_(model, method=method, generator=seeded())
        with torch.no_grad():
            output = model(torch.randn(64, 512, generator=seeded(1)))
        unit = output / output.norm(dim=1, keepdim=True)
        similarity = (unit @ unit.T).fill_diagonal_(0).sum() / (64 * 63)
        assert report.correlation is not None
        assert similarity.item() == pytest.approx(report.correlation, abs=0.06)

    def test_shallow_networks_keep_their_shapes(self) -> None:
        model = nn.Sequential(nn.Linear(8, 8), mpelu.MPELU(8, alpha=0.25), nn.Linear(8, 8))
        initialize_(model, method=Exact(shapes=True))
        assert shapes(model) == {(0.25, 1.0)}

    def test_shortcuts_count_by_their_weight(self) -> None:
        plain, residual = mlp(41, 32), Residual(40)
        for model in (plain, residual):
            initialize_(model, method=Exact(target=0.05))
        ((_, plain_beta),), ((_, residual_beta),) = shapes(plain), shapes(residual)
        assert residual_beta > 3 * plain_beta

    def test_batch_norm_sets_inputs_apart(self) -> None:
        layers: list[nn.Module] = []
        for _ in range(30):
            layers += [nn.Linear(16, 16), nn.BatchNorm1d(16), mpelu.MPELU(16)]
        model = nn.Sequential(*layers, nn.Linear(16, 4))
        report = initialize_(model, method=Exact(shapes=True))
        alone = theory.network_correlation(theory.chain(1), 1.0)
        assert report.correlation == pytest.approx(alone, abs=1e-6)
        assert shapes(model) == {(1.0, 1.0)}

    def test_a_target_out_of_reach_raises_and_changes_nothing(self) -> None:
        model = mlp(3)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(ValueError, match=r"C_f\(0\) of at most 0\.\d+, this network's limit"):
            initialize_(model, method=Exact(target=0.95))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    def test_an_error_takes_the_shape_back(self) -> None:
        model = mlp(41)
        with pytest.raises(ValueError, match="the model can't run on inputs"):
            initialize_(model, torch.randn(4, 3), method=Exact(target=0.2))
        assert shapes(model) == {(1.0, 1.0)}

    def test_frozen_units_keep_their_shape(self) -> None:
        model: Any = mlp(41)
        model[1].requires_grad_(False)
        initialize_(model, method=Exact(target=0.2))
        assert model[1].beta[0].item() == 1.0
        assert len(shapes(model)) == 2

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Exact(distribution="uniform"), "Exact: expected one of "),
            (lambda: Taylor(mode="fan_up"), "Taylor: expected one of "),
            (lambda: Deep(target=1.5), "Deep: .*target .*got 1.5"),
            (lambda: Gaussian(std=-1.0), "Gaussian: .*std .*got -1"),
            (lambda: Gaussian(std=math.nan), "Gaussian: .*std .*got nan"),
        ],
    )
    def test_options_that_cannot_be_meant_are_refused(
        self, make: Callable[[], object], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            make()

    def test_a_network_without_mpelu_is_refused(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        with pytest.raises(ValueError, match="requires a trained MPELU"):
            initialize_(model, method=Exact(shapes=True))


class TestTailored:
    def test_signal_and_gradient_are_kept_without_being_linear(self) -> None:
        model = mlp(51, 256)
        found = tailoring.initialize_(model, generator=seeded())
        assert shapes(model) == {(round(1 / found.beta, 5), round(found.beta, 5))}
        signal, gradient = variances(model, torch.randn(256, 256, generator=seeded(1)))
        assert 0.8 < signal.min() <= signal.max() < 1.25
        assert 0.8 < (gradient / gradient[-1]).min() <= (gradient / gradient[-1]).max() < 1.25

    def test_biases_are_the_shift_and_the_sum_over_offset_inputs(self) -> None:
        model: Any = mlp(4)
        found = tailoring.initialize_(model)
        assert torch.allclose(model[0].bias, torch.full((64,), found.shift))
        sums = found.offset * model[2].weight.sum(1)
        assert torch.allclose(model[2].bias, found.shift + sums, atol=1e-5)
        assert torch.allclose(model[6].bias, found.offset * model[6].weight.sum(1), atol=1e-5)

    def test_layers_without_biases_are_refused(self) -> None:
        with pytest.raises(ValueError, match="layers with biases"):
            tailoring.initialize_(nn.Sequential(nn.Linear(4, 4, bias=False), mpelu.MPELU(4)))


NORMED_OR_SHORTCUT = {
    "resnet-20": {},
    "mpelu-resnet-20": {"width": 8},
    "nopre-resnet-29": {"width": 8},
    "nopre-nobn-resnet-29": {"width": 8},
    "plain-15": {"width": 8, "fc_width": 32, "input_size": 32, "num_classes": 10},
}


class TestDeep:
    @pytest.mark.parametrize("name", NORMED_OR_SHORTCUT)
    def test_with_norms_or_shortcuts_it_is_no_worse_than_exact(self, name: str) -> None:
        found: dict[str, tuple[float, float]] = {}
        images = torch.randn(8, 3, 32, 32, generator=seeded(1))
        for method in ("exact", "deep"):
            model = models.create(name, **NORMED_OR_SHORTCUT[name])  # type: ignore[arg-type]
            report = initialize_(model, images, method=method, generator=seeded())
            output = model(images)
            output.backward(torch.randn(output.shape, generator=seeded(2)))
            named = dict(model.named_parameters())
            norms = [named[row.layer].grad.norm() for row in report.rows]  # type: ignore[union-attr]
            found[method] = output.var().item(), (norms[0] / norms[-1]).item()
        for exact, deep in zip(found["exact"], found["deep"], strict=True):
            assert abs(math.log(deep)) <= abs(math.log(exact)) + math.log(1.1)

    def test_in_a_plain_network_it_is_the_combination(self) -> None:
        deep, spelled = mlp(41), mlp(41)
        initialize_(deep, method="deep", generator=seeded())
        method = Critical(distribution="orthogonal", shapes=True)
        initialize_(spelled, method=method, generator=seeded())
        assert all(map(torch.equal, deep.parameters(), spelled.parameters()))
        assert shapes(deep) != {(1.0, 1.0)}

    def test_the_report_tells_method_shape_and_depth(self) -> None:
        report = initialize_(mlp(41), method="deep", generator=seeded())
        row = report.rows[20]
        assert row.rule == "deep"
        assert row.chi == pytest.approx(1.0, abs=1e-6)
        assert row.gradient == pytest.approx(1.0, rel=0.1)
        assert row.predicted == pytest.approx(1.0, abs=1e-6)
        assert report.correlation == pytest.approx(0.5, abs=1e-4)
        assert report.to_dict()["correlation"] == report.correlation

    def test_networks_without_mpelu_keep_their_activations(self) -> None:
        first = nn.Linear(8, 8)
        model = nn.Sequential(first, nn.Tanh(), nn.Linear(8, 8))
        report = initialize_(model, method="deep", generator=seeded())
        assert is_orthogonal(first.weight)
        assert report.rows[1].rule == "deep"
