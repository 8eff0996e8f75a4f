"""What rules take for E[f^2] / Var(y) of the activation f that feeds a weight."""

from __future__ import annotations

import math

from torch import nn

from mpelu.activations import describe
from mpelu.elementwise import ElementwiseFunction, Value, average

_LEAST_SHARE = 0.01
"""Taylor is given up where the tangents at zero have less than this share of E[f^2]."""


def taylor_factor(activation: ElementwiseFunction) -> Value:
    """E[f^2] / Var(y) with f replaced by its tangents at zero.

    (1 + alpha^2 beta^2) / 2 for MPELU, as in the paper. Where the tangents nearly vanish, as those
    of a squared ReLU, it is the exact one.
    """
    return exact_factor(activation) if has_no_tangent(activation) else _tangent_factor(activation)


def safe_taylor_factor(activation: ElementwiseFunction) -> Value:
    """As `taylor_factor`, but never below the exact one.

    The tangents of MPELU lie outside of it. Those of GELU and SiLU lie inside, and weights by them
    would let the signal grow from layer to layer.
    """
    factor = taylor_factor(activation)
    if activation.has_closed_form:
        return factor
    exact = exact_factor(activation)
    return exact if average(factor) < average(exact) else factor


def has_no_tangent(activation: ElementwiseFunction) -> bool:
    """Whether the tangents at zero say nothing about the activation."""
    if activation.has_closed_form:
        return False  # the tangents are at least those of ReLU
    return average(_tangent_factor(activation)) < _LEAST_SHARE * average(exact_factor(activation))


def _tangent_factor(activation: ElementwiseFunction) -> Value:
    if activation.slope is not None:
        return (1 + activation.slope**2) / 2
    if activation.alpha is not None and activation.beta is not None:
        return activation.scale**2 * (1 + (activation.alpha * activation.beta) ** 2) / 2
    value, left, right = activation.at_zero()
    mixed = 2 * value * (right - left) / math.sqrt(2 * math.pi)
    return value**2 + mixed + (left**2 + right**2) / 2


def msra_factor(activation: ElementwiseFunction) -> Value:
    """E[f^2] / Var(y) as He et al. have it: by slope for the leaky family, else as for ReLU."""
    return 0.5 if activation.slope is None else (1 + activation.slope**2) / 2


def exact_factor(activation: ElementwiseFunction) -> Value:
    """E[f^2] under a standard normal variable."""
    return activation.moments()[1]


_FACTORS = {"taylor": taylor_factor, "msra": msra_factor, "exact": exact_factor}


def gain(activation: nn.Module | str, method: str = "taylor") -> float:
    """The factor to put before 1 / sqrt(n) in the standard deviation of the weights that follow.

    Args:
        activation: a module (its own alpha and beta count, averaged over channels) or a name.
        method: "taylor" (the paper's), "exact", "msra" or "xavier" (linear: always 1).

    Example:
        >>> round(gain("elu"), 4), round(gain("elu", "exact"), 4), round(gain("relu"), 4)
        (1.0, 1.2452, 1.4142)
    """
    expected = [*_FACTORS, "xavier"]
    if method not in expected:
        raise ValueError(f"gain: expected a method of {expected}, got {method!r}")
    if not isinstance(activation, (nn.Module, str)):
        raise TypeError(f"gain: expected a module or a name, got {type(activation).__name__}")
    found = describe(activation)
    if found is None:
        raise ValueError(
            f"gain: expected an elementwise activation, got {type(activation).__name__}"
        )
    return 1.0 if method == "xavier" else 1 / math.sqrt(average(_FACTORS[method](found)))
