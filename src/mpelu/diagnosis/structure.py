"""What the calls of a pass tell about a network: gates, last layers, and rows of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from mpelu.graph import Call, Ref, name_of
from mpelu.init.layers import Layer, layer_of

_PRODUCTS = ("mul", "multiply", "imul", "rmul")
_VIEWS = (
    "view", "reshape", "expand", "expand_as", "unsqueeze", "permute", "transpose", "getitem", "to",
    "float",
)  # fmt: skip


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
