"""Linear and convolutional layers, whether modules or functional calls."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


def layer_of(call: Call) -> Layer | None:
    """The layer a call runs, or None if it runs something else."""
    module = call.target
    if isinstance(module, nn.Linear):
        return Layer(module.weight, module.bias)
    if isinstance(module, _ConvNd):
        transposed = isinstance(module, _ConvTransposeNd)
        return Layer(module.weight, module.bias, module.groups, transposed, module.stride)
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
    stride = option(3, "stride", 1)
    dims = weight.dim() - 2
    return Layer(
        weight,
        bias,
        option(6, "groups", 1),
        transposed,
        (stride,) * dims if isinstance(stride, int) else tuple(stride) * (dims // len(stride)),
    )
