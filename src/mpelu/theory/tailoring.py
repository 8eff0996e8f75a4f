"""The conditions of Tailored Activation Transformation for MPELU, in a plain network.

TAT (Zhang et al., 2203.08120) transforms a smooth activation f to gain (f(y + shift) + offset) such
that, at unit variance, a layer keeps the variance (Q(1) = 1) and is stable there (Q'(1) = 1), keeps
gradients (C'(1) = 1), and bends the correlation map by C''(1) = tau / depth. MPELU with
alpha beta = 1 has one parameter of shape, so the four conditions fix beta, shift, offset and gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mpelu.elementwise import exponential
from mpelu.gaussian import (
    check_parameters,
    exponential_mean,
    normal_cdf,
    plain_tensors,
    squared_slope,
    to_float64,
    truncated_exponential,
)
from mpelu.theory.shaping import Map, tabulated_map

TAU = 0.3
"""C''(1) of the whole network, as the authors of TAT choose it."""
_SMALLEST_BETA, _LARGEST_BETA = 0.01, 1.0
"""Below, float64 can't tell Q(1) - 1 from zero."""
_LOWEST_SHIFT = -4.0


@dataclass(frozen=True, slots=True)
class Tailored:
    """A shape of MPELU and what is put around it."""

    beta: float
    """And alpha = 1 / beta."""
    shift: float
    """Added to the input of MPELU."""
    offset: float
    """Added to its output."""
    gain: float
    """Factor of the sum."""

    @property
    def map(self) -> Map:
        """The correlation map of a layer, at unit variance."""
        return _map(self)


@lru_cache(maxsize=64)
@plain_tensors()
def _map(found: Tailored) -> Map:
    return tabulated_map(
        exponential(1 / found.beta, found.beta), mean=found.shift, offset=found.offset
    )


@lru_cache(maxsize=64)
@plain_tensors()
def tailored(depth: int, tau: float = TAU) -> Tailored:
    """The shape for a chain of so many activations.

    Args:
        depth: number of activations, at least 1.
        tau: C''(1) of the chain; positive.

    Raises:
        ValueError: if no shape meets the conditions; it names the limit.

    Example:
        >>> found = tailored(100)
        >>> round(found.beta, 4), round(found.shift, 4)
        (0.056, -1.8061)
    """
    if depth < 1 or not tau > 0:
        raise ValueError(f"expected depth >= 1 and tau > 0, got {depth} and {tau}")
    low, high = math.log(_SMALLEST_BETA), math.log(_LARGEST_BETA)
    for _ in range(6):
        grid = torch.linspace(low, high, 33, dtype=torch.float64)
        shifts = _shifts(grid.exp())
        bends = _conditions(grid.exp(), shifts).bend
        if not bends[0] <= tau / depth <= bends[-1]:
            raise ValueError(
                f"expected tau / depth from {bends[0]:.3g} to {bends[-1]:.3g}, which is what MPELU "
                f"can have, got {tau / depth:.3g}"
            )
        place = int((bends < tau / depth).sum().clamp(min=1))
        low, high = grid[place - 1].item(), grid[place].item()
    beta, shift = grid[place].exp(), shifts[place]
    found = _conditions(beta, shift)
    return Tailored(beta.item(), shift.item(), found.offset.item(), found.gain.item())


class _Conditions(NamedTuple):
    """For the gain and offset that give C'(1) = Q'(1) = 1."""

    excess: Tensor
    """Q(1) - 1."""
    bend: Tensor
    """C''(1)."""
    offset: Tensor
    gain: Tensor


def _conditions(beta: Tensor, shift: Tensor) -> _Conditions:
    alpha, one = 1 / beta, torch.ones((), dtype=torch.float64)
    slope = squared_slope(alpha, beta, shift)
    below = truncated_exponential(beta, shift, one)
    # Stein's lemma: E[f' z] = E[f''] = beta E[e^(beta y); y < 0].
    offset = (slope - slope_product(alpha, beta, shift)) / (beta * below)
    mean = exponential_mean(alpha, beta, shift, one)
    density = torch.exp(-(shift**2) / 2) / math.sqrt(2 * math.pi)
    above = (shift**2 + 1) * normal_cdf(shift) + shift * density  # E[y^2; y > 0]
    negative = truncated_exponential(2 * beta, shift, one) - 2 * below + normal_cdf(-shift)
    second = above + alpha**2 * negative
    excess = (second + 2 * offset * mean + offset**2) / slope - 1
    return _Conditions(excess, squared_curvature(alpha, beta, shift) / slope, offset, slope.rsqrt())


def _shifts(beta: Tensor) -> Tensor:
    """The shift nearest to zero that gives Q(1) = 1, for each beta [n]."""
    # Q(1) - 1 is positive at zero, then negative, and positive again far below.
    tried = torch.linspace(0, _LOWEST_SHIFT, 81, dtype=torch.float64)
    is_negative = _conditions(beta.unsqueeze(1), tried).excess < 0
    low = tried[is_negative.int().argmax(1)]
    high = low + (tried[0] - tried[1])
    for _ in range(45):
        middle = (low + high) / 2
        is_low = _conditions(beta, middle).excess < 0
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return high


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
    sigma = v.sqrt()
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


def _parameters(caller: str, *values: float | Tensor) -> tuple[Tensor, ...]:
    alpha, beta, mean, variance = (to_float64(value) for value in values)
    check_parameters(caller, alpha, beta, variance)
    if not (variance > 0).all():
        raise ValueError(f"{caller}: expected variance > 0, got {variance.min().item():g}")
    return alpha, beta, mean, variance
