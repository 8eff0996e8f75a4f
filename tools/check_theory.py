"""Checks mpelu.theory against mpmath on a wide grid: within 1e-9, or it says where not.

python tools/check_theory.py    # about a minute
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import mpmath  # type: ignore[import-untyped]

from mpelu import theory
from mpelu.elementwise import average, exponential, leaky

BETAS = (1e-3, 0.03, 0.3, 1.0, 5.0, 50.0)
PRODUCTS = (0.2, 1.0, 3.0)
"""Of alpha and beta."""
MEANS = (-3.0, -0.5, 0.0, 2.0)
VARIANCES = (0.1, 1.0, 10.0)
CORRELATIONS = (-0.95, -0.3, 0.0, 0.4, 0.9, 0.9999)
TOLERANCE = 1e-9


def truncated(rate: Any, mean: Any, variance: Any) -> Any:
    """E[e^(rate y); y < 0]."""
    sigma = mpmath.sqrt(variance)
    shift = (mean + rate * variance) / sigma
    return mpmath.exp(rate * mean + rate**2 * variance / 2) * mpmath.ncdf(-shift)


def conditional(alpha: Any, beta: Any, mean: Any, variance: Any, of_slope: bool) -> Any:
    """E[f] or E[f'] under N(mean, variance)."""
    sigma = mpmath.sqrt(variance)
    above = mpmath.ncdf(mean / sigma)
    tilted = truncated(beta, mean, variance)
    if of_slope:
        return above + alpha * beta * tilted
    positive = mean * above + sigma * mpmath.npdf(mean / sigma)
    return positive + alpha * (tilted - mpmath.ncdf(-mean / sigma))


def pair(alpha: Any, beta: Any, c: Any, of_slope: bool) -> Any:
    """E[f(u) f(v)] or E[f'(u) f'(v)] of standard normal u, v with correlation c."""
    rest = 1 - c**2

    def integrand(u: Any) -> Any:
        if of_slope:
            value = mpmath.mpf(1) if u > 0 else alpha * beta * mpmath.exp(beta * u)
        else:
            value = u if u > 0 else alpha * mpmath.expm1(beta * u)
        return value * conditional(alpha, beta, c * u, rest, of_slope) * mpmath.npdf(u)

    steps = [0.001, 0.01, 0.1, 1, 4, 13]
    return mpmath.quad(integrand, [*(-each for each in reversed(steps)), 0, *steps])


def main() -> int:
    mpmath.mp.dps = 40
    worst: dict[str, tuple[float, Any]] = {}

    def compare(name: str, found: float, expected: Any, scale: Any, where: Any) -> None:
        error = float(abs(found - expected) / max(abs(expected), abs(scale)))
        worst[name] = max(worst.get(name, (-1.0, None)), (error, where), key=lambda each: each[0])

    for beta, product, mean, variance in itertools.product(BETAS, PRODUCTS, MEANS, VARIANCES):
        alpha, where = product / beta, (product, beta, mean, variance)
        a, b, m, v = (mpmath.mpf(each) for each in (alpha, beta, mean, variance))
        squared = mpmath.ncdf(m / mpmath.sqrt(v)) + (a * b) ** 2 * truncated(2 * b, m, v)
        found = average(exponential(alpha, beta).squared_slope(mean, variance))
        compare("E[f'^2]", found, squared, 0, where)
    print("moments done", flush=True)
    mpmath.mp.dps = 20
    for beta, product, c in itertools.product(BETAS, PRODUCTS, CORRELATIONS):
        alpha, place = product / beta, (product, beta, c)
        a, b, r = mpmath.mpf(alpha), mpmath.mpf(beta), mpmath.mpf(c)
        function = exponential(alpha, beta)
        second = average(function.moments()[1])
        found = theory.covariance(function, c).item()
        compare("E[f f]", found, pair(a, b, r, False), second, place)
        found = theory.slope_covariance(function, c).item()
        compare("E[f' f']", found, pair(a, b, r, True), 0, place)
    for slope, c in itertools.product((0.0, 0.3, 0.9), CORRELATIONS):
        r = mpmath.mpf(c)
        kernel = (mpmath.sqrt(1 - r**2) + r * (mpmath.pi - mpmath.acos(r))) / (2 * mpmath.pi)
        expected = (1 - slope) ** 2 * kernel + slope * r
        compare(
            "leaky E[f f]", theory.covariance(leaky(slope), c).item(), expected, 0.5, (slope, c)
        )
    for name, (error, where) in worst.items():
        print(f"{name:14} {error:.1e} at {where}")
    return int(any(error > TOLERANCE for error, _ in worst.values()))


if __name__ == "__main__":
    sys.exit(main())
