"""How far MPELU is from its tangents at zero: section 4.4 of the paper."""

from __future__ import annotations

import math

from mpelu.gaussian import check_parameters, to_float64


def _check(caller: str, alpha: float, beta: float, variance: float) -> None:
    check_parameters(caller, to_float64(alpha), to_float64(beta), to_float64(variance))
    if not variance > 0:
        raise ValueError(f"{caller}: expected variance > 0, got {variance}")


def residual_bound(
    alpha: float, beta: float, variance: float = 1.0, deviations: float = 1.0
) -> float:
    """Bound of |f(y) - tangent(y)| for every y above -deviations standard deviations.

    deviations^2 / 2 alpha beta^2 variance, the remainder of the Taylor expansion.

    Example:
        >>> [residual_bound(1.0, 1.0, 1.0, deviations) for deviations in (1, 2, 3)]
        [0.5, 2.0, 4.5]
    """
    _check("residual_bound", alpha, beta, variance)
    return deviations**2 / 2 * abs(alpha) * beta**2 * variance


def residual_share(residual: float, alpha: float, beta: float, variance: float = 1.0) -> float:
    """Share of inputs from N(0, variance) whose residual is bounded by `residual`.

    The paper's 84.135 %, 97.725 % and 99.865 % belong to the bounds at one, two and three standard
    deviations. Its 55.57 % for a residual of 0.01 is the share above -0.14; the threshold
    -0.1414 without the rounding gives 55.62 %.

    Example:
        >>> [round(100 * residual_share(bound, 1.0, 1.0), 3) for bound in (0.5, 2.0, 4.5)]
        [84.134, 97.725, 99.865]
        >>> round(100 * residual_share(0.01, 1.0, 1.0), 2)
        55.62
        >>> round(100 * residual_share(0.14**2 / 2, 1.0, 1.0), 2)
        55.57
    """
    _check("residual_share", alpha, beta, variance)
    if not residual >= 0:
        raise ValueError(f"residual_share: expected residual >= 0, got {residual}")
    if alpha == 0:
        return 1.0
    threshold = math.sqrt(2 * residual / abs(alpha)) / beta
    return (1 + math.erf(threshold / math.sqrt(2 * variance))) / 2
