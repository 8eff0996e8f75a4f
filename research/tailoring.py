"""Tailored Activation Transformation (TAT) for plain networks of MPELUs, a rival of method "deep".

TAT (Zhang et al., 2203.08120) transforms a smooth activation f to gain (f(y + shift) + offset) such
that, at unit variance, a layer keeps the variance (Q(1) = 1) and is stable there (Q'(1) = 1), keeps
gradients (C'(1) = 1), and bends the correlation map by C''(1) = tau / depth. MPELU with
alpha beta = 1 has one parameter of shape, so the four conditions fix beta, shift, offset and gain.

The shift is a constant bias before MPELU. The gain is part of the weights after it, and the offset
part of their biases: nothing is added to the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

import mpelu
from mpelu.gaussian import exponential_mean, normal_cdf, squared_slope, truncated_exponential

TAU = 0.3
"""C''(1) of the whole network, as the authors of TAT choose it."""
_SMALLEST_BETA, _LARGEST_BETA = 0.01, 1.0
"""Below, float64 can't tell Q(1) - 1 from zero."""
_LOWEST_SHIFT = -4.0


@dataclass(frozen=True, slots=True)
class Tailored:
    """A shape of MPELU and what is put around it."""

    beta: float
    """Beta of MPELU; alpha is 1 / beta."""
    shift: float
    """Added to the input of MPELU."""
    offset: float
    """Added to its output."""
    gain: float
    """Factor of the sum."""


@lru_cache(maxsize=64)
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
    twice = truncated_exponential(2 * beta, shift, one)
    product = normal_cdf(shift) + 2 * twice - below  # E[f f' z]
    # Stein's lemma: E[f' z] = E[f''] = beta E[e^(beta y); y < 0].
    offset = (slope - product) / (beta * below)
    mean = exponential_mean(alpha, beta, shift, one)
    density = torch.exp(-(shift**2) / 2) / math.sqrt(2 * math.pi)
    above = (shift**2 + 1) * normal_cdf(shift) + shift * density  # E[y^2; y > 0]
    negative = twice - 2 * below + normal_cdf(-shift)
    second = above + alpha**2 * negative
    excess = (second + 2 * offset * mean + offset**2) / slope - 1
    curvature = beta**2 * twice  # E[f''^2], finite since alpha beta = 1
    return _Conditions(excess, curvature / slope, offset, slope.rsqrt())


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


@torch.no_grad()
def initialize_(
    model: nn.Module,
    *,
    input_shape: tuple[int, ...] | None = None,
    generator: torch.Generator | None = None,
) -> Tailored:
    """Initializes a chain of layers with biases and of MPELUs, with orthogonal weights.

    Args:
        model: network whose linear and convolutional layers are called in the order of its modules.
        input_shape: shape of an input without the batch, so that zero padding counts.
        generator: random number generator to draw from.
    """
    chain = [each for each in model.modules() if isinstance(each, (*_LAYERS, mpelu.MPELU))]
    units = [each for each in chain if isinstance(each, mpelu.MPELU)]
    if not units or any(getattr(each, "bias", units) is None for each in chain):
        raise ValueError("expected a chain of MPELUs and of layers with biases")
    found = tailored(len(units))
    for unit in units:
        unit.alpha.fill_(1 / found.beta)
        unit.beta.fill_(found.beta)
    method = mpelu.init.Exact(distribution="orthogonal", mode="fan_in")
    mpelu.init.initialize_(model, None, method, input_shape=input_shape, generator=generator)
    # The exact rule has divided by E[f(y)^2]; E[(f(y + shift) + offset)^2] is 1 / gain^2.
    second = mpelu.moments(1 / found.beta, found.beta)[1].item()
    for before, layer, after in zip([None, *chain], chain, [*chain[1:], None], strict=False):
        if isinstance(layer, _LAYERS) and layer.bias is not None:
            if isinstance(before, mpelu.MPELU):
                layer.weight.mul_(found.gain * second**0.5)
                layer.bias.add_(found.offset * layer.weight.flatten(1).sum(1))
            if isinstance(after, mpelu.MPELU):
                layer.bias.add_(found.shift)
    return found


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
