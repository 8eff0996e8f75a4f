"""Signals in wide networks with random weights: correlation maps, critical variances, shapes.

Everything is computed in float64 with torch alone. docs/depth.md has the derivations.
"""

from mpelu.theory.correlation import (
    correlation_map,
    correlation_slope,
    covariance,
    critical_variances,
    slope_covariance,
)
from mpelu.theory.shaping import beta_for, chain, network_correlation, tabulated_map

__all__ = [
    "beta_for",
    "chain",
    "correlation_map",
    "correlation_slope",
    "covariance",
    "critical_variances",
    "network_correlation",
    "slope_covariance",
    "tabulated_map",
]


def __dir__() -> list[str]:
    return __all__
