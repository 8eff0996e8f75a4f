"""Signals in wide networks of random weights: moments, correlation maps, fixed points, shapes.

Everything is computed in float64 by torch alone. docs/depth.md derives what is here.
"""

from mpelu.gaussian import leaky_moments, moments, quadrature_moments
from mpelu.slopes import slope_product, squared_curvature, squared_slope
from mpelu.theory.correlation import (
    correlation_map,
    correlation_slope,
    covariance,
    slope_covariance,
)
from mpelu.theory.fixed_points import (
    FixedPoint,
    critical_variances,
    fixed_point,
    next_variance,
)
from mpelu.theory.shaping import beta_for, chain, network_correlation, tabulated_map
from mpelu.theory.tailoring import Tailored, tailored

__all__ = [
    "FixedPoint",
    "Tailored",
    "beta_for",
    "chain",
    "correlation_map",
    "correlation_slope",
    "covariance",
    "critical_variances",
    "fixed_point",
    "leaky_moments",
    "moments",
    "network_correlation",
    "next_variance",
    "quadrature_moments",
    "slope_covariance",
    "slope_product",
    "squared_curvature",
    "squared_slope",
    "tabulated_map",
    "tailored",
]
