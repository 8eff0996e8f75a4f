"""Where the channels of a tensor are, and where a change of its shape puts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mpelu.graph import Call


@dataclass(frozen=True)
class Channels:
    """Where the channels of a tensor are."""

    dim: int
    """-1 for the last dimension, the position of any other."""
    source: str
    """What says so: the path of a layer, or a guess in words."""

    def position(self, ndim: int) -> int:
        return self.dim % ndim


_RESHAPES = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "ravel")
_EXCHANGES = (
    "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "mT", "mH", "H", "adjoint",
)  # fmt: skip
MOVES = (*_RESHAPES, *_EXCHANGES, "permute", "T", "unsqueeze", "squeeze", "getitem", "select")


def carried(call: Call, before: Channels, shape: torch.Size | None, batch: int) -> Channels | None:
    """Where a call that makes no channels of its own puts those that come in."""
    if shape is None or call.shape is None:  # one of several outputs, or nothing is known of shapes
        return _carried_blindly(call, before)
    old, new, position = len(shape), len(call.shape), before.position(len(shape))
    operation = _operation(call)
    if operation in _RESHAPES and shape != call.shape:
        return _reshaped(before, shape, call.shape, batch)
    order = _order(call, old)
    if order is not None:
        return _at(order.index(position), new, before)
    if new == old:
        return before
    if operation == "unsqueeze":
        inserted = call.argument(1, "dim") % new
        return _at(position + (inserted <= position), new, before)
    if position == old - 1 and call.shape[-1:] == shape[-1:]:
        return Channels(-1, before.source)
    if position < new and call.shape[position] == shape[position]:
        return _at(position, new, before)
    return None


def _carried_blindly(call: Call, before: Channels) -> Channels | None:
    """The same without shapes, as far as that goes."""
    operation = _operation(call)
    if operation == "permute":
        ndim = len(_given(call))
        return _at(_permuted(call, ndim).index(before.position(ndim)), ndim, before)
    if operation in ("transpose", "swapaxes") and set(_given(call)) == {1, -1}:
        return Channels({1: -1, -1: 1}.get(before.dim, before.dim), before.source)
    if operation == "flatten":
        layer: Any = call.target
        start = getattr(layer, "start_dim", None) or call.argument(1, "start_dim", 0)
        if start == 0:  # with the batch
            return None
        return before if before.dim == 1 and start > 1 else Channels(-1, before.source)
    return None if operation in MOVES else before


def _operation(call: Call) -> str:
    """The name of a function, or the class of a module as the function is called."""
    return type(call.target).__name__.lower() if isinstance(call.target, nn.Module) else call.name


def _at(position: int, ndim: int, before: Channels) -> Channels:
    is_last = position == ndim - 1 and (ndim > 2 or before.dim == -1)
    return Channels(-1 if is_last else position, before.source)


def _given(call: Call) -> list[int]:
    """The dimensions that a call names, be it one by one or as a tuple."""
    values = [*call.args[1:], *call.kwargs.values()]
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = list(values[0])
    return [value for value in values if isinstance(value, int)]


def _permuted(call: Call, ndim: int) -> list[int]:
    return [dim % ndim for dim in _given(call)]


def _order(call: Call, ndim: int) -> list[int] | None:
    """For calls that exchange dimensions: which old one stands at each position."""
    order = list(range(ndim))
    if call.name == "permute":
        return _permuted(call, ndim)
    if call.name == "T":
        return order[::-1]
    pair = [-2, -1] if call.name in ("t", "mT", "mH", "H", "adjoint") else _given(call)
    if call.name not in _EXCHANGES or len(pair) != 2 or ndim < 2:
        return None
    one, other = (each % ndim for each in pair)
    if call.name in ("movedim", "moveaxis"):
        order.insert(other, order.pop(one))
    else:
        order[one], order[other] = order[other], order[one]
    return order


def _reshaped(before: Channels, old: torch.Size, new: torch.Size, batch: int) -> Channels | None:
    """By the number of elements in front: the same dimension, one that took it up, or a part.

    None if it took up the batch as well, whose size is another the next time.
    """
    found = _by_elements(before, old, new)
    if found is None or before.position(len(old)) == 0:
        return found
    position, size = found.position(len(new)), old[before.position(len(old))]
    in_front = math.prod(new[:position])
    is_whole = in_front % batch == 0 or in_front % max(old[0], 1) == 0
    has_batch = position == 0 or (new[position] > size and not is_whole)
    return None if has_batch else found


def _by_elements(before: Channels, old: torch.Size, new: torch.Size) -> Channels | None:
    position = before.position(len(old))
    size, front = old[position], math.prod(old[:position])
    ahead = [math.prod(new[:index]) for index in range(len(new))]
    through = [front_of_new * length for front_of_new, length in zip(ahead, new, strict=True)]
    same = [i for i in range(len(new)) if ahead[i] == front and new[i] == size]
    if same:
        return _at(same[-1], len(new), before)
    for index in range(len(new)):  # merged with what follows, as before a classifier, or precedes
        starts, ends = ahead[index] == front, through[index] == front * size
        if new[index] > size and (starts or ends):
            return _at(index, len(new), before)
    for index in range(len(new)):  # split, as into heads: the last part
        if through[index] == front * size and new[index] < size:
            return Channels(
                _at(index, len(new), before).dim, f"guessed from a part of {before.source}"
            )
    return None
