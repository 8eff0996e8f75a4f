"""The correlation map of an activation and its slope: how it makes two inputs more alike.

Two Gaussian inputs y1 and y2 of the same mean and variance have the correlation c. The map takes c
to C(c) = E[f(y1) f(y2)] / E[f^2]. Given y1, y2 is Gaussian too, so the expectation over y2 is one
over a shifted Gaussian. It has a closed form for the exponential and the leaky family; other
functions need quadrature. The expectation over y1 is a quadrature of fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mpelu.elementwise import ElementwiseFunction, average
from mpelu.gaussian import (
    HALVINGS,
    exponential_mean,
    exponential_slope,
    gaussian_nodes,
    leaky_moments,
    normal_cdf,
    panel_mean,
    quadrature_mean,
    to_float64,
)

_FINE = 36
"""Number of panel halvings for the slope, which may jump within sqrt(1 - c^2) of a kink."""
_EQUAL = 1e-15
"""Distance of a correlation from one within which two inputs count as the same."""
_SMOOTH = 1e-12
"""Relative difference within which two quadratures agree."""
_BELOW = 0.3
"""Fraction of a panel that lies below the place it straddles."""
_NARROWEST = 1e-3


@torch.no_grad()
def covariance(
    function: ElementwiseFunction,
    correlation: float | Tensor,
    mean: float | Tensor = 0.0,
    variance: float | Tensor = 1.0,
) -> Tensor:
    """Returns E[f(y1) f(y2)], not centered, for two Gaussian inputs with this correlation.

    Args:
        function: activation as returned by `mpelu.activations.describe`.
        correlation: correlation from -1 to 1; a number or shape [n], or [channels] if the
            function's parameters differ by channel.
        mean: mean of both inputs, a number or like correlation.
        variance: positive variance of both inputs, like mean.

    Returns:
        A float64 tensor of shape [n] or [channels].

    Example:
        >>> from mpelu.activations import describe
        >>> covariance(describe(torch.nn.ReLU()), torch.tensor([0.0, 1.0]))
        tensor([0.1592, 0.5000], dtype=torch.float64)
    """
    return _expected(
        function, correlation, mean, variance, function.apply, _conditional_mean, HALVINGS
    )


@torch.no_grad()
def slope_covariance(
    function: ElementwiseFunction,
    correlation: float | Tensor,
    mean: float | Tensor = 0.0,
    variance: float | Tensor = 1.0,
) -> Tensor:
    """Returns E[f'(y1) f'(y2)], the derivative of `covariance` by the covariance of the inputs.

    Takes and returns the same as `covariance`.
    """
    return _expected(
        function, correlation, mean, variance, function.derivative, _conditional_slope, _FINE
    )


def correlation_map(
    function: ElementwiseFunction, correlation: float | Tensor, variance: float | Tensor = 1.0
) -> Tensor:
    """Returns C(c) = E[f(y1) f(y2)] / E[f^2] for inputs with mean zero.

    Takes and returns the same as `covariance`, without the mean.

    Example:
        >>> from mpelu.activations import describe
        >>> round(correlation_map(describe(mpelu.MPELU(alpha=2.5, beta=0.4)), 0.0).item(), 4)
        0.0086
    """
    return covariance(function, correlation, 0.0, variance) / function.moments(0.0, variance)[1]


def correlation_slope(
    function: ElementwiseFunction, correlation: float | Tensor, variance: float | Tensor = 1.0
) -> Tensor:
    """Returns C'(c) for inputs with mean zero. C'(1) = variance E[f'^2] / E[f^2].

    Takes and returns the same as `covariance`, without the mean.
    """
    second = function.moments(0.0, variance)[1]
    return slope_covariance(function, correlation, 0.0, variance) * variance / second


def critical_variances(
    function: ElementwiseFunction, variance: float = 1.0
) -> tuple[float, float] | None:
    """Returns the n Var(w) and Var(b) that preserve the variance of both signal and gradient.

    n Var(w) = 1 / E[f'^2] preserves gradients, and Var(b) = q - E[f^2] / E[f'^2] then preserves the
    signal (the edge of chaos). Returns None if Var(b) would be negative.

    Args:
        function: activation as returned by `mpelu.activations.describe`.
        variance: variance q before the activation.

    Example:
        >>> from mpelu.activations import describe
        >>> [round(value, 4) for value in critical_variances(describe(torch.nn.ELU()))]
        [1.4968, 0.0347]
    """
    weight_variance = 1 / average(function.squared_slope(0.0, variance))
    bias_variance = variance - weight_variance * average(function.moments(0.0, variance)[1])
    if bias_variance < -1e-9 * variance:
        return None
    return weight_variance, max(0.0, bias_variance)


def _real_kinks(function: ElementwiseFunction, sigma: Tensor) -> list[float | Tensor]:
    """Returns those of the likely kinks that a panel as wide as sigma must not straddle.

    If the function is smooth enough at a place, one panel across it agrees with two that end there.
    The place isn't in the middle of the panel, where an odd jump would cancel.
    """
    if function.has_closed_form:
        return list(function.kinks)
    width = sigma.max().clamp(min=_NARROWEST)
    found: list[float | Tensor] = []
    for kink in function.kinks:
        place = to_float64(kink).reshape(-1).expand(function.channels)
        low, high = place - _BELOW * width, place + (1 - _BELOW) * width
        whole = panel_mean(function.apply, low, high)
        below, above = (panel_mean(function.apply, *ends) for ends in ((low, place), (place, high)))
        parted = _BELOW * below + (1 - _BELOW) * above
        size = function.apply(torch.stack([low, high])).abs().max().clamp(min=_NARROWEST)
        if not ((whole - parted).abs().max() <= _SMOOTH * size):
            found.append(kink)
    return found


Conditional = Callable[[ElementwiseFunction, Tensor, Tensor], Tensor]
"""Returns the mean of a function under N(mean [points, n], variance [n])."""


def _expected(
    function: ElementwiseFunction,
    correlation: float | Tensor,
    mean: float | Tensor,
    variance: float | Tensor,
    apply: Callable[[Tensor], Tensor],
    conditional: Conditional,
    halvings: int,
) -> Tensor:
    given = to_float64(correlation).reshape(-1)
    if not (given.abs() <= 1).all():
        raise ValueError(f"expected a correlation from -1 to 1, got {given.abs().max().item():g}")
    c, center, spread, _ = torch.broadcast_tensors(
        given,
        to_float64(mean).reshape(-1),
        to_float64(variance).reshape(-1),
        torch.empty(function.channels, device="cpu"),
    )
    sigma = spread.sqrt()
    rest = (1 - c) * (1 + c)
    # The expectation over y2 bends where its mean, m + c (y1 - m), is at a kink.
    toward = torch.where(c.abs() < _EQUAL, _EQUAL, c)
    places = _real_kinks(function, sigma)
    moved = [center + (kink - center) / toward for kink in places]
    kinks = [
        *places,
        *(new for new, old in zip(moved, places, strict=True) if not bool((new == old).all())),
    ]
    z, weight = gaussian_nodes(center, sigma, kinks, halvings)
    y = center + sigma * z
    other = center + c * sigma * z
    values = torch.where(
        rest > _EQUAL, conditional(function, other, (spread * rest).clamp(min=_EQUAL)), apply(other)
    )
    return (weight * apply(y) * values).sum(0)


def _conditional_mean(function: ElementwiseFunction, mean: Tensor, variance: Tensor) -> Tensor:
    if function.slope is not None:
        return leaky_moments(function.slope, mean, variance)[0]
    if function.alpha is not None and function.beta is not None:
        alpha, beta = to_float64(function.alpha), to_float64(function.beta)
        return to_float64(function.scale) * exponential_mean(alpha, beta, mean, variance)
    return _by_quadrature(function, function.apply, mean, variance)


def _conditional_slope(function: ElementwiseFunction, mean: Tensor, variance: Tensor) -> Tensor:
    if function.slope is not None:
        above = normal_cdf(mean / variance.sqrt())
        found: Tensor = above + to_float64(function.slope) * (1 - above)
        return found
    if function.alpha is not None and function.beta is not None:
        alpha, beta = to_float64(function.alpha), to_float64(function.beta)
        return to_float64(function.scale) * exponential_slope(alpha, beta, mean, variance)
    return _by_quadrature(function, function.derivative, mean, variance)


def _by_quadrature(
    function: ElementwiseFunction,
    apply: Callable[[Tensor], Tensor],
    mean: Tensor,
    variance: Tensor,
) -> Tensor:
    """Integrates column by column, which limits the memory used."""
    columns = []
    places = _real_kinks(function, variance.sqrt())
    for index, column in enumerate(mean.T):
        kinks = [
            kink[index] if isinstance(kink, Tensor) and kink.numel() > 1 else kink
            for kink in places
        ]
        if function.channels == 1:
            chosen = apply
        else:

            def chosen(y: Tensor, index: int = index) -> Tensor:
                """Evaluates one channel's function at any number of points."""
                flat = y.reshape(-1, 1).expand(-1, function.channels)
                return apply(flat)[:, index].reshape(y.shape)

        columns.append(quadrature_mean(chosen, column, variance[index], kinks))
    return torch.stack(columns, 1)
