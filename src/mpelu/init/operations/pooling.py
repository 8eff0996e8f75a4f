"""Pooling, and reductions of many values to one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import pooling

from mpelu.elementwise import average
from mpelu.graph import Call
from mpelu.init.operations.registry import Step, alone, named, register_operation
from mpelu.init.signal import Note, Signal, doubted, mixed, pooled


def _count(call: Call, shapes: Sequence[torch.Size | None]) -> int:
    """How many inputs an output stands for; 1 where the shapes are not known."""
    before = shapes[call.fed_by[0]]
    if before is None or call.shape is None:
        return 1
    return max(1, before.numel() // max(1, call.shape.numel()))


def _pool(step: Step, kind: str, kernel: Any, dims: int) -> Signal:
    if isinstance(kernel, int):
        count = kernel**dims
    elif isinstance(kernel, (tuple, list)) and all(isinstance(size, int) for size in kernel):
        count = math.prod(kernel) if len(kernel) == dims else math.prod(kernel) ** dims
    elif kernel is not None:  # computed from a shape that is not known
        return doubted(step.first, Note(f"fed by {step.call.name} over a window of unknown size"))
    else:
        count = _count(step.call, step.shapes)
    found = pooled(step.first, kind, count)
    if _is_over_features(step.call):
        return found
    return doubted(found, alone(step.call.name))


def _is_over_features(call: Call) -> bool:
    """Whether a mean is over the last dimension alone, as in a norm written by hand."""
    return not isinstance(call.target, nn.Module) and call.argument(1, "dim") in (-1, [-1], (-1,))


def _dims(name: str) -> int:
    return next((int(letter) for letter in name if letter in "123"), 2)


@register_operation(pooling._MaxPoolNd, pooling._AvgPoolNd)
def _pool_module(step: Step) -> Signal:
    name = type(step.call.target).__name__
    kernel = getattr(step.call.target, "kernel_size", None)
    return _pool(step, "max" if "Max" in name else "avg", kernel, _dims(name))


@register_operation(pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd)
def _adaptive_module(step: Step) -> Signal:
    kind = "max" if isinstance(step.call.target, pooling._AdaptiveMaxPoolNd) else "avg"
    return _pool(step, kind, None, 2)


@register_operation(
    *named("max_pool1d", "max_pool2d", "max_pool3d"),
    *named("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
)
def _max_pool(step: Step) -> Signal:
    return _pool(step, "max", step.call.argument(1, "kernel_size"), _dims(step.call.name))


@register_operation(*named("avg_pool1d", "avg_pool2d", "avg_pool3d"))
def _avg_pool(step: Step) -> Signal:
    return _pool(step, "avg", step.call.argument(1, "kernel_size"), _dims(step.call.name))


@register_operation(
    *named("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax", "max")
)
def _maximum(step: Step) -> Signal | None:
    if len(step.call.fed_by) > 1:
        return None
    return _pool(step, "max", None, 2)


@register_operation(
    *named("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "mean")
)
def _mean(step: Step) -> Signal | None:
    return _pool(step, "avg", None, 2) if step.call.fed_by else None


@register_operation(*named("sum"))
def _sum(step: Step) -> Signal | None:
    if not step.call.fed_by or step.call.shape is None:
        return None
    count = _count(step.call, step.shapes)
    signal = mixed(step.first)
    mean, variance = average(signal.mean) * count, average(signal.variance) * count
    found = replace(signal, mean=mean, variance=variance, factor=average(signal.factor) * count)
    if count == 1 or _is_over_features(step.call):
        return found
    return doubted(found, alone(step.call.name))


@register_operation(*named("var"))
def _variance(step: Step) -> Signal | None:
    return _spread(step, step.first.overall_variance) if step.call.fed_by else None


@register_operation(*named("std", "norm", "vector_norm"))
def deviation(step: Step) -> Signal | None:
    if not step.call.fed_by:
        return None
    if step.call.name == "std":
        return _spread(step, max(0.0, step.first.overall_variance) ** 0.5)
    if step.call.shape is None:
        return None
    count = _count(step.call, step.shapes)
    return _spread(step, (count * average(step.first.second)) ** 0.5)


def _spread(step: Step, mean: float) -> Signal:
    """A statistic over many values, whose own variance is small."""
    count = _count(step.call, step.shapes)
    signal = mixed(step.first)
    variance = mean**2 / (2 * count)
    return replace(signal, mean=mean, variance=variance, factor=mean**2, before=None, layer=None)
