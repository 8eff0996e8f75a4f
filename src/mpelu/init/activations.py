"""What the initialization knows of an activation: its parameters, moments and gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from mpelu.activations import TABLE, known_function
from mpelu.gaussian import (
    leaky_moments,
    moments,
    plain_tensors,
    quadrature_moments,
    to_float64,
)
from mpelu.graph import (
    elementwise,
    elementwise_channels,
    elementwise_function,
    identity,
    key_of_module,
    key_of_value,
)
from mpelu.init.values import Value, as_value, average, fit, size_of

_PROBE_STEP = 1e-6
_LEAST_SHARE = 0.01
"""Taylor is given up where the tangents at zero have less than this share of E[f^2]."""
_LIKELY_KINKS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0)
"""Where the activations of torch.nn have theirs."""


@dataclass(frozen=True)
class Activation:
    """An elementwise activation: exponential (alpha, beta), leaky (slope) or any other."""

    name: str
    function: Callable[[Tensor], Tensor]
    """Maps [points, channels] to the same shape."""
    alpha: Value | None = None
    beta: Value | None = None
    scale: float = 1.0
    slope: Value | None = None
    kinks: tuple[float, ...] = (0.0,)
    channels: int = 1
    """How many channels its parameters are for; 1 if it treats all alike."""
    affine: tuple[Value, Value] | None = None
    """Scale and shift of a function that is no more than that, such as a learned scale."""
    key: Hashable = None
    """Equal for functions that are equal, if its family doesn't say it all; None if that can't be
    told."""


_Result = TypeVar("_Result")
_MOST = 1024


def remembered(
    table: dict[Hashable, _Result],
    key: Hashable,
    arguments: tuple[Hashable, ...],
    calculate: Callable[[], _Result],
) -> _Result:
    """What was calculated for this activation and these arguments; without a key, anew.

    A table holds numbers alone, so that no model stays alive, and loses its oldest entries.

    Args:
        table: of one kind of result.
        key: of the activation.
        arguments: all else that decides the result.
        calculate: what to do where the table has nothing.
    """
    place = (key, *arguments)
    found = table.get(place)
    if found is None:
        with plain_tensors():
            found = calculate()
        if key is not None:
            while len(table) >= _MOST:
                table.pop(next(iter(table)), None)
            table[place] = found
    return found


def exponential(
    name: str, alpha: float | Tensor, beta: float | Tensor, scale: float = 1.0
) -> Activation:
    """scale times y for y > 0, alpha (e^(beta y) - 1) otherwise."""
    alphas, betas = as_value(alpha), as_value(beta)

    def function(y: Tensor) -> Tensor:
        return scale * torch.where(y > 0, y, alphas * torch.expm1(betas * y.clamp(max=0)))

    return Activation(
        name, function, alphas, betas, scale, channels=max(size_of(alphas), size_of(betas))
    )


def leaky(name: str, slope: float | Tensor) -> Activation:
    """y for y > 0, slope y otherwise."""
    slopes = as_value(slope)
    return Activation(
        name, lambda y: torch.where(y > 0, y, slopes * y), slope=slopes, channels=size_of(slopes)
    )


LINEAR = leaky("linear", 1.0)


def pointwise(
    name: str, function: Callable[[Tensor], Tensor], channels: int = 1, dims: int = 4
) -> Activation | None:
    """The function as an activation, or None if an output depends on more than its own input.

    Args:
        name: for the report.
        function: takes and returns one tensor, channels in dimension 1.
        channels: size of dimension 1 it expects; 1 if any will do.
        dims: number of dimensions it expects.
    """
    found = elementwise_function(function, channels, dims)
    return None if found is None else _measured(name, found, channels, None)


def _measured(
    name: str, function: Callable[[Tensor], Tensor], channels: int, key: Hashable
) -> Activation:
    if function is identity:
        return LINEAR
    points = torch.linspace(-8, 8, 257, dtype=torch.float64, device="cpu")
    points = points.unsqueeze(1).expand(-1, channels)
    values = function(points)
    slope, shift = values[-1] - values[-17], values[128]  # over a distance of one, and at zero
    is_affine = torch.allclose(values, slope * points + shift, rtol=1e-6, atol=0)
    return Activation(
        name,
        function,
        kinks=_LIKELY_KINKS,
        channels=channels,
        affine=(as_value(slope), as_value(shift)) if is_affine else None,
        # Values too: a function may also depend on what its module doesn't hold.
        key=None if key is None else (key, key_of_value(values)),
    )


def describe_module(module: nn.Module) -> Activation | None:
    """The module as an activation, or None if it isn't one."""
    name = type(module).__name__
    known = known_function(module)
    if known is not None and known.slope is not None:
        return leaky(name, known.slope)
    if (
        known is not None
        and known.alpha is not None
        and known.beta is not None
        and not isinstance(known.scale, Tensor)
    ):
        return exponential(name, known.alpha, known.beta, known.scale)
    function = elementwise(module)
    if function is None:
        return None
    return _measured(name, function, elementwise_channels(module), key_of_module(module))


@lru_cache(maxsize=1024)
@plain_tensors()
def _exponential_moments(alpha: float, beta: float, variance: float) -> tuple[float, float]:
    """Of numbers; a deep network asks for the same ones hundreds of times."""
    mean, second = moments(alpha, beta, variance)
    return mean.item(), second.item()


def _moments(
    activation: Activation, mean: Value, variance: Value, maximum_of: int
) -> tuple[Value, Value]:
    """Mean and second moment, as tensors unless they were cheaper to have as numbers."""
    if maximum_of == 1 and activation.slope is not None:
        return leaky_moments(activation.slope, mean, variance)
    alpha, beta, scale = activation.alpha, activation.beta, activation.scale
    is_centered = isinstance(mean, float) and mean == 0
    if maximum_of == 1 and alpha is not None and beta is not None and is_centered:
        if isinstance(alpha, float) and isinstance(beta, float) and isinstance(variance, float):
            first, second = _exponential_moments(alpha, beta, variance)
            return scale * first, scale**2 * second
        means, seconds = moments(alpha, beta, variance)
        return scale * means, scale**2 * seconds
    if activation.channels > 1:
        mean, variance = fit(mean, activation.channels), fit(variance, activation.channels)

    def integrate() -> tuple[Tensor, Tensor]:
        return quadrature_moments(activation.function, mean, variance, activation.kinks, maximum_of)

    if isinstance(mean, Tensor) or isinstance(variance, Tensor):
        return integrate()

    def calculate() -> tuple[float, float]:
        first, second = integrate()
        return first.item(), second.item()

    both = remembered(_other_moments, activation.key, (mean, variance, maximum_of), calculate)
    first, second = torch.tensor(both, dtype=torch.float64, device="cpu").split(1)
    return first, second


_other_moments: dict[Hashable, tuple[float, float]] = {}


def gaussian_moments(
    activation: Activation, mean: Value, variance: Value, maximum_of: int = 1
) -> tuple[Value, Value]:
    """Mean and variance of the activation of N(mean, variance).

    Args:
        activation: what is applied.
        mean: before the activation.
        variance: as mean.
        maximum_of: take the largest of this many independent values first.
    """
    first, second = _moments(activation, mean, variance, maximum_of)
    if isinstance(first, float) and isinstance(second, float):
        return first, max(0.0, second - first**2)
    spread = to_float64(second) - to_float64(first) ** 2
    return as_value(first), as_value(spread.clamp(min=0))


def activation_moments(
    activation: nn.Module | str, variance: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean and second moment of an activation under N(0, variance).

    In closed form for MPELU, ReLU, leaky ReLU, PReLU, ELU, CELU and SELU; by quadrature for any
    other elementwise module.

    Args:
        activation: a module, or a name such as "relu".
        variance: a number, or one for each channel.

    Returns:
        Float64 tensors of shape [1] or [channels].

    Example:
        >>> mean, second = activation_moments(nn.ReLU())
        >>> round(second.item(), 4)
        0.5
    """
    found = find_activation("activation_moments", activation)
    mean, second = _moments(found, 0.0, as_value(variance), maximum_of=1)
    return to_float64(mean).reshape(-1), to_float64(second).reshape(-1)


def find_activation(caller: str, activation: nn.Module | str) -> Activation:
    """A module or a name as an activation; raises ValueError for anything else."""
    if isinstance(activation, nn.Module):
        found = describe_module(activation)
        if found is None:
            raise ValueError(
                f"{caller}: expected an elementwise activation, got {type(activation).__name__}"
            )
        return found
    if not isinstance(activation, str):
        raise TypeError(f"{caller}: expected a module or a name, got {type(activation).__name__}")
    plain = activation.replace("_", "").lower()
    if plain in ("linear", "identity"):
        return LINEAR
    for name in TABLE:
        if name.replace("_", "") == plain:
            found = describe_module(TABLE[name].make(1))
            if found is not None:
                return found
    for name in nn.modules.activation.__all__:
        if name.lower() == plain:
            try:
                found = describe_module(getattr(nn, name)())
            except TypeError:  # one that has no defaults, such as Threshold
                break
            if found is not None:
                return found
    raise ValueError(
        f"{caller}: expected the name of an elementwise activation, got {activation!r}"
    )


def taylor_factor(activation: Activation) -> Value:
    """E[f^2] / Var(y) with f replaced by its tangents at zero.

    (1 + alpha^2 beta^2) / 2 for MPELU, as in the paper. Where the tangents nearly vanish, as those
    of a squared ReLU, it is the exact one.
    """
    return exact_factor(activation) if has_no_tangent(activation) else _tangent_factor(activation)


def safe_taylor_factor(activation: Activation) -> Value:
    """As `taylor_factor`, but never below the exact one.

    The tangents of MPELU lie outside of it. Those of GELU and SiLU lie inside, and weights by them
    would let the signal grow from layer to layer.
    """
    factor = taylor_factor(activation)
    if activation.slope is not None or activation.alpha is not None:
        return factor
    exact = exact_factor(activation)
    return exact if average(factor) < average(exact) else factor


def has_no_tangent(activation: Activation) -> bool:
    """Whether the tangents at zero say nothing about the activation."""
    if activation.slope is not None or activation.alpha is not None:
        return False  # the tangents are at least those of ReLU
    return average(_tangent_factor(activation)) < _LEAST_SHARE * average(exact_factor(activation))


def _tangent_factor(activation: Activation) -> Value:
    if activation.slope is not None:
        return (1 + activation.slope**2) / 2
    if activation.alpha is not None and activation.beta is not None:
        return activation.scale**2 * (1 + (activation.alpha * activation.beta) ** 2) / 2
    points = torch.tensor([[-_PROBE_STEP], [0.0], [_PROBE_STEP]], dtype=torch.float64, device="cpu")
    below, value, above = activation.function(points.expand(3, activation.channels))
    left, right = (value - below) / _PROBE_STEP, (above - value) / _PROBE_STEP
    mixed = 2 * value * (right - left) / math.sqrt(2 * math.pi)
    return as_value(value**2 + mixed + (left**2 + right**2) / 2)


def msra_factor(activation: Activation) -> Value:
    """E[f^2] / Var(y) as He et al. have it: by slope for the leaky family, else as for ReLU."""
    return 0.5 if activation.slope is None else (1 + activation.slope**2) / 2


_growth_exponents: dict[Hashable, float] = {}


def _growth_exponent(activation: Activation, variance: float) -> float:
    step = 1.01
    before, after = (
        average(as_value(_moments(activation, 0.0, each, maximum_of=1)[1]))
        for each in (variance, variance * step)
    )
    if not before > 0 or not after > 0:
        return 1.0
    return math.log(after / before) / math.log(step)


def sensitivity(activation: Activation, variance: float) -> float:
    """d log E[f^2] / d log Var(y): by how much a relative error in the variance grows.

    1 for ReLU, below 1 for ELU, above 1 for GELU and SiLU.
    """
    if activation.slope is not None or not 0 < variance < math.inf:
        return 1.0
    if activation.alpha is not None and activation.beta is not None:
        return 1.0  # at most, since |f| is below the tangents
    variance = round(variance, 6) or variance
    return remembered(
        _growth_exponents,
        activation.key,
        (variance,),
        lambda: _growth_exponent(activation, variance),
    )


def exact_factor(activation: Activation) -> Value:
    """E[f^2] under a standard normal variable."""
    return as_value(_moments(activation, 0.0, 1.0, maximum_of=1)[1])


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
    found = find_activation("gain", activation)
    if method == "xavier":
        return 1.0
    return 1 / math.sqrt(average(_FACTORS[method](found)))
