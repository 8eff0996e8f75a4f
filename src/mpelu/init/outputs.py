"""Moments of a layer's output, from those of its input and its weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mpelu.elementwise import Value, as_value, average, fit
from mpelu.graph import Layer
from mpelu.init.signal import Signal

TARGET = 1.0
"""Variance of every pre-activation, by the rules that can choose it."""


def deviation(weight: Tensor) -> float:
    """Standard deviation over all elements."""
    if weight.numel() == 0:
        return 0.0
    dtype = torch.promote_types(weight.dtype, torch.float64)
    return weight.detach().to(dtype).std(correction=0).item()


def by_group(layer: Layer, value: Value) -> Value:
    """Mean over the input channels of each group, a number where the groups are alike."""
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
    """Mean and variance of the output over random weights and data."""
    variance = std**2 * layer.fan_in * reached * by_group(layer, signal.second)
    if isinstance(variance, Tensor):
        variance = variance.repeat_interleave(layer.out_channels // layer.groups)
    return _bias(layer), variance


def after_fixed(layer: Layer, signal: Signal, keeps_bias: bool = False) -> tuple[Value, Value]:
    """Mean and variance of the output over data alone, inputs taken as independent.

    Args:
        layer: whose weight stays.
        signal: into it.
        keeps_bias: whether its bias stays too, although it is trained.
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
