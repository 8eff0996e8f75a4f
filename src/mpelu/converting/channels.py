"""Which dimension of a tensor has the channels: that which its layer made, wherever it goes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn
from torch.nn.modules import batchnorm, conv, instancenorm

from mpelu.converting.shapes import Channels, carried
from mpelu.graph import Call, Ref

_CONVOLUTION = re.compile(r"conv(?:_transpose)?([123])d")
_LAST = ("linear", "embedding", "layer_norm", "rms_norm")
_SECOND = ("batch_norm", "group_norm", "instance_norm")


def find_channels(calls: Sequence[Call]) -> list[Channels | None]:
    """Where the output of each call has its channels; None where nothing tells.

    Where nothing before an activation tells, the layer after it does.
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
    # The one that looks most like the output, such as x in x * gate.
    first = next((index for index in fed if calls[index].shape == call.shape), fed[0])
    before = found[first]
    assert before is not None
    return carried(call, before, calls[first].shape, batch)


def _of_input(call: Call) -> Channels | None:
    """Images have their channels in dimension 1, features alone in the last."""
    ndim = 0 if call.shape is None else len(call.shape)
    if ndim == 3 or ndim == 0:
        return None
    return Channels(1 if ndim > 3 else -1, f"guessed for input of {ndim} dimensions")


def _made_by(
    call: Call, calls: Sequence[Call], found: Sequence[Channels | None]
) -> Channels | None:
    """The channels that a layer makes, whatever comes in."""
    target, name = call.target, call.name
    if isinstance(target, nn.Module):
        label = f"{name} ({type(target).__name__})"
        if isinstance(target, conv._ConvNd):
            return Channels(_conv_dim(call, target.weight.dim() - 2), label)
        if isinstance(target, (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.RNNBase)):
            return Channels(-1, label)
        if isinstance(target, (nn.LayerNorm, nn.RMSNorm)):
            return Channels(-1, label) if len(target.normalized_shape) == 1 else None
        if isinstance(target, (batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.GroupNorm)):
            return Channels(1, label)
        return None
    if _is_product(call):
        return _of_product(call, calls, found)
    matched = _CONVOLUTION.fullmatch(name)
    if matched:
        return Channels(_conv_dim(call, int(matched[1])), name)
    if name in _LAST:
        return Channels(-1, name)
    if name in _SECOND:
        return Channels(1, name)
    return None


def _conv_dim(call: Call, spatial: int) -> int:
    """1, or 0 for an image without a batch."""
    return 1 if call.shape is None else len(call.shape) - spatial - 1


def _is_product(call: Call) -> bool:
    """Whether it multiplies matrices of which both may be data."""
    products = ("matmul", "rmatmul", "mm", "bmm", "addmm", "baddbmm", "einsum")
    return call.name in products or _has_data_for_weight(call)


def _has_data_for_weight(call: Call) -> bool:
    """As linear(h, h) has, which makes as many channels as there are rows in the batch."""
    if isinstance(call.target, nn.Module):
        return False
    is_layer = call.name == "linear" or _CONVOLUTION.fullmatch(call.name) is not None
    return is_layer and isinstance(call.argument(1, "weight"), Ref)


def _of_product(
    call: Call, calls: Sequence[Call], found: Sequence[Channels | None]
) -> Channels | None:
    """A product with a weight on the right makes new channels; one with data keeps its last."""
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
    """Fills gaps by what the layers that take an output expect, from back to front."""
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
    """Where a layer expects the channels of its input."""
    made = None if _is_product(call) else _made_by(call, (), ())
    return None if made is None else Channels(made.dim, f"{made.source}, which takes it")
