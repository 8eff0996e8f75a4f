"""Moments against quadrature of another make, 30-digit arithmetic and sampling."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import mpelu
from mpelu.activations import describe
from mpelu.elementwise import ElementwiseFunction, fit
from mpelu.gaussian import leaky_moments, moments, quadrature_moments

mpmath = pytest.importorskip("mpmath")


def described(module: nn.Module) -> ElementwiseFunction:
    found = describe(module)
    assert found is not None
    return found


def reference(alpha: float, beta: float, variance: float) -> tuple[float, float, float]:
    """E[f], E[f^2] and the size of the larger half of E[f], by integration with 30 digits."""
    with mpmath.workdps(30):
        sigma = mpmath.sqrt(mpmath.mpf(variance))
        t = mpmath.mpf(beta) * sigma

        def negative(power: int) -> Any:
            def integrand(z: Any) -> Any:
                density = mpmath.exp(-(z**2) / 2) / mpmath.sqrt(2 * mpmath.pi)
                return mpmath.expm1(-t * z) ** power * density

            scales = [1 / t * factor for factor in (1, 10, 100) if 1 / t * factor < 12]
            return mpmath.quad(integrand, [0, *sorted([*scales, 1, 3, 12]), 40])

        positive = sigma / mpmath.sqrt(2 * mpmath.pi)
        below = mpmath.mpf(alpha) * negative(1)
        second = sigma**2 / 2 + mpmath.mpf(alpha) ** 2 * negative(2)
        return float(positive + below), float(second), float(max(positive, abs(below)))


PAIRS = [
    (1.0, 1.0),
    (0.25, 1.0),
    (98.0, 0.01),
    (3.0, 0.5),
    (0.0, 1.0),
    (-2.0, 0.3),
    (1.0, 0.2499),
    (1.0, 0.2501),
    *[(1.0, 10.0**power) for power in range(-8, 5)],
    *[(10.0**power, 10.0**-power) for power in range(1, 9)],
]


@pytest.mark.parametrize(
    ("alpha", "beta", "variance"),
    [*[(*pair, 1.0) for pair in PAIRS], *[(*pair, 0.01) for pair in PAIRS[:4]], (1.0, 1.0, 400.0)],
)
def test_closed_form_is_within_1e10_of_quadrature(
    alpha: float, beta: float, variance: float
) -> None:
    mean, second, scale = reference(alpha, beta, variance)
    found_mean, found_second = moments(alpha, beta, variance)
    assert found_second.item() == pytest.approx(second, rel=1e-12)
    assert abs(found_mean.item() - mean) <= 1e-12 * scale


@given(
    st.floats(-100, 100),
    st.floats(-8, 4).map(lambda power: 10**power),
    st.floats(-3, 3).map(lambda power: 10**power),
)
@settings(deadline=None, max_examples=50)
def test_the_two_ways_of_the_package_agree(alpha: float, beta: float, sigma: float) -> None:
    mean, second = moments(alpha, beta / sigma, sigma**2)

    def function(y: Tensor) -> Tensor:
        return torch.where(y > 0, y, alpha * torch.expm1(beta / sigma * y.clamp(max=0)))

    by_mean, by_second = quadrature_moments(function, 0.0, sigma**2)
    assert second.item() == pytest.approx(by_second.item(), rel=1e-10)
    assert mean.item() == pytest.approx(by_mean.item(), abs=1e-10 * second.sqrt().item())


@given(st.floats(-5, 5), st.floats(-8, 4), st.floats(0.1, 10))
@settings(deadline=None, max_examples=100)
def test_second_moment_is_at_least_the_squared_mean(
    alpha: float, power: float, variance: float
) -> None:
    mean, second = moments(alpha, 10.0**power, variance)
    assert second >= mean**2
    assert second >= variance / 2


def test_gradients() -> None:
    alpha = torch.tensor([1.0, 0.25, 98.0, 3.0, 1.0], dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([1.0, 0.1, 0.01, 0.3, 50.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(moments, (alpha, beta, variance))


@pytest.mark.parametrize("t", [1e-8, 1e-3, 0.25, 1.0, 1e4])
def test_gradients_are_finite_everywhere(t: float) -> None:
    arguments = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.0, t, 1.0)]
    for moment in moments(*arguments):
        for grad in torch.autograd.grad(moment, arguments, retain_graph=True):
            assert grad.isfinite()


def test_broadcasting_and_dtype() -> None:
    mean, second = moments(torch.ones(3, 1), torch.ones(4), 2.0)
    assert mean.shape == second.shape == (3, 4)
    assert mean.dtype == second.dtype == torch.float64
    whole, _ = moments(torch.tensor([1.0, 2.0]), torch.tensor([0.125, 1.0]))
    assert whole.tolist() == [moments(1.0, 0.125)[0].item(), moments(2.0, 1.0)[0].item()]


def test_the_package_exports_the_function() -> None:
    assert mpelu.moments is moments


def test_zero_variance_is_a_point_mass() -> None:
    mean, second = moments(1.0, 1.0, 0.0)
    assert mean == 0
    assert second == 0


@pytest.mark.parametrize(
    ("module", "mean", "second"),
    [
        (nn.ReLU(), 1 / math.sqrt(2 * math.pi), 0.5),
        (nn.LeakyReLU(0.1), 0.9 / math.sqrt(2 * math.pi), 0.505),
        (nn.PReLU(), 0.75 / math.sqrt(2 * math.pi), (1 + 1 / 16) / 2),
        (nn.SELU(), 0.0, 1.0),  # its constants were chosen for this
        (nn.Identity(), 0.0, 1.0),
    ],
)
def test_known_activations(module: nn.Module, mean: float, second: float) -> None:
    found = described(module).moments()
    assert found == pytest.approx((mean, second), abs=1e-7)


@pytest.mark.parametrize(
    "module",
    [nn.ELU(0.7), nn.CELU(2.0), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Hardtanh(), nn.ReLU6()],
)
@pytest.mark.parametrize("variance", [0.3, 4.0])
def test_any_activation_against_scipy(module: nn.Module, variance: float) -> None:
    integrate = pytest.importorskip("scipy.integrate")
    sigma = math.sqrt(variance)

    def integral(power: int) -> float:
        def integrand(z: float) -> float:
            value: float = module(torch.tensor(sigma * z, dtype=torch.float64)).item()
            return value**power * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

        kinks = [0.0, *(kink / sigma for kink in (-1, 1, 6) if abs(kink / sigma) < 10)]
        found = integrate.quad(integrand, -12, 12, points=kinks, limit=200, epsabs=1e-13)
        return float(found[0])

    mean, second = described(module).moments(0.0, variance)
    assert mean == pytest.approx(integral(1), abs=1e-10)
    assert second == pytest.approx(integral(2), rel=1e-9)


def test_leaky_moments_off_center() -> None:
    by_quadrature = quadrature_moments(lambda y: torch.where(y > 0, y, 0.25 * y), 0.7, 2.0)
    for found, expected in zip(leaky_moments(0.25, 0.7, 2.0), by_quadrature, strict=True):
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_largest_of_several() -> None:
    # E of the maximum of 2 and 3 standard normal variables
    for count, mean in ((2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi))):
        found = quadrature_moments(lambda y: y, maximum_of=count)[0]
        assert found.item() == pytest.approx(mean, rel=1e-12)


def test_a_value_for_each_channel() -> None:
    prelu = nn.PReLU(3)
    with torch.no_grad():
        prelu.weight.copy_(torch.tensor([0.0, 0.5, 1.0]))
    _, second = described(prelu).moments()
    assert fit(second, 3).tolist() == pytest.approx([0.5, 0.625, 1.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.0), "beta .*got 0"),
        ((1.0, -1.0), "beta .*got -1"),
        ((math.nan, 1.0), "alpha"),
        ((1.0, 1.0, -1.0), "variance .*got -1"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        moments(*arguments)


FIRST = """
import contextlib, sys, torch, mpelu
from mpelu.activations import describe
from mpelu.gaussian import quadrature_moments
from torch._subclasses.fake_tensor import FakeTensorMode

modes = {
    "inference": torch.inference_mode, "meta": lambda: torch.device("meta"), "fake": FakeTensorMode
}
with modes[sys.argv[1]]():
    one = torch.ones(1, dtype=torch.float64)
    for first in (
        lambda: mpelu.moments(one, 1e-3 * one),
        lambda: quadrature_moments(torch.tanh, one, one),
        lambda: mpelu.moments(1.0, 1e-3),
        lambda: describe(torch.nn.GELU()).squared_slope(),
    ):
        with contextlib.suppress(RuntimeError, NotImplementedError):  # no values to be had
            first()
beta = torch.tensor(1e-3, dtype=torch.float64, requires_grad=True)
mpelu.moments(1.0, beta)[1].backward()
print(beta.grad.item(), quadrature_moments(torch.tanh)[1].item())
print(describe(torch.nn.GELU()).squared_slope())
"""


@pytest.mark.parametrize("mode", ["inference", "meta", "fake"])
def test_what_is_calculated_first_in_another_mode_serves_all(mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST, mode], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [float(number) for number in done.stdout.split()]
    beta = torch.tensor(1e-3, dtype=torch.float64, requires_grad=True)
    mpelu.moments(1.0, beta)[1].backward()
    assert beta.grad is not None
    assert found == pytest.approx([beta.grad.item(), 0.394294, 0.455851], rel=1e-5)
