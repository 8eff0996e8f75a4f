"""The shape of MPELU that fits a network's depth.

With alpha beta = 1 MPELU is the identity plus a curvature that grows with beta. Each layer draws
two unrelated inputs a little together. Over the whole network this must neither be nothing, for
then the network is linear, nor everything, for then all inputs look alike. So beta is chosen such
that two unrelated inputs leave the network with a given correlation, C_f(0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch

from mpelu.elementwise import ElementwiseFunction, exponential
from mpelu.gaussian import plain_tensors, to_float64
from mpelu.theory.correlation import covariance

_DEGREE = 24
_SMALLEST_BETA, _LARGEST_BETA = 1e-4, 1e3

Map = Callable[[float], float]
"""From the correlation before a layer and its activation to that after them."""
Network = Callable[[Map], float]
"""From the map of one activation to the C_f(0) of the whole network."""


def tabulated_map(function: ElementwiseFunction, critical: bool = False) -> Map:
    """The correlation map at unit variance as a polynomial, for use layer by layer.

    It is smooth in sqrt(1 - c), in which it is interpolated at Chebyshev nodes. Off by less than
    1e-9 for correlations from 0 to 1.

    Args:
        function: the activation, with one channel.
        critical: whether biases of the critical variance are added (see `critical_variances`).

    Example:
        >>> from mpelu.activations import describe
        >>> round(tabulated_map(describe(torch.nn.ReLU()))(0.0), 6)
        0.31831
    """
    angles = (torch.arange(_DEGREE, dtype=torch.float64, device="cpu") + 0.5) * math.pi / _DEGREE
    roots = (1 + angles.cos()) / 2
    second = to_float64(function.moments()[1]).reshape(-1)
    values = covariance(function, 1 - roots**2) / second
    if critical:
        share = (second / to_float64(function.squared_slope())).clamp(max=1.0)
        values = share * values + (1 - share)
    orders = torch.arange(_DEGREE, dtype=torch.float64, device="cpu").unsqueeze(1)
    coefficients = 2 / _DEGREE * (torch.cos(orders * angles) * values).sum(1)
    coefficients[0] /= 2
    reversed_terms = coefficients.flip(0).tolist()

    def value(correlation: float) -> float:
        x = 2 * math.sqrt(max(0.0, 1 - correlation)) - 1
        here = before = 0.0
        for term in reversed_terms:
            here, before = 2 * x * here - before + term, here
        return min(1.0, here - x * before)

    return value


@lru_cache(maxsize=256)
@plain_tensors()
def exponential_map(alpha: float, beta: float, critical: bool = False) -> Map:
    """`tabulated_map` of MPELU, calculated once for each shape."""
    return tabulated_map(exponential(alpha, beta), critical)


def chain(depth: int) -> Network:
    """A plain network: `depth` activations, one after the other."""

    def correlation(step: Map) -> float:
        found = 0.0
        for _ in range(depth):
            found = step(found)
        return found

    return correlation


def network_correlation(network: Network, beta: float, critical: bool = False) -> float:
    """C_f(0) of a network whose MPELUs have this beta, and alpha = 1 / beta.

    Example:
        >>> round(network_correlation(chain(100), beta=0.3), 3)
        0.28
    """
    return network(exponential_map(1 / beta, beta, critical))


def beta_for(
    network: Network, target: float, critical: bool = False, largest: float = _LARGEST_BETA
) -> float:
    """beta at which C_f(0) of the network has the target value, with alpha = 1 / beta.

    Args:
        network: its structure; `chain(depth)` for a plain one.
        target: C_f(0), above 0 and below 1.
        critical: whether biases of the critical variance are added.
        largest: the largest beta allowed.

    Raises:
        ValueError: if no beta up to the largest reaches the target; it names the limit.

    Example:
        >>> round(beta_for(chain(100), 0.5), 4)
        0.6748
    """
    if not 0 < target < 1:
        raise ValueError(f"expected a target for C_f(0) above 0 and below 1, got {target}")
    low, high = math.log(_SMALLEST_BETA), math.log(largest)
    limit = network_correlation(network, largest, critical)
    if limit < target:
        raise ValueError(
            f"expected a target for C_f(0) up to {limit:.4g}, this network's limit at beta "
            f"{largest:g}, got {target:g}"
        )
    floor = network_correlation(network, _SMALLEST_BETA, critical)
    if floor > target:
        raise ValueError(
            f"expected a target for C_f(0) from {floor:.4g}, this network's limit at beta "
            f"{_SMALLEST_BETA:g}, got {target:g}"
        )

    def excess(correlation: float) -> float:
        """Nearly a straight line in log(beta)."""
        return _log_odds(correlation) - _log_odds(target)

    return math.exp(
        _root(
            lambda x: excess(network_correlation(network, math.exp(x), critical)),
            low,
            high,
            excess(floor),
            excess(limit),
        )
    )


def _log_odds(share: float) -> float:
    return math.log(max(share, 1e-300) / max(1 - share, 1e-300))


def _root(
    function: Callable[[float], float],
    low: float,
    high: float,
    below: float,
    above: float,
) -> float:
    """Of an increasing function, by false position with the Illinois rule."""
    side = 0
    for _ in range(100):
        middle = (low * above - high * below) / (above - below)
        if not low < middle < high or above - below > 1e6 * abs(below):
            middle = (low + high) / 2
        value = function(middle)
        if abs(value) < 1e-7 or high - low < 1e-9:
            return middle
        if value < 0:
            low, below = middle, value
            above = above / 2 if side < 0 else above
            side = -1
        else:
            high, above = middle, value
            below = below / 2 if side > 0 else below
            side = 1
    return (low + high) / 2
