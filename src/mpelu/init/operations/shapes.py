"""Rules for operations that keep or join values: shapes, order, copies, joins and constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import dropout, padding

from mpelu.elementwise import LINEAR, average, fit
from mpelu.graph import Call, Ref
from mpelu.init.operations.registry import Step, named, register_operation
from mpelu.init.signal import Note, Signal, Source, concatenated, constant_signal, doubted, mixed

aten: Any = torch.ops.aten
prims: Any = torch.ops.prims


@register_operation(
    dropout._DropoutNd,
    nn.Flatten,
    nn.Identity,
    nn.Sequential,  # an empty one
    nn.Unflatten,
    nn.Upsample,
    padding._ReflectionPadNd,
    padding._ReplicationPadNd,
    padding._CircularPadNd,
    *named(
        "alpha_dropout", "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double",
        "dropout", "dropout1d", "dropout2d", "dropout3d", "expand", "expand_as",
        "feature_alpha_dropout", "flatten", "float", "half", "interpolate", "masked_fill", "ravel",
        "requires_grad", "reshape", "reshape_as", "squeeze", "to", "type", "type_as", "unflatten",
        "unsqueeze", "upsample", "view", "view_as", "nan_to_num", "broadcast_to", "data",
    ),
    aten._reshape_alias, aten._to_copy, aten._unsafe_view, aten.alias, aten.lift_fresh,
    aten.lift_fresh_copy, prims.broadcast_in_dim, prims.convert_element_type, prims.collapse_view,
    prims.split_dim,
)  # fmt: skip
def keeps(step: Step) -> Signal | None:
    value = step.call.argument(0, "input")
    return constant_signal(value) if isinstance(value, Tensor) else step.first


@register_operation(
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ChannelShuffle,
    nn.Unfold,
    *named(
        "T", "mT", "H", "mH", "t", "adjoint", "channel_shuffle", "chunk", "flip", "gather",
        "index_select", "moveaxis", "movedim", "narrow", "permute", "pixel_shuffle",
        "pixel_unshuffle", "repeat", "repeat_interleave", "roll", "rot90", "select", "split",
        "split_with_sizes", "swapaxes", "swapdims", "take_along_dim", "tensor_split", "tile",
        "transpose", "triu", "tril", "unbind", "unfold", "diagonal", "topk", "sort",
        "masked_select",
    ),
    aten.slice, aten.as_strided, aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.im2col,
    aten.reflection_pad1d, aten.reflection_pad2d, aten.replication_pad2d, aten.index,
)  # fmt: skip
def mixes(step: Step) -> Signal | None:
    value = step.call.argument(0, "input")
    return mixed(constant_signal(value) if isinstance(value, Tensor) else step.first)


@register_operation(*named("zeros_like", "new_zeros", "zeros", "empty_like", "new_empty"))
def _zeros(step: Step) -> Signal:
    shape = step.call.shape
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    return Signal(variance=0.0, first_order=0.0, channels=channels)


@register_operation(*named("ones_like", "new_ones"))
def _ones(step: Step) -> Signal:
    return constant_signal(1.0)


@register_operation(*named("full_like", "new_full"))
def _full(step: Step) -> Signal | None:
    value = step.call.argument(2 if step.call.name == "new_full" else 1, "fill_value")
    return constant_signal(value) if isinstance(value, (int, float)) else None


@register_operation(*named("randn_like"))
def _noise(step: Step) -> Signal:
    return Signal(sources=(Source("noise", LINEAR),))


@register_operation(*named("where"))
def _where(step: Step) -> Signal | None:
    if len(step.call.args) != 3 or step.call.name != "where":
        return None
    condition, one, other = step.call.args
    if not isinstance(condition, (Ref, Tensor)):
        return None
    signals = [step.signals[value.index] for value in (one, other) if isinstance(value, Ref)]
    return (
        concatenated(signals, along_channels=False)
        if len(signals) > 1
        else next(iter(signals), None)
    )


@register_operation(Tensor.__setitem__)
def _assign(step: Step) -> Signal:
    """Returns the signal of the assigned values; the rest of the tensor is assumed to be alike."""
    return mixed(step.signal(step.call.args[2]))


@register_operation(aten.copy, aten.copy_)
def _copy(step: Step) -> Signal:
    """Returns the signal of the copied values, also in place."""
    source = step.call.argument(1, "src")
    return step.signal(source) if isinstance(source, Ref) else mixed(step.first)


def pad_amounts(call: Call) -> Any:
    """Returns the padding before and after each dimension, starting with the last."""
    is_module = isinstance(call.target, nn.Module)
    return call.target.padding if is_module else call.argument(1, "pad", ())  # type: ignore[union-attr]


def pads_zeros(call: Call) -> bool:
    """Returns whether the call puts zeros around its input."""
    if isinstance(call.target, padding._ConstantPadNd):
        return not call.target.value
    if isinstance(call.target, nn.Module) or call.name not in ("pad", "constant_pad_nd"):
        return False
    if call.name == "constant_pad_nd":
        return not call.argument(2, "value")
    return call.argument(2, "mode", "constant") == "constant" and not call.argument(3, "value")


@register_operation(padding._ConstantPadNd, *named("pad", "constant_pad_nd"))
def _pad(step: Step) -> Signal | None:
    """Adds zeros for new channels; new positions reduce the moments by their share."""
    call, signal = step.call, step.first
    amounts = pad_amounts(call)
    dims = len(call.shape) if call.shape is not None else 4
    position = 2 * (dims - 2)
    if not isinstance(amounts, (tuple, list)):
        return signal
    if not all(isinstance(amount, int) for amount in amounts):
        return doubted(signal, Note(f"fed by {call.name}, which adds an unknown number of zeros"))
    if len(amounts) <= position or not any(amounts[position : position + 2]):
        before = step.shape(call.argument(0, "input"))
        if before is None or call.shape is None or not pads_zeros(call) or not any(amounts):
            return signal
        share = before.numel() / max(1, call.shape.numel())
        second = signal.second * share
        mean = signal.mean * share
        return replace(signal, mean=mean, variance=second - mean**2, before=None, layer=None)
    around = amounts[position : position + 2]
    if signal.channels is None:
        return signal
    mean, variance, moment = (
        F.pad(fit(values, signal.channels), tuple(around))
        for values in (signal.mean, signal.variance, signal.first_order)
    )
    channels = signal.channels + sum(around)
    return replace(
        signal, mean=mean, variance=variance, first_order=moment, channels=channels, before=None,
        layer=None,
    )  # fmt: skip


@register_operation(*named("getitem"))
def _index(step: Step) -> Signal:
    signal, index = step.first, step.call.argument(1, "index")
    if not isinstance(index, tuple) or len(index) < 2 or signal.channels is None:
        return mixed(signal)
    if not all(isinstance(part, slice) for part in index):
        return mixed(signal)
    if index[1] == slice(None):
        return replace(signal, layer=None)
    try:
        mean, variance, moment = (
            fit(values, signal.channels)[index[1]]
            for values in (signal.mean, signal.variance, signal.first_order)
        )
    except TypeError:  # a bound computed from an unknown shape
        return mixed(signal)
    if mean.numel() == 0:
        return mixed(signal)
    return replace(
        signal, mean=mean, variance=variance, first_order=moment, channels=mean.numel(),
        before=None, layer=None,
    )  # fmt: skip


@register_operation(*named("cat", "concat", "concatenate"))
def _concatenate(step: Step) -> Signal | None:
    values = step.call.argument(0, "tensors")
    if not isinstance(values, (tuple, list)):
        return None
    dim = step.call.argument(1, "dim", 0)
    parts = [
        value
        for value in values
        if isinstance(value, Ref) or (isinstance(value, Tensor) and value.numel() > 0)
    ]
    if not parts or not isinstance(dim, int):
        return None
    shape = step.call.shape
    along_channels = dim == 1 or dim == -3 or (dim == -1 and shape is not None and len(shape) == 2)
    signals = [step.signal(value) for value in parts]
    shapes = [step.shape(value) for value in parts]
    if not along_channels and shape is not None and all(each is not None for each in shapes):
        return _weighted(signals, [each.numel() for each in shapes if each is not None])
    return concatenated(signals, along_channels)


def _weighted(signals: list[Signal], sizes: list[int]) -> Signal:
    """Combines the moments of parts of different sizes."""
    joined = concatenated(signals, along_channels=False)
    total = sum(sizes)
    mean, second, moment = (
        sum(average(value) * size for value, size in zip(values, sizes, strict=True)) / total
        for values in (
            [signal.mean for signal in signals],
            [signal.second for signal in signals],
            [signal.first_order for signal in signals],
        )
    )
    return replace(joined, mean=mean, variance=second - mean**2, first_order=moment)


@register_operation(*named("stack", "hstack", "vstack", "dstack"))
def _stack(step: Step) -> Signal | None:
    values = step.call.argument(0, "tensors")
    if not isinstance(values, (tuple, list)):
        return None
    return concatenated([step.signal(value) for value in values], along_channels=False)
