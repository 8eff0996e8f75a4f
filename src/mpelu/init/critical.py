"""The critical rule: weights that keep gradients, and biases that keep the signal."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from mpelu.activations.elementwise import ElementwiseFunction
from mpelu.init.activations import Activation
from mpelu.init.values import Value, as_value, average


def as_function(activation: Activation) -> ElementwiseFunction:
    """As `mpelu.theory` takes it."""
    return ElementwiseFunction(
        apply=activation.function,
        channels=activation.channels,
        alpha=activation.alpha,
        beta=activation.beta,
        scale=activation.scale,
        slope=activation.slope,
        kinks=activation.kinks,
    )


@lru_cache(maxsize=1024)
def _cached_slope(activation: Activation, mean: float, variance: float) -> float:
    return as_function(activation).squared_slope(mean, variance).mean().item()


def squared_slope(activation: Activation, mean: Value, variance: Value) -> float:
    """E[f'^2] under N(mean, variance), averaged over channels."""
    if isinstance(mean, Tensor) or isinstance(variance, Tensor):
        found = as_function(activation).squared_slope(mean, variance)
        return average(as_value(found))
    return _cached_slope(activation, mean, round(variance, 9) or variance)
