"""Moments of MPELU's derivatives under a Gaussian of any mean, in closed form and float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpelu.gaussian import check_parameters, to_float64


def normal_cdf(x: Tensor) -> Tensor:
    """P(z < x), with full relative precision far below zero, where torch.special.ndtr is zero."""
    found: Tensor = torch.special.erfc(-x / math.sqrt(2)) / 2
    return found


def truncated_exponential(rate: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """E[e^(rate y); y < 0] for y from N(mean, variance), rate >= 0.

    e^(rate m + rate^2 v / 2) P(z < -x) with x = m / sigma + rate sigma. Where x is positive, both
    factors are out of range long before their product is, so the scaled tail takes their place.
    """
    sigma = _sigma(variance)
    x = mean / sigma + rate * sigma
    scaled = torch.exp(-((mean / sigma) ** 2) / 2) * torch.special.erfcx(
        x.clamp(min=0) / math.sqrt(2)
    )
    # Where x is negative the exponent is below -rate^2 v / 2.
    exponent = torch.where(x < 0, rate * mean + rate**2 * variance / 2, 0.0)
    plain: Tensor = torch.exp(exponent) * normal_cdf(-x)
    return torch.where(x < 0, plain, scaled / 2)


def exponential_mean(alpha: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """E[f] of MPELU under N(mean, variance)."""
    sigma = _sigma(variance)
    ratio = mean / sigma
    above = normal_cdf(ratio)
    density = torch.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    below = truncated_exponential(beta, mean, variance) - normal_cdf(-ratio)
    found: Tensor = mean * above + sigma * density + alpha * below
    return found


def exponential_slope(alpha: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """E[f'] of MPELU under N(mean, variance)."""
    above = normal_cdf(mean / _sigma(variance))
    found: Tensor = above + alpha * beta * truncated_exponential(beta, mean, variance)
    return found


def squared_slope(
    alpha: float | Tensor,
    beta: float | Tensor,
    mean: float | Tensor = 0.0,
    variance: float | Tensor = 1.0,
) -> Tensor:
    """E[f'^2] of MPELU under N(mean, variance): what a layer multiplies gradients by.

    P(y > 0) + (alpha beta)^2 E[e^(2 beta y); y < 0]; at mean 0 and variance 1 this is
    1/2 + (alpha beta)^2 E(2 beta) with E(t) = erfcx(t / sqrt 2) / 2.

    Args:
        alpha: a number or a tensor; shapes broadcast.
        beta: as alpha; positive.
        mean: of the input.
        variance: of the input; positive.

    Returns:
        A float64 tensor of the broadcast shape.

    Example:
        >>> round(squared_slope(1.0, 1.0).item(), 4)
        0.6681
    """
    a, b, m, v = _parameters("squared_slope", alpha, beta, mean, variance)
    above = normal_cdf(m / _sigma(v))
    found: Tensor = above + (a * b) ** 2 * truncated_exponential(2 * b, m, v)
    return found


def slope_product(
    alpha: float | Tensor,
    beta: float | Tensor,
    mean: float | Tensor = 0.0,
    variance: float | Tensor = 1.0,
) -> Tensor:
    """E[f f' z] of MPELU at y = mean + sigma z, which is sigma d E[f^2] / d variance.

    sigma (P(y > 0) + (alpha beta)^2 (2 E[e^(2 beta y); y < 0] - E[e^(beta y); y < 0])).

    Args:
        alpha: a number or a tensor; shapes broadcast.
        beta: as alpha; positive.
        mean: of the input.
        variance: of the input; positive.

    Returns:
        A float64 tensor of the broadcast shape.

    Example:
        >>> round(slope_product(1.0, 1.0).item(), 4)
        0.5746
    """
    a, b, m, v = _parameters("slope_product", alpha, beta, mean, variance)
    sigma = _sigma(v)
    below = 2 * truncated_exponential(2 * b, m, v) - truncated_exponential(b, m, v)
    found: Tensor = sigma * (normal_cdf(m / sigma) + (a * b) ** 2 * below)
    return found


def squared_curvature(
    alpha: float | Tensor,
    beta: float | Tensor,
    mean: float | Tensor = 0.0,
    variance: float | Tensor = 1.0,
) -> Tensor:
    """E[f''^2] of MPELU under N(mean, variance): alpha^2 beta^4 E[e^(2 beta y); y < 0].

    Finite only where alpha beta = 1; elsewhere f' jumps at zero, and it is infinite.

    Args:
        alpha: a number or a tensor; shapes broadcast.
        beta: as alpha; positive.
        mean: of the input.
        variance: of the input; positive.

    Returns:
        A float64 tensor of the broadcast shape.

    Example:
        >>> round(squared_curvature(2.0, 0.5).item(), 4), squared_curvature(1.0, 0.5).item()
        (0.0654, inf)
    """
    a, b, m, v = _parameters("squared_curvature", alpha, beta, mean, variance)
    smooth = (a * b - 1).abs() <= 4 * torch.finfo(torch.float64).eps
    found: Tensor = (a * b * b) ** 2 * truncated_exponential(2 * b, m, v)
    return torch.where(smooth, found, torch.inf)


def _sigma(variance: Tensor) -> Tensor:
    return variance.sqrt().clamp(min=torch.finfo(torch.float64).tiny)


def _parameters(caller: str, *values: float | Tensor) -> tuple[Tensor, ...]:
    alpha, beta, mean, variance = (to_float64(value) for value in values)
    check_parameters(caller, alpha, beta, variance)
    if not (variance > 0).all():
        raise ValueError(f"{caller}: expected variance > 0, got {variance.min().item():g}")
    return alpha, beta, mean, variance
