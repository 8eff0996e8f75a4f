"""Follows signals through layers: moments after a weight, recurrent layers, and the effect of zero
padding, which is exact or, if the sizes of maps are unknown, a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from mpelu.elementwise import LINEAR, Value, as_value, average, fit
from mpelu.graph import Call, Layer, Weights
from mpelu.init.methods import TARGET, Incoming, Method
from mpelu.init.operations import hidden_second, pad_amounts, pads_zeros
from mpelu.init.plan import Plan
from mpelu.init.signal import Note, Signal, Source


def deviation(weight: Tensor) -> float:
    """Returns the standard deviation over all elements."""
    if weight.numel() == 0:
        return 0.0
    dtype = torch.promote_types(weight.dtype, torch.float64)
    return weight.detach().to(dtype).std(correction=0).item()


def by_group(layer: Layer, value: Value) -> Value:
    """Returns the mean over each group's input channels; one number if the groups agree."""
    if isinstance(value, Tensor):
        if not layer.is_standard:
            value = average(value)
        else:
            value = as_value(fit(value, layer.channels).reshape(layer.groups, -1).mean(1))
    # A constant zero, such as an all-zero example input, says nothing about scale.
    return torch.where(value > 0, value, 1.0) if isinstance(value, Tensor) else value or 1.0


def _bias(layer: Layer, is_kept: bool = False) -> Value:
    bias = layer.bias
    if bias is None or bias.dim() != 1 or isinstance(bias, FakeTensor):
        return 0.0
    if bias.requires_grad and not is_kept:
        return 0.0
    return as_value(bias)


def after_random(layer: Layer, signal: Signal, reached: float, std: Value) -> tuple[Value, Value]:
    """Returns the mean and variance of the output over random weights and data."""
    variance = std**2 * layer.fan_in * reached * by_group(layer, signal.second)
    if isinstance(variance, Tensor):
        variance = variance.repeat_interleave(layer.out_channels // layer.groups)
    return _bias(layer), variance


def after_fixed(layer: Layer, signal: Signal, keeps_bias: bool = False) -> tuple[Value, Value]:
    """Returns the mean and variance of the output over data alone, assuming independent inputs.

    Args:
        layer: layer whose weight stays.
        signal: moments of the layer's input.
        keeps_bias: whether the bias stays too, although it is trained.
    """
    shape = layer.weight.shape
    if not layer.is_standard or isinstance(layer.weight, FakeTensor):
        if isinstance(layer.weight, FakeTensor):
            return 0.0, TARGET
        return 0.0, layer.fan_in * deviation(layer.weight) ** 2 * average(signal.second)
    weight = layer.weight.detach().to("cpu", torch.float64)
    weight = weight.reshape(layer.groups, -1, shape[1], math.prod(shape[2:]))
    if layer.transposed:
        weight = weight.transpose(1, 2) / math.sqrt(math.prod(layer.stride))
    mean, variance = (
        fit(value, layer.channels).reshape(layer.groups, 1, -1, 1)
        for value in (signal.mean, signal.variance)
    )
    out_mean = (weight * mean).sum((2, 3)).flatten()
    return out_mean + _bias(layer, keeps_bias), (weight**2 * variance).sum((2, 3)).flatten()


_FED_BY_INPUT = ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")
"""Weights of a recurrent module that take its input; the others take hidden states."""


def recurrent_plans(
    index: int, call: Call, signal: Signal, weights: Weights, method: Method
) -> Iterator[Plan]:
    """Yields a plan for each weight of a recurrent module.

    Each of the two weights of a layer gets half of the target variance of the gates' sums.
    """
    module = call.target
    assert isinstance(module, nn.Module)
    hidden = hidden_second(type(module).__name__.removesuffix("Cell"))
    # A weight that a hook computes is an attribute, not a parameter.
    tensors = [*module.named_parameters(recurse=False), *vars(module).items()]
    for name, weight in tensors:
        key = weights.key(weight) if isinstance(weight, Tensor) else None
        if key is None or weight.dim() < 2:
            continue
        if isinstance(weight, nn.Parameter) and weights.parametrized(key[0]) is not None:
            continue
        is_input = name in _FED_BY_INPUT
        second = (average(signal.second) or 1.0) if is_input else hidden
        incoming = Incoming(
            fan=weight.size(1),
            fan_in=weight.size(1),
            fan_out=weight.size(0),
            moment=second,
            signal=signal,
            target=TARGET if name.startswith("weight_hr") else TARGET / 2,
        )
        has_rule = method.has_rule
        yield Plan(
            name=key[0],
            key=key,
            index=index,
            weight=weight,
            bias=getattr(module, name.replace("weight", "bias"), None),
            is_trained=weights.is_trained(weight),
            sources=signal.sources if is_input else (Source(call.name, LINEAR),),
            fan=float(weight.size(1)),
            std=method.rule(incoming) if has_rule else deviation(weights.again(weight)),
            doubts=signal.doubts if is_input else (),
            is_computed=weights.is_computed(weight),
        )


SIZE = 64
"""Assumed minimum size of input maps."""
LEAST_SHARE = 0.55
"""Share of a layer's inputs below which padding gets a note."""
PADDING_NOTE = Note("zeros around a map of unknown size (pass inputs or input_shape)")

Profile = tuple[Tensor, ...]
"""Effect of zero padding: the relative second moment by position along each spatial axis, with mean
one. An output at the border has fewer inputs, and is itself a weaker input to the next layer. Along
one axis this is a convolution with ones; for a map it is the product over the axes."""


def flat(shape: torch.Size | None) -> Profile:
    """Returns a profile that is the same everywhere; it has no axes if the shape is unknown."""
    return tuple(torch.ones(size, dtype=torch.float64, device="cpu") for size in (shape or ())[2:])


def padded(
    profile: Profile,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> tuple[Profile, float]:
    """Returns the profile after a convolution, and the share of its inputs that aren't padding."""
    share = 1.0
    axes = []
    for axis, values in enumerate(profile):
        ones = torch.ones(1, 1, kernel[axis], dtype=torch.float64, device="cpu")
        reached = F.conv1d(
            F.pad(values, padding[axis]).view(1, 1, -1),
            ones / ones.numel(),
            stride=stride[axis],
            dilation=dilation[axis],
        ).flatten()
        mean = reached.mean().item()
        share *= mean
        axes.append(reached / mean)
    return tuple(axes), share


def resized(profile: Profile, shape: torch.Size | None) -> Profile:
    """Returns the profile after an operation that resizes the map or leaves none."""
    if shape is None or len(shape) != len(profile) + 2:
        return flat(shape)
    if all(values.numel() == size for values, size in zip(profile, shape[2:], strict=True)):
        return profile
    stretched = (
        F.interpolate(values.view(1, 1, -1), size=size, mode="linear").flatten()
        for values, size in zip(profile, shape[2:], strict=True)
    )
    return tuple(values / values.mean() for values in stretched)


def through_layer(
    layer: Layer, profile: Profile, shape: torch.Size | None
) -> tuple[Profile, float]:
    """Returns the profile after a layer whose output has this shape, and the share of the layer's
    inputs that aren't padding."""
    if len(profile) != len(layer.padding):
        return flat(shape), 1.0
    if layer.transposed:
        return flat(shape), _spread_share(layer, profile, shape) if shape else 1.0
    return padded(profile, layer.kernel, layer.stride, layer.dilation, layer.padding)


def through_operation(call: Call, profile: Profile) -> Profile:
    """Returns the profile after any other call."""
    return _surrounded(profile, call) if pads_zeros(call) else resized(profile, call.shape)


def is_small(layer: Layer, step: float) -> bool:
    """Returns whether padding may replace much of a layer's input, with pixels `step` apart."""
    if layer.transposed or not any(amount for pair in layer.padding for amount in pair):
        return False
    size = max(1, round(SIZE / step))
    return _share(size, layer.kernel, layer.stride, layer.dilation, layer.padding) < LEAST_SHARE


@lru_cache(maxsize=256)
def _share(
    size: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> float:
    reach = [step * (width - 1) + 1 for step, width in zip(dilation, kernel, strict=True)]
    if any(size + sum(zeros) < each for zeros, each in zip(padding, reach, strict=True)):
        return 0.0
    ones = tuple(torch.ones(size, dtype=torch.float64, device="cpu") for _ in kernel)
    return padded(ones, kernel, stride, dilation, padding)[1]


def _spread_share(layer: Layer, profile: Profile, shape: torch.Size) -> float:
    """Returns how many inputs an output of a transposed layer has, relative to its fan_in."""
    share = 1.0
    for axis, values in enumerate(profile):
        size, taps, stride = shape[axis + 2], layer.kernel[axis], layer.stride[axis]
        starts = torch.arange(values.numel(), device="cpu").unsqueeze(1) * stride
        taken = torch.arange(taps, device="cpu") * layer.dilation[axis]
        places = starts - layer.padding[axis][0] + taken
        reached = ((places >= 0) & (places < size)).sum().item()
        share *= reached / size * stride / taps
    return share


def pads_small(call: Call, step: float) -> bool:
    """Returns whether a padding module may add many zeros to a map, with pixels `step` apart."""
    if not isinstance(call.target, nn.modules.padding._ConstantPadNd):
        return False
    amounts: Any = call.target.padding
    size = max(1, round(SIZE / step))
    axes = zip(amounts[::2], amounts[1::2], strict=True)
    return bool(math.prod(size / (size + sum(pair)) for pair in axes) < LEAST_SHARE)


def _surrounded(profile: Profile, call: Call) -> Profile:
    """Returns the profile after zeros were put around a map."""
    amounts = pad_amounts(call)
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[: len(profile)]
    if not all(isinstance(amount, int) and amount >= 0 for pair in pairs for amount in pair):
        return resized(profile, call.shape)
    wider = [F.pad(values, pair) for values, pair in zip(reversed(profile), pairs, strict=False)]
    kept = profile[: len(profile) - len(pairs)]
    return (*kept, *(values / values.mean() for values in reversed(wider)))


def step_after(call: Call, layer: Layer | None, step: float) -> float:
    """Returns the distance, in pixels of the input, between neighbors in the call's output."""
    if layer is not None:
        strides: Sequence[int] = layer.stride or (1,)
        ratio: float = math.prod(strides) ** (1 / len(strides))
        return step / ratio if layer.transposed else step * ratio
    target: Any = call.target
    if isinstance(target, (nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd)):
        taken = target.stride
    elif call.name.startswith(("max_pool", "avg_pool")):
        taken = call.argument(2, "stride") or call.argument(1, "kernel_size")
    else:
        return step
    taken = taken[0] if isinstance(taken, (tuple, list)) else taken
    return float(step * taken) if isinstance(taken, int) else step
