"""Shares of dead, saturated and linear units of an activation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.activations import TABLE, describe, find_activation
from mpelu.activations.elementwise import LINEAR
from mpelu.graph import Call, name_of
from mpelu.graph.probe import isolated

FLAT_SLOPE = 0.01
"""An input is saturated where the absolute slope is below this."""
LINEAR_REST = 1e-3
"""A unit is linear where a line leaves less than this share of its outputs' variance."""
_FLAT_SHARE = 0.4
"""An activation that is flat on this share of a standard Gaussian is one-sided, such as ReLU."""
_NAMES = {name.lower() for name in nn.modules.activation.__all__} | {
    name.replace("_", "") for name in TABLE
}
_NO_ACTIVATIONS = {"identity", "softmax", "softmin", "logsoftmax", "softmax2d", "glu"}

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitShares:
    """Shares of an activation's units, between 0 and 1."""

    dead: float
    saturated: float | None
    linear: float


def activation_of(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function | None:
    """The elementwise function that a call applies to its first argument, or None."""
    values = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.dim() < 2:
        return None
    target = call.target
    if isinstance(target, nn.Module):
        if find_activation(target) is None and type(target).__name__.lower() not in _NAMES:
            return None
        function = describe(target)
        return None if function is None or function is LINEAR else isolated(target)
    plain = re.sub("_", "", name_of(target)).lower()
    if target is None or plain not in _NAMES - _NO_ACTIVATIONS or not args:
        return None
    # A copy of the input is passed, so in place is harmless.
    return partial(_called, target, args[1:], kwargs)


def _called(target: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], values: Tensor) -> Tensor:
    found: Tensor = target(values, *rest, **kwargs)
    return found


def shares_of(function: Function, values: Tensor, axis: int) -> UnitShares:
    """The shares over all inputs of each unit.

    Args:
        function: elementwise, with the shapes of `values`.
        values: the activation's inputs.
        axis: dimension of the units.
    """
    values = values.detach()
    outputs, slopes = _with_slopes(function, values)
    by_unit = [_by_unit(each, axis) for each in (values, outputs, slopes)]
    inputs, results, steep = by_unit
    is_dead = (steep == 0).all(1) & (results.amin(1) == results.amax(1))
    flat = (steep.abs() < FLAT_SLOPE).double().mean(1)
    is_saturated = (flat >= 0.5) & ~is_dead
    return UnitShares(
        dead=is_dead.double().mean().item(),
        saturated=None if _is_one_sided(function, values, axis) else _share(is_saturated),
        linear=_share(_is_linear(inputs, results) & ~is_dead),
    )


def _share(units: Tensor) -> float:
    return units.double().mean().item()


def _with_slopes(function: Function, values: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = values.clone().requires_grad_()
        outputs = function(leaf * 1)  # a copy, because the function may work in place
        (slopes,) = torch.autograd.grad(outputs.sum(), leaf)
    return outputs.detach(), slopes


def _by_unit(values: Tensor, axis: int) -> Tensor:
    return values.double().movedim(axis, 0).flatten(1)


def _is_linear(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Units whose outputs vary, and are a line over their inputs."""
    x, y = (each - each.mean(1, keepdim=True) for each in (inputs, outputs))
    xx, yy, xy = (x * x).sum(1), (y * y).sum(1), (x * y).sum(1)
    rest = yy - xy * xy / xx.clamp(min=torch.finfo(torch.float64).tiny)
    return (yy > 0) & (rest < LINEAR_REST * yy)


def _is_one_sided(function: Function, values: Tensor, axis: int) -> bool:
    """Whether the activation is flat on one side of zero."""
    units = values.size(axis)
    points = torch.linspace(0, 1, 66, dtype=torch.float64)[1:-1]
    normal = torch.special.ndtri(points).to(values.device, values.dtype)
    shape = [1] * values.dim()
    shape[0 if axis != 0 else -1] = len(normal)
    spread = normal.reshape(shape)
    shape = list(spread.shape)
    shape[axis] = units
    _, slopes = _with_slopes(function, spread.expand(shape))
    return bool((slopes.abs() < FLAT_SLOPE).double().mean() > _FLAT_SHARE)
