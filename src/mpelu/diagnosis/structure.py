"""What calls tell about a network: gates, last layers, rows of weights, and flat activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.diagnosis.inputs import is_measurable
from mpelu.graph import Call, Ref, elementwise_function, identity, name_of, substitute, tensors_in
from mpelu.init.layers import Layer, layer_of

_PRODUCTS = ("mul", "multiply", "imul", "rmul")
_VIEWS = (
    "view", "reshape", "expand", "expand_as", "unsqueeze", "permute", "transpose", "getitem", "to",
    "float",
)  # fmt: skip


def plain_name(target: Any) -> str:
    """Name of a function or of a module's class, in lower case without underscores."""
    name = type(target).__name__ if isinstance(target, nn.Module) else name_of(target)
    return name.replace("_", "").lower()


def gate_calls(calls: Sequence[Call]) -> Iterator[Call]:
    """Calls whose output is multiplied with another tensor."""
    for call in calls:
        tensors = [each for each in call.args if isinstance(each, (Ref, Tensor))]
        if name_of(call.target) in _PRODUCTS and len(tensors) > 1:
            for index in call.fed_by:
                yield calls[_through_views(index, calls)]


def _through_views(index: int, calls: Sequence[Call]) -> int:
    """The call behind views and reshapes."""
    while calls[index].name in _VIEWS and isinstance(calls[index].argument(0, "input"), Ref):
        index = calls[index].argument(0, "input").index
    return index


def followed_calls(calls: Sequence[Call]) -> set[int]:
    """Ids of the calls whose output reaches a weight of a later call."""
    found: set[int] = set()
    for call in reversed(calls):
        if id(call) in found or _has_weight(call):
            found.update(id(calls[index]) for index in call.fed_by)
    return found


def _has_weight(call: Call) -> bool:
    target = call.target
    if isinstance(target, nn.Module):
        return any(each.dim() > 1 for each in target.parameters())
    return layer_of(call) is not None


def has_equal_rows(layer: Layer) -> bool:
    """Whether the weights of all outputs are the same, and not zero.

    Outputs of different groups see different inputs, so rows are compared inside of each group.
    """
    if not layer.weight.requires_grad or layer.out_channels < 2:
        return False
    weight = layer.weight.detach()
    if not layer.is_standard:  # which of its dimensions the outputs are isn't known
        rows = weight.reshape(1, -1, 1)
    elif layer.transposed:
        rows = weight.movedim(1, 0).reshape(1, weight.size(1), -1)
    else:
        rows = weight.reshape(layer.groups, weight.size(0) // layer.groups, -1)
    if rows.size(1) < 2 or not rows[0, 0].equal(rows[0, 1]):
        return False
    return bool((rows == rows[:, :1]).all() and rows.any())


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
