"""Finds the shape of MPELU that fits a network's depth.

With alpha beta = 1, MPELU is the identity plus a curvature that grows with beta. Each layer makes
two unrelated inputs a little more alike. If the whole network doesn't do so at all, it is linear;
if it does so completely, all inputs look the same. So beta is chosen such that two unrelated
inputs leave the network with a given correlation, C_f(0).
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
"""Maps the correlation before a layer and its activation to the correlation after them."""
Network = Callable[[Map], float]
"""Takes the map of one activation and returns the C_f(0) of the whole network."""


def tabulated_map(function: ElementwiseFunction, critical: bool = False) -> Map:
    """Returns the correlation map at unit variance as a polynomial, to apply layer by layer.

    The map is smooth in sqrt(1 - c), so it is interpolated in it at Chebyshev nodes. The error is
    less than 1e-9 for correlations from 0 to 1.

    Args:
        function: activation with one channel.
        critical: whether to add biases with the critical variance (see `critical_variances`).

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
    """Returns the `tabulated_map` of MPELU, calculated once for each shape."""
    return tabulated_map(exponential(alpha, beta), critical)


def chain(depth: int) -> Network:
    """Returns a plain network of `depth` activations, one after the other."""

    def correlation(step: Map) -> float:
        found = 0.0
        for _ in range(depth):
            found = step(found)
        return found

    return correlation


def network_correlation(network: Network, beta: float, critical: bool = False) -> float:
    """Returns C_f(0) of a network whose MPELUs have this beta and alpha = 1 / beta.

    Example:
        >>> round(network_correlation(chain(100), beta=0.3), 3)
        0.28
    """
    return network(exponential_map(1 / beta, beta, critical))


def beta_for(
    network: Network, target: float, critical: bool = False, largest: float = _LARGEST_BETA
) -> float:
    """Finds the beta at which C_f(0) of the network reaches the target, with alpha = 1 / beta.

    Args:
        network: structure of the network; `chain(depth)` for a plain one.
        target: value of C_f(0), above 0 and below 1.
        critical: whether to add biases with the critical variance.
        largest: largest beta allowed.

    Raises:
        ValueError: if no beta up to `largest` reaches the target; the message names the limit.

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
            f"expected a target for C_f(0) of at most {limit:.4g}, this network's limit at beta "
            f"{largest:g}, got {target:g}"
        )
    floor = network_correlation(network, _SMALLEST_BETA, critical)
    if floor > target:
        raise ValueError(
            f"expected a target for C_f(0) of at least {floor:.4g}, this network's limit at beta "
            f"{_SMALLEST_BETA:g}, got {target:g}"
        )

    def excess(correlation: float) -> float:
        """Returns a distance from the target that is nearly linear in log(beta)."""
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
    """Finds the root of an increasing function by false position with the Illinois rule."""
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
