"""How each kind of call changes the signal that goes through it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import batchnorm, dropout, instancenorm, normalization, padding, pooling

from mpelu.init.activations import LINEAR, describe_function, describe_module, pointwise
from mpelu.init.channels import Value, fit
from mpelu.init.graph import Call, Ref, is_frozen, is_opaque, substitute
from mpelu.init.signal import (
    Factor,
    Signal,
    Source,
    activated,
    added,
    concatenated,
    constant_signal,
    mixed,
    multiplied,
    pooled,
    unknown_signal,
)

NORMS = (
    batchnorm._BatchNorm,
    instancenorm._InstanceNorm,
    normalization.GroupNorm,
    normalization.LayerNorm,
    normalization.RMSNorm,
)
_KEEPING_MODULES = (
    dropout._DropoutNd,
    nn.Flatten,
    nn.Identity,
    nn.Sequential,  # one without modules
    nn.Unflatten,
    nn.Upsample,
    padding._ConstantPadNd,
    padding._ReflectionPadNd,
    padding._ReplicationPadNd,
    padding._CircularPadNd,
)
_POOLS = (
    pooling._MaxPoolNd,
    pooling._AvgPoolNd,
    pooling._AdaptiveMaxPoolNd,
    pooling._AdaptiveAvgPoolNd,
)
_KEEPING_FUNCTIONS = frozenset(
    {
        "alpha_dropout",
        "bfloat16",
        "clone",
        "contiguous",
        "cpu",
        "cuda",
        "detach",
        "double",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "expand",
        "expand_as",
        "feature_alpha_dropout",
        "flatten",
        "float",
        "half",
        "interpolate",
        "ravel",
        "requires_grad",
        "reshape",
        "squeeze",
        "to",
        "type",
        "unflatten",
        "unsqueeze",
        "upsample",
        "view",
        "view_as",
    }
)
_MIXING_FUNCTIONS = frozenset(
    {
        "T",
        "channel_shuffle",
        "chunk",
        "flip",
        "gather",
        "get",
        "moveaxis",
        "movedim",
        "permute",
        "pixel_shuffle",
        "pixel_unshuffle",
        "repeat",
        "roll",
        "rot90",
        "split",
        "stack",
        "swapaxes",
        "swapdims",
        "t",
        "tile",
        "transpose",
        "unbind",
        "unfold",
    }
)
_NORM_FUNCTIONS = frozenset(["batch_norm", "group_norm", "instance_norm", "layer_norm"])
_ZEROS = frozenset(["new_zeros", "zeros", "zeros_like"])


def _normalized(signal: Signal, module: nn.Module | None) -> Signal:
    mean: Value = 0.0
    variance: Value = 1.0
    if isinstance(module, nn.RMSNorm):
        mean, variance = signal.mean / signal.second**0.5, signal.variance / signal.second
    if module is not None and is_frozen(module):
        values = {
            name: value.detach().to("cpu", torch.float64).reshape(-1)
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }
        if "running_mean" in values:
            spread = values["running_var"] + module.eps  # type: ignore[operator]
            mean = (signal.mean - values["running_mean"]) / spread.sqrt()
            variance = signal.variance / spread
        weight = values.get("weight", 1.0)
        mean, variance = mean * weight + values.get("bias", 0.0), variance * weight**2
    return replace(signal, mean=mean, variance=variance, before=None, layer=None)


def propagate(
    call: Call, signals: Sequence[Signal], shapes: Sequence[torch.Size | None], factor: Factor
) -> Signal:
    """The signal after any call but that of a layer.

    Args:
        call: what is called.
        signals: of every earlier call, by index.
        shapes: of every earlier call, by index.
        factor: of an activation, by the rule in use.
    """
    inputs = [signals[index] for index in call.fed_by]
    found = None
    if isinstance(call.target, nn.Module):
        if inputs:
            found = _after_module(call, call.target, inputs[0], shapes, factor)
    elif call.name in _ZEROS:
        channels = call.shape[1] if call.shape is not None and len(call.shape) > 1 else None
        found = Signal(0.0, 0.0, 0.0, (), channels)
    elif inputs:
        found = _after_function(call, inputs, shapes, factor)
    return unknown_signal(call) if found is None else found


def _after_module(
    call: Call,
    module: nn.Module,
    signal: Signal,
    shapes: Sequence[torch.Size | None],
    factor: Factor,
) -> Signal | None:
    if isinstance(module, NORMS):
        return _normalized(signal, module)
    if isinstance(module, _KEEPING_MODULES):
        return signal
    if isinstance(module, (nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)):
        return mixed(signal)
    if isinstance(module, _POOLS):
        name = type(module).__name__.lower()
        return _pool(name, getattr(module, "kernel_size", None), call, signal, shapes)
    activation = describe_module(module)
    if activation is not None:
        return activated(signal, call.name, activation, factor)
    if not is_opaque(module):
        return None
    # Mostly checks of the input and changes of shape.
    doubt = f"fed through {call.name}, which is not understood; taken as passing its input on"
    sources = (*signal.sources, Source(call.name, LINEAR, doubt))
    return replace(signal, sources=sources, before=None, layer=None)


def _pool(
    name: str, kernel: Any, call: Call, signal: Signal, shapes: Sequence[torch.Size | None]
) -> Signal:
    kind = "max" if "max" in name else "avg"
    dims = next((int(letter) for letter in name if letter.isdigit()), 2)
    if kernel is None:
        return pooled(signal, kind, _shrinkage(call, shapes))
    return pooled(signal, kind, kernel**dims if isinstance(kernel, int) else math.prod(kernel))


def _shrinkage(call: Call, shapes: Sequence[torch.Size | None]) -> int:
    """How many inputs an output stands for; 1 where the shapes are not known."""
    before = shapes[call.fed_by[0]]
    if before is None or call.shape is None:
        return 1
    return max(1, before.numel() // max(1, call.shape.numel()))


def _after_function(
    call: Call,
    inputs: list[Signal],
    shapes: Sequence[torch.Size | None],
    factor: Factor,
) -> Signal | None:
    name, first = call.name, inputs[0]
    if name in ("add", "sub", "rsub", "mul", "div"):
        return _arithmetic(call, inputs)
    if name == "cat":
        dim = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
        parts = _operands(call.args[0] if call.args else call.kwargs["tensors"], inputs)
        along_channels = dim == 1 or (dim == -1 and call.shape is not None and len(call.shape) == 2)
        if not along_channels and dim != -3:
            parts = [replace(part, channels=None) for part in parts]
        return concatenated(parts)
    if name in _KEEPING_FUNCTIONS:
        return first
    if name in _MIXING_FUNCTIONS:
        return mixed(first)
    if name in _NORM_FUNCTIONS:
        return _normalized(first, None)
    if name == "pad":
        return _padded(call, first)
    if name == "getitem":
        return _indexed(call, first)
    if "pool" in name:
        kernel = call.args[1] if len(call.args) > 1 else call.kwargs.get("kernel_size")
        return _pool(name, None if "adaptive" in name else kernel, call, first, shapes)
    if name == "mean":
        return pooled(first, "avg", _shrinkage(call, shapes))
    if len(inputs) > 1:
        return None
    activation = describe_function(name, call.args[1:], call.kwargs)
    if activation is None and callable(call.target):
        function = call.target

        def on_tensor(y: Tensor) -> Tensor:
            args, kwargs = substitute((call.args, call.kwargs), Ref, lambda _: y)
            return function(*args, **kwargs)

        has_parameters = any(isinstance(value, Tensor) for value in call.args)
        channels = first.channels or 1 if has_parameters else 1
        dims = 4 if call.shape is None else len(call.shape)
        activation = pointwise(name, on_tensor, channels, dims)
    return None if activation is None else activated(first, name, activation, factor)


def _operands(values: Sequence[Any], inputs: Sequence[Signal]) -> list[Signal]:
    """Signals and constants, in order."""
    remaining = iter(inputs)
    return [
        next(remaining) if isinstance(value, Ref) else constant_signal(value) for value in values
    ]


def _arithmetic(call: Call, inputs: list[Signal]) -> Signal | None:
    if len(call.args) != 2 or call.kwargs:
        return None
    left, right = _operands(call.args, inputs)
    if call.name == "add":
        return added(left, right)
    if call.name == "sub":
        return added(left, right, sign=-1)
    if call.name == "rsub":
        return added(right, left, sign=-1)
    if call.name == "mul":
        return multiplied(left, right)
    divisor = call.args[1]
    return None if isinstance(divisor, Ref) else multiplied(left, constant_signal(1 / divisor))


def _padded(call: Call, signal: Signal) -> Signal:
    """Zeros for new channels; new positions do not count."""
    amounts = call.args[1] if len(call.args) > 1 else call.kwargs.get("pad", ())
    dims = len(call.shape) if call.shape is not None else 4
    position = 2 * (dims - 2)
    if len(amounts) <= position or signal.channels is None:
        return signal
    around = amounts[position : position + 2]
    mean, variance, factor = (
        F.pad(fit(values, signal.channels), around)
        for values in (signal.mean, signal.variance, signal.factor)
    )
    channels = signal.channels + sum(around)
    return Signal(mean, variance, factor, signal.sources, channels)


def _indexed(call: Call, signal: Signal) -> Signal:
    index = call.args[1] if len(call.args) > 1 else None
    if not isinstance(index, tuple) or len(index) < 2 or signal.channels is None:
        return mixed(signal)
    if not all(isinstance(part, slice) for part in index):
        return mixed(signal)
    if index[1] == slice(None):
        return replace(signal, layer=None)
    mean, variance, factor = (
        fit(values, signal.channels)[index[1]]
        for values in (signal.mean, signal.variance, signal.factor)
    )
    return Signal(mean, variance, factor, signal.sources, mean.numel())
