"""Linear and convolutional layers, whether modules or functional calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from mpelu.init.graph import Call
from mpelu.init.rules import fans

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


@dataclass(frozen=True)
class Layer:
    weight: Tensor
    bias: Tensor | None
    groups: int = 1
    transposed: bool = False
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    """Zeros before and after along each spatial axis; empty where other values are put there."""

    @property
    def channels(self) -> int:
        """Of the input."""
        return self.weight.size(0) if self.transposed else self.weight.size(1) * self.groups

    @property
    def out_channels(self) -> int:
        return self.weight.size(1) * self.groups if self.transposed else self.weight.size(0)

    @property
    def fans(self) -> tuple[float, float]:
        """Fan in and fan out; a transposed convolution spreads its taps over stride positions."""
        fan_in, fan_out = fans(self.weight, self.groups, self.transposed)
        return (fan_in / math.prod(self.stride) if self.transposed else fan_in), fan_out


def _by_axis(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))


def _convolution(
    weight: Tensor,
    bias: Tensor | None,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> Layer:
    dims = weight.dim() - 2
    dilations = _by_axis(dilation, dims)
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilations, weight.shape[2:], strict=True)]
        zeros = tuple((total // 2, total - total // 2) for total in totals)
    else:
        amounts = _by_axis(0 if isinstance(padding, str) else padding, dims)
        zeros = tuple((amount, amount) for amount in amounts)
    return Layer(weight, bias, groups, False, _by_axis(stride, dims), dilations, zeros)


def layer_of(call: Call) -> Layer | None:
    """The layer a call runs, or None if it runs something else."""
    module = call.target
    if isinstance(module, nn.Linear):
        return Layer(module.weight, module.bias)
    if isinstance(module, _ConvTransposeNd):
        return Layer(module.weight, module.bias, module.groups, True, module.stride)
    if isinstance(module, _ConvNd):
        layer = _convolution(
            module.weight,
            module.bias,
            module.stride,
            module.padding,
            module.dilation,
            module.groups,
        )
        return layer if module.padding_mode == "zeros" else replace(layer, padding=())
    if isinstance(module, nn.Module):
        return None

    def option(position: int, key: str, default: Any = None) -> Any:
        return call.args[position] if len(call.args) > position else call.kwargs.get(key, default)

    transposed = call.name in _TRANSPOSED
    if call.name != "linear" and call.name not in _CONVOLUTIONS and not transposed:
        return None
    weight, bias = option(1, "weight"), option(2, "bias")
    if not isinstance(weight, Tensor) or not (bias is None or isinstance(bias, Tensor)):
        return None
    if call.name == "linear":
        return Layer(weight, bias)
    stride, groups = option(3, "stride", 1), option(6, "groups", 1)
    if transposed:
        return Layer(weight, bias, groups, True, _by_axis(stride, weight.dim() - 2))
    padding, dilation = option(4, "padding", 0), option(5, "dilation", 1)
    return _convolution(weight, bias, stride, padding, dilation, groups)
