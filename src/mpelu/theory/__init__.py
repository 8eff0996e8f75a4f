"""Signals in wide networks of random weights: correlation maps, critical variances, shapes.

Everything is computed in float64 by torch alone. docs/depth.md derives what is here.
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
