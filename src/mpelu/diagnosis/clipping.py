"""Elementwise functions with a flat part that aren't activations by name, such as clamp(min=0)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.diagnosis.moments import is_measurable
from mpelu.graph import elementwise_function, identity, substitute, tensors_in

_RANGE = 6.0
"""A flat part is looked for between minus and plus this."""
_POINTS = 64

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class CalledActivation:
    """An elementwise function and what it is called with."""

    function: Function
    values: Tensor
    is_known: bool = True
    """Whether it is an activation by its name. Of other functions only dead units count: one that
    keeps values in bounds is meant to be linear most of the time."""


def clipping_of(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CalledActivation | None:
    """The function that a call applies to its one tensor with a gradient, or None.

    None unless it is elementwise, and constant on one part of the line and not on another. Other
    tensors have to hold a single value, as zeros_like(x) does in maximum(x, zeros_like(x)).
    """
    tensors = tensors_in((args, kwargs))
    learned = [each for each in tensors if each.requires_grad]
    if len(learned) != 1 or not callable(target):
        return None
    values = learned[0]
    if isinstance(values, nn.Parameter) or values.dim() < 2 or not is_measurable(values):
        return None
    numbers = {id(each): _number(each) for each in tensors if each is not values}
    if any(each is None for each in numbers.values()):
        return None

    def function(y: Tensor) -> Tensor:
        now = substitute((args, kwargs), Tensor, lambda each: y if each is values else each)
        output: Tensor = target(*now[0], **now[1])
        return output

    def on_noise(y: Tensor) -> Tensor:
        now = substitute(
            (args, kwargs), Tensor, lambda each: y if each is values else numbers[id(each)]
        )
        output: Tensor = target(*now[0], **now[1])
        return output

    found = elementwise_function(on_noise, 1, values.dim())
    if found is None or found is identity or not _has_flat_part(on_noise, values.dim()):
        return None
    return CalledActivation(function, values, is_known=False)


def _number(values: Tensor) -> Tensor | None:
    """The single value that a tensor holds, on the CPU, or None."""
    if values.numel() == 0 or torch._C._functorch.is_functorch_wrapped_tensor(values):
        return None
    first = values.flatten()[0]
    return first.cpu() if bool((values == first).all()) else None


def _has_flat_part(function: Function, dims: int) -> bool:
    points = torch.linspace(-_RANGE, _RANGE, _POINTS, dtype=torch.float64)
    try:
        _, slopes = with_slopes(function, points.reshape(-1, *[1] * (dims - 1)))
    except RuntimeError:  # its outputs have no gradient
        return False
    return 0 < int((slopes == 0).sum()) < _POINTS


def with_slopes(function: Function, values: Tensor) -> tuple[Tensor, Tensor]:
    """The function's outputs, and its slope at each value."""
    with torch.enable_grad():
        leaf = values.clone().requires_grad_()
        outputs = function(leaf * 1)  # a copy, because the function may work in place
        (slopes,) = torch.autograd.grad(outputs.sum(), leaf)
    return outputs.detach(), slopes
