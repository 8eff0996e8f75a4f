"""Closed forms against 30-digit arithmetic; maps, variances and shapes against what is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mpelu
from mpelu import theory
from mpelu.activations import describe
from mpelu.elementwise import ElementwiseFunction, average, exponential, leaky
from research import tailoring

mpmath = pytest.importorskip("mpmath")
SHAPES = [(1.0, 1.0), (2.5, 0.4), (20.0, 0.05), (0.3, 7.0)]


def gaussian(integrand: Callable[[Any], Any], mean: float, variance: float) -> float:
    """E[integrand(y, z)] for y = mean + sigma z, in pieces that end where y is zero."""
    with mpmath.workdps(30):
        sigma = mpmath.sqrt(mpmath.mpf(variance))
        kink = -mpmath.mpf(mean) / sigma
        places = {kink + step for step in (0, -0.01, -0.1, -1, -4, 0.1, 1, 4)} | {-14, 14}

        def weighted(z: Any) -> Any:
            return integrand((mean + sigma * z, z)) * mpmath.npdf(z)

        return float(mpmath.quad(weighted, sorted(p for p in places if -14 <= p <= 14)))


def value(y: Any, alpha: float, beta: float) -> Any:
    return y if y > 0 else alpha * mpmath.expm1(beta * y)


def slope(y: Any, alpha: float, beta: float) -> Any:
    return mpmath.mpf(1) if y > 0 else alpha * beta * mpmath.exp(beta * y)


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (-1.5, 0.5), (2.0, 3.0), (-4.0, 0.2)])
def test_moments_of_derivatives_are_exact(
    alpha: float, beta: float, mean: float, variance: float
) -> None:
    squared = gaussian(lambda yz: slope(yz[0], alpha, beta) ** 2, mean, variance)
    found = exponential(alpha, beta).squared_slope(mean, variance)
    assert found == pytest.approx(squared, rel=1e-10)


def double_integral(alpha: float, beta: float, c: float, of_slopes: bool) -> float:
    """E[f(u) f(v)] or E[f'(u) f'(v)] by mpmath, the inner Gaussian integral in closed form."""
    with mpmath.workdps(20):
        rest = mpmath.sqrt(1 - mpmath.mpf(c) ** 2)

        def inner(u: Any) -> Any:
            m = c * u
            tilted = mpmath.exp(beta * m + beta**2 * rest**2 / 2) * mpmath.ncdf(
                -(m + beta * rest**2) / rest
            )
            above = mpmath.ncdf(m / rest)
            if of_slopes:
                return above + alpha * beta * tilted
            return m * above + rest * mpmath.npdf(m / rest) + alpha * (tilted - (1 - above))

        outer = slope if of_slopes else value
        return float(
            mpmath.quad(
                lambda u: outer(u, alpha, beta) * inner(u) * mpmath.npdf(u),
                [-12, -4, -1, -0.1, -0.001, 0, 0.001, 0.1, 1, 4, 12],
            )
        )


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
@pytest.mark.parametrize("c", [-0.8, 0.0, 0.5, 0.999])
def test_covariances_are_exact(alpha: float, beta: float, c: float) -> None:
    function = exponential(alpha, beta)
    assert theory.covariance(function, c).item() == pytest.approx(
        double_integral(alpha, beta, c, False), rel=1e-9, abs=1e-12
    )
    assert theory.slope_covariance(function, c).item() == pytest.approx(
        double_integral(alpha, beta, c, True), rel=1e-9
    )


def test_relu_has_the_arc_cosine_kernel() -> None:
    c = torch.linspace(-1, 1, 41, dtype=torch.float64)
    expected = ((1 - c**2).sqrt() + c * (math.pi - torch.arccos(c))) / math.pi
    torch.testing.assert_close(theory.correlation_map(leaky(0.0), c), expected, rtol=0, atol=1e-12)
    slopes = 1 - torch.arccos(c) / math.pi
    found = theory.correlation_slope(leaky(0.0), c)
    torch.testing.assert_close(found[1:-1], slopes[1:-1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("module", [nn.ReLU(), nn.ELU(), mpelu.MPELU(alpha=2.5, beta=0.4)])
def test_quadrature_for_any_function_agrees_with_the_closed_form(module: nn.Module) -> None:
    closed = describe(module)
    assert closed is not None
    general = ElementwiseFunction(name="any", apply=closed.apply)
    for c in (-0.5, 0.3, 0.9):
        for one in (theory.covariance, theory.slope_covariance):
            assert one(general, c).item() == pytest.approx(one(closed, c).item(), rel=1e-9)


class RootOfReLU(nn.Module):
    """Smooth in value; its slope is infinite beside zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().sqrt()


class SquaredReLU(nn.Module):
    """Only its curvature jumps at zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().square()


@pytest.mark.parametrize(
    "module", [nn.GELU(), nn.Tanh(), nn.Hardswish(), SquaredReLU(), RootOfReLU()]
)
@pytest.mark.parametrize("variance", [0.01, 1.0, 100.0])
def test_quadrature_minds_every_kink_that_matters(module: nn.Module, variance: float) -> None:
    """Two orthogonal inputs, on a grid so fine that kinks don't matter."""
    function = describe(module)
    assert function is not None
    sigma = math.sqrt(variance)
    for kink in (-0.3, 0.0, 0.4):  # the kink of the function is no special place of the grid

        def moved(y: torch.Tensor, kink: float = kink) -> torch.Tensor:
            return function.apply(y - kink)

        z = (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000 * 26 - 13
        weight = torch.exp(-(z**2) / 2)
        expected = ((weight * moved(sigma * z)).sum() / weight.sum()).item() ** 2
        shifted = ElementwiseFunction(
            name="moved",
            apply=moved,
            channels=1,
            kinks=tuple(kink + place for place in (-3.0, 0.0, 3.0)),
        )
        found = theory.covariance(shifted, 0.0, 0.0, variance).item()
        assert found == pytest.approx(expected, rel=2e-6, abs=1e-9 * variance)


def test_each_channel_has_its_own_map() -> None:
    function = exponential(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 0.4]))
    found = theory.correlation_map(function, 0.3)
    each = [theory.correlation_map(exponential(*pair), 0.3).item() for pair in SHAPES[:2]]
    assert found.tolist() == pytest.approx(each, rel=1e-6)  # float32 parameters


def test_a_correlation_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"correlation .*got 1\.5"):
        theory.covariance(leaky(0.0), 1.5)


def test_critical_variances_keep_signal_and_gradient() -> None:
    for module in (nn.ELU(), nn.Tanh(), nn.ReLU(), mpelu.MPELU(alpha=3.0, beta=0.3)):
        function = describe(module)
        assert function is not None
        found = theory.critical_variances(function)
        assert found is not None
        weights, biases = found
        assert weights * average(function.moments()[1]) + biases == pytest.approx(1.0, abs=1e-9)
        assert weights * average(function.squared_slope()) == pytest.approx(1.0, abs=1e-9)
        assert biases >= 0
    softplus = describe(nn.Softplus())
    assert softplus is not None
    assert theory.critical_variances(softplus) is None


def test_correlations_of_tanh_settle_as_in_the_literature() -> None:
    """Poole et al.: with small weights inputs grow alike; with large ones they stay apart."""
    function = describe(nn.Tanh())
    assert function is not None
    for weights, is_chaotic in ((0.5, False), (4.0, True)):
        q, c = 1.0, 0.6
        for _ in range(300):
            q = weights * average(function.moments(0.0, q)[1]) + 0.2
        for _ in range(100):
            c = (weights * theory.covariance(function, c, 0.0, q).item() + 0.2) / q
        slope = weights * theory.slope_covariance(function, 1.0, 0.0, q).item()
        assert (slope > 1) == is_chaotic
        assert (0 < c < 0.9) == is_chaotic
        assert is_chaotic or c == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("critical", [False, True])
def test_the_tabulated_map_is_the_map(critical: bool) -> None:
    c = torch.linspace(0, 1, 57, dtype=torch.float64)
    for function in (exponential(1 / 0.3, 0.3), exponential(1.0, 1.0), leaky(0.0)):
        expected = theory.correlation_map(function, c)
        if critical:
            share = function.moments()[1] / function.squared_slope()
            expected = share * expected + 1 - share
        step = theory.tabulated_map(function, critical)
        found = torch.tensor([step(each) for each in c.tolist()], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("critical", [False, True])
@pytest.mark.parametrize("depth", [10, 100, 400])
def test_beta_reaches_the_target(depth: int, critical: bool) -> None:
    network = theory.chain(depth)
    beta = theory.beta_for(network, 0.3, critical)
    assert theory.network_correlation(network, beta, critical) == pytest.approx(0.3, abs=1e-6)


def test_beta_falls_like_the_root_of_depth() -> None:
    shallow, deep = (theory.beta_for(theory.chain(n), 0.5, critical=True) for n in (100, 400))
    assert 1.8 < shallow / deep < 2.3


def test_a_target_out_of_reach_names_the_limit() -> None:
    limit = theory.network_correlation(theory.chain(2), 1e3)
    with pytest.raises(ValueError, match=rf"at most {limit:.4g}, this network's limit .* got 0.9"):
        theory.beta_for(theory.chain(2), 0.9)
    with pytest.raises(ValueError, match="above 0 and below 1, got 1"):
        theory.beta_for(theory.chain(2), 1.0)


@pytest.mark.parametrize("depth", [1, 60, 1000])
def test_tailored_shapes_meet_the_four_conditions(depth: int) -> None:
    found = tailoring.tailored(depth)

    def moment(integrand: Callable[[Any, Any], Any]) -> float:
        shape = 1 / found.beta, found.beta
        return gaussian(
            lambda yz: integrand(value(yz[0], *shape) + found.offset, slope(yz[0], *shape)),
            found.shift,
            1.0,
        )

    def length(variance: float) -> float:
        shape = 1 / found.beta, found.beta
        return found.gain**2 * gaussian(
            lambda yz: (value(yz[0], *shape) + found.offset) ** 2, found.shift, variance
        )

    assert found.gain**2 * moment(lambda f, d: f**2) == pytest.approx(1, abs=1e-8)
    assert found.gain**2 * moment(lambda f, d: d**2) == pytest.approx(1, abs=1e-8)
    assert (length(1.01) - length(0.99)) / 0.02 == pytest.approx(1, abs=1e-4)
    # C''(1) is E[f''^2], and f'' is beta f' below zero.
    bend = moment(lambda f, d: (found.beta * d) ** 2 if d < 1 else 0)
    assert found.gain**2 * bend == pytest.approx(0.3 / depth, rel=1e-6)


def test_a_depth_that_no_tailored_shape_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected tau / depth from .* got 3e-06"):
        tailoring.tailored(100_000)
