"""Where variance and correlation settle in a deep network of equal layers, and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mpelu.elementwise import ElementwiseFunction, average
from mpelu.gaussian import quadrature_moments
from mpelu.slopes import slope_product
from mpelu.theory.correlation import covariance, slope_covariance

_SMALLEST, _LARGEST = 1e-12, 1e12
"""Range in which a fixed point of the variance is looked for."""
_STEPS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedPoint:
    """The limit of an infinitely deep network of equal layers."""

    variance: float
    """q*: the variance that layers keep; 0 or infinity if it vanishes or explodes."""
    chi: float
    """C'(1) there, the factor of the gradient's variance per layer: below 1 inputs grow alike and
    gradients vanish, above 1 inputs grow apart and gradients explode."""
    correlation: float
    """c*: where the correlation of two inputs settles."""
    variance_scale: float
    """Layers in which a deviation from q* falls by a factor e; infinity if it doesn't."""
    correlation_scale: float
    """The same for the correlation."""


def next_variance(
    function: ElementwiseFunction,
    variance: float,
    weight_variance: float,
    bias_variance: float = 0.0,
) -> float:
    """The length map: weight_variance E[f^2] + bias_variance.

    Args:
        function: the activation, as `mpelu.activations.describe` gives it.
        variance: before the activation.
        weight_variance: n Var(w) of the layer, n being its number of inputs.
        bias_variance: of its biases.
    """
    return weight_variance * average(function.moments(0.0, variance)[1]) + bias_variance


def critical_variances(
    function: ElementwiseFunction, variance: float = 1.0
) -> tuple[float, float] | None:
    """n Var(w) and Var(b) that keep both the signal's and the gradient's variance.

    n Var(w) = 1 / E[f'^2] keeps gradients, and Var(b) = q - E[f^2] / E[f'^2] then keeps the signal
    (the edge of chaos). None if Var(b) would be negative.

    Args:
        function: the activation, as `mpelu.activations.describe` gives it.
        variance: q, before the activation.

    Example:
        >>> from mpelu.activations import describe
        >>> [round(value, 4) for value in critical_variances(describe(torch.nn.ELU()))]
        [1.4968, 0.0347]
    """
    weight_variance = 1 / average(function.squared_slope(0.0, variance))
    bias_variance = variance - next_variance(function, variance, weight_variance)
    if bias_variance < -1e-9 * variance:
        return None
    return weight_variance, max(0.0, bias_variance)


def fixed_point(
    function: ElementwiseFunction, weight_variance: float, bias_variance: float = 0.0
) -> FixedPoint:
    """Where variance and correlation settle.

    Of several fixed points of the variance it is the one that unit variance leads to.

    Args:
        function: the activation, as `mpelu.activations.describe` gives it.
        weight_variance: n Var(w) of each layer, positive.
        bias_variance: of the biases, not negative.

    Example:
        >>> from mpelu.activations import describe
        >>> found = fixed_point(describe(torch.nn.Tanh()), 4.0)
        >>> round(found.variance, 3), round(found.chi, 3)
        (2.121, 1.363)
    """
    if not weight_variance > 0 or not bias_variance >= 0:
        raise ValueError(
            "fixed_point: expected weight_variance > 0 and bias_variance >= 0, got "
            f"{weight_variance} and {bias_variance}"
        )
    q = _variance(function, weight_variance, bias_variance)
    if not _SMALLEST < q < _LARGEST:
        return FixedPoint(
            variance=0.0 if q <= _SMALLEST else math.inf,
            chi=math.nan,
            correlation=math.nan,
            variance_scale=math.nan,
            correlation_scale=math.nan,
        )
    chi = weight_variance * average(function.squared_slope(0.0, q))
    c = _correlation(function, weight_variance, bias_variance, q, chi)
    slope = weight_variance * slope_covariance(function, c, 0.0, q).mean().item()
    growth = weight_variance * _product(function, q) / math.sqrt(q)
    return FixedPoint(
        variance=q,
        chi=chi,
        correlation=c,
        variance_scale=_scale(growth),
        correlation_scale=_scale(chi if c == 1.0 else slope),
    )


def _scale(slope: float) -> float:
    """-1 / log(slope)."""
    if abs(slope) >= 1 - 1e-12:
        return math.inf
    return 0.0 if slope == 0 else -1 / math.log(abs(slope))


def _product(function: ElementwiseFunction, variance: float) -> float:
    """E[f f' z], sigma times the derivative of E[f^2] by the variance."""
    if function.slope is not None:
        return average(function.squared_slope(0.0, variance)) * math.sqrt(variance)
    if function.alpha is not None and function.beta is not None:
        found = slope_product(function.alpha, function.beta, 0.0, variance) * function.scale**2
        return found.mean().item()
    sigma = math.sqrt(variance)
    mean, _ = quadrature_moments(
        lambda y: function.apply(y) * function.derivative(y) * y / sigma,
        0.0,
        torch.full((function.channels,), variance, dtype=torch.float64, device="cpu"),
        function.kinks,
    )
    return mean.mean().item()


def _variance(function: ElementwiseFunction, weight_variance: float, bias_variance: float) -> float:
    """Follows the length map from one until it crosses the diagonal, then halves the interval."""

    def excess(log_q: float) -> float:
        q = math.exp(log_q)
        return next_variance(function, q, weight_variance, bias_variance) / q - 1

    at_one = excess(0.0)
    if abs(at_one) < 1e-13:
        return 1.0
    step = math.copysign(0.5, at_one)
    here, there = 0.0, step
    while excess(there) * at_one > 0:
        here, there = there, there + step
        if not math.log(_SMALLEST) < there < math.log(_LARGEST):
            return math.exp(there)
    for _ in range(_STEPS):
        middle = (here + there) / 2
        if excess(middle) * at_one > 0:
            here = middle
        else:
            there = middle
        if abs(here - there) < 1e-14:
            break
    return math.exp((here + there) / 2)


def _correlation(
    function: ElementwiseFunction,
    weight_variance: float,
    bias_variance: float,
    q: float,
    chi: float,
) -> float:
    """One where chi is at most one; else the root of the map below one."""
    if chi <= 1 + 1e-9:
        return 1.0

    def excess(c: float) -> float:
        found = covariance(function, c, 0.0, q).mean().item()
        return (weight_variance * found + bias_variance) / q - c

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if excess(middle) > 0:
            low = middle
        else:
            high = middle
        if high - low < 1e-13:
            break
    return (low + high) / 2
