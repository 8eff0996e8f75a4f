"""Tracks which dimension of each tensor holds the channels that its layer created."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mpelu.graph.calls import Call, Ref
from mpelu.graph.ops import MOVES


def find_channels(calls: Sequence[Call]) -> list[Channels | None]:
    """Returns where the output of each call has its channels; None where this is unknown.

    What comes before an activation decides; if that is unclear, the layer after it does.
    """
    found: list[Channels | None] = []
    inputs = (call.shape for call in calls if call.target is None and call.shape)
    batch = next((max(shape[0], 1) for shape in inputs), 1)
    for call in calls:
        found.append(_after(call, calls, found, batch))
    return _from_consumers(calls, found)


def _after(
    call: Call, calls: Sequence[Call], found: Sequence[Channels | None], batch: int
) -> Channels | None:
    if call.target is None:
        return _of_input(call)
    made = _made_by(call, calls, found)
    if made is not None:
        return made
    fed = [index for index in call.fed_by if found[index] is not None]
    if not fed or _is_product(call):
        return None
    # The input that has the output's shape, such as x in x * gate.
    first = next((index for index in fed if calls[index].shape == call.shape), fed[0])
    before = found[first]
    assert before is not None
    return carried(call, before, calls[first].shape, batch)


def _of_input(call: Call) -> Channels | None:
    """Guesses an input's channels: dimension 1 for images, the last one for feature vectors."""
    ndim = 0 if call.shape is None else len(call.shape)
    if ndim == 3 or ndim == 0:
        return None
    return Channels(1 if ndim > 3 else -1, f"guessed for input of {ndim} dimensions")


def _made_by(
    call: Call, calls: Sequence[Call], found: Sequence[Channels | None]
) -> Channels | None:
    """Returns the channels that a layer creates, whatever its input."""
    if _is_product(call):
        return _of_product(call, calls, found)
    target: Any = call.target
    is_module = isinstance(target, nn.Module)
    source = f"{call.name} ({type(target).__name__})" if is_module else call.name
    if call.kind == "convolution":
        spatial = target.weight.dim() - 2 if is_module else int(call.name[-2])
        # An image without a batch dimension has its channels first.
        return Channels(1 if call.shape is None else len(call.shape) - spatial - 1, source)
    if call.kind == "layer norm" and is_module and len(target.normalized_shape) > 1:
        return None
    if call.kind in ("linear", "recurrent", "layer norm"):
        return Channels(-1, source)
    return Channels(1, source) if call.kind in ("batch norm", "group norm") else None


def _is_product(call: Call) -> bool:
    """Returns whether the call multiplies matrices that may both be data."""
    return call.kind == "product" or _has_data_for_weight(call)


def _has_data_for_weight(call: Call) -> bool:
    """Returns whether data is the weight, as in linear(h, h), which has a channel for each row."""
    if isinstance(call.target, nn.Module):
        return False
    is_layer = call.name == "linear" or call.kind == "convolution"
    return is_layer and isinstance(call.argument(1, "weight"), Ref)


def _of_product(
    call: Call, calls: Sequence[Call], found: Sequence[Channels | None]
) -> Channels | None:
    """Returns new channels for a weight on the right, or for data those in its last dimension."""
    if call.name == "einsum" or _has_data_for_weight(call) or len(call.args) < 2:
        return None
    right = (
        call.args[2] if call.name in ("addmm", "baddbmm") and len(call.args) > 2 else call.args[1]
    )
    if not isinstance(right, Ref):
        return Channels(-1, call.name)
    before, shape = found[right.index], calls[right.index].shape
    if before is None or shape is None or before.position(len(shape)) != len(shape) - 1:
        return None
    return Channels(-1, before.source)


def _from_consumers(calls: Sequence[Call], found: list[Channels | None]) -> list[Channels | None]:
    """Fills gaps with what the layers that take an output expect, from back to front."""
    expected = list(found)
    for index, call in reversed(list(enumerate(calls))):
        if not call.fed_by or expected[call.fed_by[0]] is not None:
            continue
        source = call.fed_by[0]
        wanted = _wanted(call)
        if wanted is None and found[index] is None and call.shape == calls[source].shape:
            wanted = expected[index]
        expected[source] = wanted
    return expected


def _wanted(call: Call) -> Channels | None:
    """Returns where a layer expects the channels of its input."""
    made = None if _is_product(call) else _made_by(call, (), ())
    return None if made is None else Channels(made.dim, f"{made.source}, which takes it")


@dataclass(frozen=True)
class Channels:
    """Where the channels of a tensor are."""

    dim: int
    """-1 for the last dimension, otherwise its position."""
    source: str
    """Evidence for it: the path of a layer, or a guess in words."""

    def position(self, ndim: int) -> int:
        return self.dim % ndim


def carried(call: Call, before: Channels, shape: torch.Size | None, batch: int) -> Channels | None:
    """Returns where a call that creates no channels puts those of its input."""
    if shape is None or call.shape is None:  # one of several outputs, or shapes are unknown
        return _carried_blindly(call, before)
    old, new, position = len(shape), len(call.shape), before.position(len(shape))
    if call.kind == "reshape" and shape != call.shape:
        return _reshaped(before, shape, call.shape, batch)
    order = _order(call, old)
    if order is not None:
        return _at(order.index(position), new, before)
    if new == old:
        return before
    if call.operation == "unsqueeze":
        inserted = call.argument(1, "dim") % new
        return _at(position + (inserted <= position), new, before)
    if position == old - 1 and call.shape[-1:] == shape[-1:]:
        return Channels(-1, before.source)
    if position < new and call.shape[position] == shape[position]:
        return _at(position, new, before)
    return None


def _carried_blindly(call: Call, before: Channels) -> Channels | None:
    """Does the same without shapes, from the call alone."""
    if call.operation == "permute":
        order = _order(call, len(_given(call))) or []
        return _at(order.index(before.position(len(order))), len(order), before)
    if call.operation in ("transpose", "swapaxes") and set(_given(call)) == {1, -1}:
        return Channels({1: -1, -1: 1}.get(before.dim, before.dim), before.source)
    if call.operation == "flatten":
        layer: Any = call.target
        start = getattr(layer, "start_dim", None) or call.argument(1, "start_dim", 0)
        if start == 0:  # includes the batch
            return None
        return before if before.dim == 1 and start > 1 else Channels(-1, before.source)
    return None if call.kind in MOVES else before


def _at(position: int, ndim: int, before: Channels) -> Channels:
    is_last = position == ndim - 1 and (ndim > 2 or before.dim == -1)
    return Channels(-1 if is_last else position, before.source)


def _given(call: Call) -> list[int]:
    """Returns the dimensions that a call names, one by one or as a tuple."""
    values = [*call.args[1:], *call.kwargs.values()]
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = list(values[0])
    return [value for value in values if isinstance(value, int)]


def _order(call: Call, ndim: int) -> list[int] | None:
    """Returns which old dimension is at each position, for calls that exchange dimensions."""
    if call.kind != "exchange":
        return None
    order = list(range(ndim))
    if call.operation == "permute":
        return [dim % ndim for dim in _given(call)]
    if call.name == "T":
        return order[::-1]
    pair = [-2, -1] if call.name in ("t", "mT", "mH", "H", "adjoint") else _given(call)
    if len(pair) != 2 or ndim < 2:
        return None
    one, other = (each % ndim for each in pair)
    if call.operation in ("movedim", "moveaxis"):
        order.insert(other, order.pop(one))
    else:
        order[one], order[other] = order[other], order[one]
    return order


def _reshaped(before: Channels, old: torch.Size, new: torch.Size, batch: int) -> Channels | None:
    """Finds the same, a merged or a split dimension by the number of elements in front of it.

    Returns None if it was merged with the batch, whose size may differ the next time.
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
    for index in range(len(new)):  # merged with the next, as before a classifier, or the previous
        starts, ends = ahead[index] == front, through[index] == front * size
        if new[index] > size and (starts or ends):
            return _at(index, len(new), before)
    for index in range(len(new)):  # split, as into heads: the last part
        if through[index] == front * size and new[index] < size:
            return Channels(
                _at(index, len(new), before).dim, f"guessed from a part of {before.source}"
            )
    return None
