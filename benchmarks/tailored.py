"""The conditions of Tailored Activation Transformation for MPELU, in a plain network.

TAT (Zhang et al., 2203.08120) transforms a smooth activation f to gain (f(y + shift) + offset) such
that, at unit variance, a layer keeps the variance (Q(1) = 1), is stable there (Q'(1) = 1), keeps
gradients (C'(1) = 1), and bends the correlation map by C''(1) = tau / depth. MPELU with
alpha beta = 1 has one parameter of shape, so the four conditions fix beta, shift, offset and gain.
In a network the shift is a constant bias before MPELU, the gain is part of the weights after it,
and the offset part of their biases: nothing is added to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn

from mpelu import MPELU, theory
from mpelu.activations.elementwise import exponential
from mpelu.init.orthogonal import fill_orthogonal_
from mpelu.slopes import truncated_exponential

TAU = 0.3
"""C''(1) of the whole network, as its authors use it."""


class Tailored(NamedTuple):
    beta: float
    shift: float
    offset: float
    gain: float


def _candidate(beta: float, shift: float) -> tuple[float, float, Tailored]:
    """Q(1) - 1 and C''(1), for the gain and offset that give C'(1) = Q'(1) = 1."""
    alpha = 1 / beta
    mean, second = (value.item() for value in exponential(alpha, beta).moments(shift, 1.0))
    slope = theory.squared_slope(alpha, beta, shift).item()
    product = theory.slope_product(alpha, beta, shift).item()
    one = torch.ones((), dtype=torch.float64)
    curvature = beta * truncated_exponential(beta * one, shift * one, one).item()  # E[f'']
    offset = (slope - product) / curvature
    excess = (second + 2 * offset * mean + offset**2) / slope - 1
    bend = theory.squared_curvature(alpha, beta, shift).item() / slope
    return excess, bend, Tailored(beta, shift, offset, slope**-0.5)


def _shifted(beta: float) -> tuple[float, Tailored]:
    """C''(1) at the shift nearest to zero that gives Q(1) = 1."""
    low, high = -2.0, 0.0
    if _candidate(beta, low)[0] > 0:
        raise ValueError(f"expected a beta that meets the conditions, got {beta:g}")
    for _ in range(60):
        middle = (low + high) / 2
        if _candidate(beta, middle)[0] < 0:
            low = middle
        else:
            high = middle
    _, bend, found = _candidate(beta, high)
    return bend, found


@lru_cache
def tailored(depth: int, tau: float = TAU) -> Tailored:
    """For a chain of so many activations."""
    low, high = 1e-3, 2.0
    for _ in range(50):
        middle = (low * high) ** 0.5
        if _shifted(middle)[0] < tau / depth:
            low = middle
        else:
            high = middle
    return _shifted(high)[1]


@torch.no_grad()
def tailored_(model: nn.Module, generator: torch.Generator) -> None:
    """Initializes a plain network: layers with biases, and MPELU between them."""
    parts = [part for part in model.modules() if isinstance(part, (nn.Conv2d, nn.Linear, MPELU))]
    found = tailored(sum(isinstance(part, MPELU) for part in parts))
    for index, part in enumerate(parts):
        if isinstance(part, MPELU):
            part.alpha.fill_(1 / found.beta)
            part.beta.fill_(found.beta)
            continue
        is_fed = index > 0 and isinstance(parts[index - 1], MPELU)
        feeds = index + 1 < len(parts) and isinstance(parts[index + 1], MPELU)
        weight, bias = part.weight, part.bias
        assert bias is not None
        gain = found.gain if is_fed else 1.0
        is_delta = isinstance(part, nn.Conv2d) and part.stride == (1, 1)
        fill_orthogonal_(weight, gain / weight[0].numel() ** 0.5, generator, 1, is_delta)
        bias.fill_(found.shift if feeds else 0.0)
        if is_fed:
            bias += found.offset * weight.flatten(1).sum(1)
