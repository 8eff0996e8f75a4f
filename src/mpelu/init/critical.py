"""The critical rule: weights that keep gradients, and biases that keep the signal."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mpelu.activations.elementwise import ElementwiseFunction, exponential, leaky
from mpelu.gaussian import plain_tensors
from mpelu.init.activations import Activation, remembered
from mpelu.init.values import Value, as_value, average

_STEP = 1e-5


class _Differentiable(torch.autograd.Function):
    """An elementwise function whose derivative is taken by central differences.

    Functions that were found by running a module or a call have no graph.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(y)
        ctx.function = function
        return function(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        rise = ctx.function(y + _STEP) - ctx.function(y - _STEP)
        return gradients[0] * rise / (2 * _STEP), None


def as_function(activation: Activation) -> ElementwiseFunction:
    """As `mpelu.theory` takes it."""

    def apply(y: Tensor) -> Tensor:
        found: Tensor = _Differentiable.apply(y, activation.function)  # type: ignore[no-untyped-call]
        return found

    return ElementwiseFunction(
        apply=apply,
        channels=activation.channels,
        alpha=activation.alpha,
        beta=activation.beta,
        scale=activation.scale,
        slope=activation.slope,
        kinks=activation.kinks,
    )


# One calculation serves all modules of a shape, however deep the network.
@lru_cache(maxsize=1024)
@plain_tensors()
def _exponential_slope(
    alpha: float, beta: float, scale: float, mean: float, variance: float
) -> float:
    return exponential(alpha, beta, scale).squared_slope(mean, variance).item()


@lru_cache(maxsize=1024)
@plain_tensors()
def _leaky_slope(slope: float, mean: float, variance: float) -> float:
    return leaky(slope).squared_slope(mean, variance).item()


_other_slopes: dict[Hashable, float] = {}


def squared_slope(activation: Activation, mean: Value, variance: Value) -> float:
    """E[f'^2] under N(mean, variance), averaged over channels."""
    if isinstance(mean, Tensor) or isinstance(variance, Tensor):
        found = as_function(activation).squared_slope(mean, variance)
        return average(as_value(found))
    variance = round(variance, 9) or variance
    alpha, beta, slope = activation.alpha, activation.beta, activation.slope
    if isinstance(slope, float):
        return _leaky_slope(slope, mean, variance)
    if isinstance(alpha, float) and isinstance(beta, float):
        return _exponential_slope(alpha, beta, activation.scale, mean, variance)

    def calculate() -> float:
        return as_function(activation).squared_slope(mean, variance).mean().item()

    return remembered(_other_slopes, activation.key, (mean, variance), calculate)
