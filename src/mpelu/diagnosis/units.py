"""Shares of dead, saturated and linear units of an activation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.activations import TABLE, describe, find_activation
from mpelu.diagnosis.inputs import is_measurable
from mpelu.diagnosis.structure import CalledActivation, Function, clipping_of, with_slopes
from mpelu.elementwise import LINEAR
from mpelu.graph import Call, isolated, name_of, tensors_in

FLAT_SLOPE = 0.01
"""An input is saturated where the absolute slope is below this."""
LINEAR_REST = 1e-3
"""A unit is linear where a line leaves less than this share of its outputs' variance."""
_FLAT_SHARE = 0.4
"""An activation that is flat on this share of a standard Gaussian is one-sided, such as ReLU."""
_MOST_POINTS = 4096
"""At which that is looked at."""
_NAMES = {name.lower() for name in nn.modules.activation.__all__} | {
    name.replace("_", "") for name in TABLE
}
_LEARNED = ("prelu", "mpelu")
"""Functions that take parameters for channels."""
_NO_ACTIVATIONS = {"identity", "softmax", "softmin", "logsoftmax", "softmax2d", "glu"}


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitShares:
    """Shares of an activation's units, between 0 and 1."""

    units: int
    """How many there are."""
    dead: float
    saturated: float | None = None
    linear: float | None = None


def activation_of(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CalledActivation | None:
    """The activation that a call applies to a tensor, or None.

    It is known by its class or name. Any other function is one if it is found to be elementwise
    with a flat part, such as clamp(min=0).
    """
    target = call.target
    if target is None:
        return None
    values: Any = args[0] if args else next(iter(kwargs.values()), None)
    if isinstance(target, nn.Module):
        if find_activation(target) is None and type(target).__name__.lower() not in _NAMES:
            is_own = not type(target).__module__.startswith("torch.nn")
            return clipping_of(isolated(target), args, kwargs) if is_own else None
        function = describe(target)
        if function is None or function is LINEAR or not _is_batch(values):
            return None
        return CalledActivation(isolated(target), values)
    plain = re.sub("_", "", name_of(target)).lower()
    if plain not in _NAMES:
        return clipping_of(target, args, kwargs)
    if plain in _NO_ACTIVATIONS or not args or not _is_batch(values):
        return None
    # A copy of the input is passed, so in place is harmless.
    return CalledActivation(partial(_called, target, args[1:], kwargs), values)


def _is_batch(values: Any) -> bool:
    return isinstance(values, Tensor) and values.dim() > 1 and is_measurable(values)


def _called(target: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], values: Tensor) -> Tensor:
    found: Tensor = target(values, *rest, **kwargs)
    return found


def own_axis(call: Call) -> int | None:
    """The dimension that an activation has parameters along; None if it has none of its own."""
    target = call.target
    if isinstance(target, nn.Module):
        own: list[Tensor] = list(target.parameters(recurse=False))
        is_learned = type(target).__name__.lower() in _LEARNED
        axis = getattr(target, "dim", 1 if is_learned else None)
    else:
        is_learned = name_of(target) in _LEARNED
        own = tensors_in((call.args[1:], call.kwargs)) if is_learned else []
        axis = call.argument(4, "dim", 1)
    return axis if isinstance(axis, int) and any(each.numel() > 1 for each in own) else None


def shares_of(activation: CalledActivation, axis: int) -> UnitShares:
    """The shares over all inputs of each unit.

    Args:
        activation: elementwise, with the shapes of its values.
        axis: dimension of the units.
    """
    function, values = activation.function, activation.values.detach()
    outputs, slopes = with_slopes(function, values)
    results, steep = _by_unit(outputs, axis), _by_unit(slopes, axis)
    is_dead = (steep == 0).all(1) & (results.amin(1) == results.amax(1))
    if not activation.is_known:
        return UnitShares(units=len(is_dead), dead=_share(is_dead))
    flat = (steep.abs() < FLAT_SLOPE).double().mean(1)
    is_saturated = (flat >= 0.5) & ~is_dead
    is_linear = _is_linear(_by_unit(values, axis), results)
    return UnitShares(
        units=len(is_dead),
        dead=_share(is_dead),
        saturated=None if _is_one_sided(function, values, axis) else _share(is_saturated),
        linear=_share(is_linear & ~is_dead),
    )


def _share(units: Tensor) -> float:
    return units.double().mean().item()


def _by_unit(values: Tensor, axis: int) -> Tensor:
    return values.movedim(axis, 0).flatten(1)


def _is_linear(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Units whose outputs vary, and are a line over their inputs."""
    x, y = (each.double() for each in (inputs, outputs))
    x, y = (each - each.mean(1, keepdim=True) for each in (x, y))
    xx, yy, xy = (x * x).sum(1), (y * y).sum(1), (x * y).sum(1)
    rest = yy - xy * xy / xx.clamp(min=torch.finfo(torch.float64).tiny)
    return (yy > 0) & (rest < LINEAR_REST * yy)


def _is_one_sided(function: Function, values: Tensor, axis: int) -> bool:
    """Whether the activation is flat on one side of zero."""
    if axis > 0:  # some samples are enough
        values = values[: math.ceil(_MOST_POINTS / max(1, values[0].numel()))]
    count = values.numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    normal = torch.special.ndtri((order + 0.5) / count).reshape(values.shape)
    _, slopes = with_slopes(function, normal.to(values.device, values.dtype))
    return bool((slopes.abs() < FLAT_SLOPE).double().mean() > _FLAT_SHARE)
