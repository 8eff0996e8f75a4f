"""Maps whose size is not known: where zeros around them may take much of the signal away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mpelu.graph import Call, Layer
from mpelu.init.operations.shape import pad_amounts
from mpelu.init.signal import Note, Profile, padded, resized

SIZE = 64
"""Maps of the input are taken to be at least this large."""
LEAST_SHARE = 0.55
"""Padding that may leave less of a layer's inputs than this is noted."""
PADDING_NOTE = Note(
    "zeros around a map whose size is not known (pass example_inputs or input_shape)"
)


def is_small(layer: Layer, step: float) -> bool:
    """Whether padding may take much of the layer's input, `step` pixels of the input apart."""
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


def spread_share(layer: Layer, profile: Profile, shape: torch.Size) -> float:
    """How many inputs an output of a transposed layer has, relative to its fan_in."""
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
    """Whether a module that pads with zeros may add much to maps `step` pixels apart."""
    if not isinstance(call.target, nn.modules.padding._ConstantPadNd):
        return False
    amounts: Any = call.target.padding
    size = max(1, round(SIZE / step))
    axes = zip(amounts[::2], amounts[1::2], strict=True)
    return bool(math.prod(size / (size + sum(pair)) for pair in axes) < LEAST_SHARE)


def surrounded(profile: Profile, call: Call) -> Profile:
    """The profile after zeros were put around a map."""
    amounts = pad_amounts(call)
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[: len(profile)]
    if not all(isinstance(amount, int) and amount >= 0 for pair in pairs for amount in pair):
        return resized(profile, call.shape)
    wider = [F.pad(values, pair) for values, pair in zip(reversed(profile), pairs, strict=False)]
    kept = profile[: len(profile) - len(pairs)]
    return (*kept, *(values / values.mean() for values in reversed(wider)))


def step_after(call: Call, layer: Layer | None, step: float) -> float:
    """How many pixels of the input lie between neighbours of the call's output, by axis."""
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
