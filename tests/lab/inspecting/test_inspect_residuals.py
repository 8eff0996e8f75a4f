"""The residual histogram of section 4.4, against theory and by hand."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import mpelu
from mpelu.init import residual_bound, residual_share
from mpelu.lab.inspecting import residual_histogram


def test_a_standard_normal_gives_the_papers_shares() -> None:
    torch.manual_seed(0)
    found = residual_histogram(mpelu.MPELU(), torch.randn(1_000_000, 1).split(300_000))
    (layer,) = found.layers
    # 84.135 %, 97.725 % and 99.865 % in the paper; 55.62 % for 0.01 without its rounding.
    assert layer.bounded == pytest.approx((0.5562, 0.84135, 0.97725, 0.99865), abs=2e-3)
    assert layer.gaussian == pytest.approx((0.5562, 0.84135, 0.97725, 0.99865), abs=2e-3)
    assert layer.above == layer.bounded == found.bounded == found.above
    assert found.thresholds == pytest.approx((-0.1414, -1, -2, -3), abs=1e-4)
    assert layer.mean == pytest.approx(0, abs=5e-3)
    assert layer.variance == pytest.approx(1, rel=1e-2)
    assert sum(layer.counts) == layer.count == found.count == 1_000_000


@pytest.mark.parametrize(("alpha", "beta", "std"), [(0.25, 1.0, 2.0), (3.0, 0.5, 1.0)])
def test_own_alpha_and_beta_count(alpha: float, beta: float, std: float) -> None:
    torch.manual_seed(0)
    residuals = [residual_bound(alpha, beta, std**2, deviations) for deviations in (1, 2, 3)]
    data = std * torch.randn(500_000, 1)
    (layer,) = residual_histogram(mpelu.MPELU(1, alpha, beta), data, residuals=residuals).layers
    assert layer.bounded == pytest.approx((0.84135, 0.97725, 0.99865), abs=3e-3)
    assert layer.above != layer.bounded


def test_channels_have_bounds_of_their_own() -> None:
    module = mpelu.MPELU(2, alpha=[1.0, 4.0], beta=[1.0, 0.25])
    data = torch.tensor([[-0.9, -0.9], [-1.9, -1.9], [-2.1, -2.1]])
    (layer,) = residual_histogram(module, data, residuals=[0.5]).layers
    # 0.5 is reached at -1 in the first channel and at -2 in the second.
    assert layer.bounded == (3 / 6,)
    variance = data.double().var(correction=0).item()
    shares = [residual_share(0.5, 1.0, 1.0, variance), residual_share(0.5, 4.0, 0.25, variance)]
    assert layer.gaussian == pytest.approx([sum(shares) / 2])


def test_the_bound_holds_for_the_residual_itself() -> None:
    y = torch.linspace(-6, 0, 2001, dtype=torch.float64)
    residual = (mpelu.mpelu(y, torch.tensor([2.0]), torch.tensor([0.5])) - y).abs()
    module = mpelu.MPELU(1, 2.0, 0.5)
    (layer,) = residual_histogram(module, y.reshape(-1, 1)).layers
    assert layer.bounded is not None
    for bound, share in zip((0.01, 0.5, 2.0, 4.5), layer.bounded, strict=True):
        assert share <= (residual < bound).double().mean().item()


def test_two_lines_have_no_residual_and_others_no_bound() -> None:
    data = torch.randn(1000, 4)
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.PReLU(4), nn.Tanh())
    found = residual_histogram(model, data)
    relu, prelu, tanh = found.layers
    assert relu.bounded == prelu.bounded == prelu.gaussian == (1.0,) * 4
    assert tanh.bounded is tanh.gaussian is None
    assert len(tanh.above) == 4
    assert found.bounded == (1.0,) * 4
    assert residual_histogram(nn.Tanh(), data).bounded is None


def test_counts_of_the_histogram() -> None:
    torch.manual_seed(0)
    edge = torch.tensor([-7.0, -5.0, -0.0625, 0.0, 0.0624, 4.9999, 5.0, 9.0])
    data = torch.cat([edge, 2 * torch.randn(2000)]).reshape(-1, 1)
    found = residual_histogram(nn.ELU(), data)
    edges = torch.tensor(found.edges, dtype=torch.float64)
    assert (found.edges[0], found.edges[-1], len(found.edges)) == (-5.0, 5.0, 161)
    bins = torch.bucketize(data.double().flatten(), edges, right=True)
    assert found.layers[0].counts == tuple(torch.bincount(bins, minlength=162).tolist())


def test_total_weighs_layers_by_their_inputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ELU(), nn.Linear(6, 2), mpelu.MPELU(2))
    found = residual_histogram(model, 3 * torch.randn(50, 6))
    small, large = found.layers[1], found.layers[0]
    assert (large.count, small.count, found.count) == (300, 100, 400)
    assert large.bounded is not None
    assert small.bounded is not None
    expected = [(3 * a + b) / 4 for a, b in zip(large.bounded, small.bounded, strict=True)]
    assert found.bounded == pytest.approx(expected)
    assert found.counts == tuple(a + b for a, b in zip(large.counts, small.counts, strict=True))


def test_in_place_activations_show_their_input() -> None:
    data = torch.randn(100, 3)
    one = residual_histogram(nn.Sequential(nn.ELU(), nn.ELU()), data)
    two = residual_histogram(nn.Sequential(nn.ELU(inplace=True), nn.ELU(inplace=True)), data)
    assert one == two


def test_overflow_does_not_stop_it() -> None:
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, 3e38)
    batch = torch.tensor([[-1e9], [1e9], [0.0]])
    (layer,) = residual_histogram(nn.Sequential(linear, nn.ELU()), batch).layers
    assert layer.counts[0] == layer.counts[-1] == 1
    assert layer.gaussian is None
    assert not math.isfinite(layer.variance)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(2, 2), {}, "expected activations, got"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), {"layers": ["0", "1"]}, r"got \['1'\]"),
        (nn.ReLU(), {"residuals": [0.0]}, "residuals > 0"),
    ],
)
def test_bad_input(model: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        residual_histogram(model, torch.ones(1, 2), **options)
