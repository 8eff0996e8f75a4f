"""Rules for operations over many values: norms, which set the scale of a signal and end every doubt
about it, pooling, products, attention and recurrent layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import pooling

from mpelu.elementwise import LINEAR, ElementwiseFunction, Value, average
from mpelu.gaussian import plain_tensors
from mpelu.graph import NORMS, Call, Ref, is_frozen
from mpelu.init.operations.registry import Step, alone, named, register_operation, rule_for
from mpelu.init.operations.shapes import keeps, mixes
from mpelu.init.operations.values import added_signals
from mpelu.init.signal import (
    Note,
    Signal,
    Source,
    constant_signal,
    contracted,
    doubted,
    mixed,
    pooled,
)

aten: Any = torch.ops.aten


@register_operation(*NORMS)
def _norm_module(step: Step) -> Signal:
    module: Any = step.call.target
    signal = step.first
    mean: Value = 0.0
    variance: Value = 1.0
    if isinstance(module, nn.RMSNorm):
        mean, variance = _root_mean_square(signal)
    if is_frozen(module):
        values = {
            name: value.detach().to("cpu", torch.float64).reshape(-1)
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }
        if "running_mean" in values:
            spread = values["running_var"] + module.eps
            mean = (signal.mean - values["running_mean"]) / spread.sqrt()
            variance = signal.variance / spread
        weight = values.get("weight", 1.0)
        mean, variance = mean * weight + values.get("bias", 0.0), variance * weight**2
    return normalized(signal, mean, variance)


@register_operation(*named("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"))
def _norm_function(step: Step) -> Signal:
    call = step.call
    positions = {"batch_norm": 3, "instance_norm": 3}.get(call.name, 2)
    weight, bias = call.argument(positions, "weight"), call.argument(positions + 1, "bias")
    # Trained ones are or will be set to 1 and 0; a scale of all zeros opens during training.
    is_closed = isinstance(weight, nn.Parameter) and not weight.is_meta and not weight.any()
    scale = constant_signal(weight).mean if is_closed or _is_fixed(weight) else 1.0
    shift = constant_signal(bias).mean if _is_fixed(bias) else 0.0
    mean: Value = 0.0
    variance: Value = 1.0
    if call.name == "rms_norm":
        mean, variance = _root_mean_square(step.first)
        shift = 0.0
    return normalized(step.first, mean * scale + shift, variance * scale**2)


@register_operation(
    aten.native_layer_norm,
    aten.native_group_norm,
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._batch_norm_with_update,
)
def _aten_norm(step: Step) -> Signal:
    return normalized(step.first, 0.0, 1.0)


@register_operation(aten._fused_rms_norm)
def _aten_rms_norm(step: Step) -> Signal:
    return normalized(step.first, *_root_mean_square(step.first))


def _is_fixed(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.requires_grad


def _root_mean_square(signal: Signal) -> tuple[Value, Value]:
    second = average(signal.second) or 1.0
    return signal.mean / second**0.5, signal.variance / second


def normalized(signal: Signal, mean: Value, variance: Value) -> Signal:
    """Returns the signal after a norm, which ends every doubt about the scale before it."""
    return replace(
        signal,
        mean=mean,
        variance=variance,
        first_order=1.0,
        before=None,
        layer=None,
        doubts=(),
        growth=1.0,
    )


@register_operation(nn.LocalResponseNorm, *named("local_response_norm"))
def _local_response(step: Step) -> Signal:
    return replace(step.first, before=None, layer=None)


@register_operation(*named("normalize"))
def _unit_length(step: Step) -> Signal | None:
    shape = step.shape(step.call.argument(0, "input"))
    if shape is None:
        return None
    size = shape[step.call.argument(2, "dim", 1)]
    return normalized(mixed(step.first), 0.0, 1 / max(1, size))


_KEEPERS, _NORMERS = frozenset([keeps, mixes]), frozenset([_norm_module, _norm_function])


def ends_in_norm(index: int, calls: Sequence[Call], consumers: Mapping[int, list[int]]) -> bool:
    """Returns whether the output of a call reaches only a norm, which ignores its scale."""
    while len(consumers.get(index, ())) == 1:
        index = consumers[index][0]
        rule = rule_for(calls[index].target)
        if rule in _NORMERS:
            return not is_frozen_norm(calls[index])
        if rule not in _KEEPERS:
            return False
    return False


def _normalizes(call: Call) -> bool:
    """Returns whether the call is a norm that isn't frozen."""
    if call.target is None or is_frozen_norm(call):
        return False
    return rule_for(call.target) in _NORMERS


def is_plain(calls: Sequence[Call]) -> bool:
    """Returns whether a network has neither norms nor shortcuts, which would help with depth."""
    return not any(
        _normalizes(call) or (len(call.fed_by) > 1 and added_signals(call)) for call in calls
    )


def is_frozen_norm(call: Call) -> bool:
    return isinstance(call.target, nn.Module) and is_frozen(call.target)


def _count(call: Call, shapes: Sequence[torch.Size | None]) -> int:
    """Returns how many inputs an output combines; 1 if the shapes are unknown."""
    before = shapes[call.fed_by[0]]
    if before is None or call.shape is None:
        return 1
    return max(1, before.numel() // max(1, call.shape.numel()))


def _pool(step: Step, kind: str, kernel: Any, dims: int) -> Signal:
    if isinstance(kernel, int):
        count = kernel**dims
    elif isinstance(kernel, (tuple, list)) and all(isinstance(size, int) for size in kernel):
        count = math.prod(kernel) if len(kernel) == dims else math.prod(kernel) ** dims
    elif kernel is not None:  # computed from an unknown shape
        return doubted(step.first, Note(f"fed by {step.call.name} over a window of unknown size"))
    else:
        count = _count(step.call, step.shapes)
    found = pooled(step.first, kind, count)
    if _is_over_features(step.call):
        return found
    return doubted(found, alone(step.call.name))


def _is_over_features(call: Call) -> bool:
    """Returns whether a mean is over the last dimension alone, as in a hand-written norm."""
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
    found = replace(
        signal, mean=mean, variance=variance, first_order=average(signal.first_order) * count
    )
    if count == 1 or _is_over_features(step.call):
        return found
    return doubted(found, alone(step.call.name))


@register_operation(*named("var"))
def _variance(step: Step) -> Signal | None:
    return _spread(step, step.first.overall_variance) if step.call.fed_by else None


@register_operation(*named("std", "norm", "vector_norm"), aten.linalg_vector_norm)
def _deviation(step: Step) -> Signal | None:
    if not step.call.fed_by:
        return None
    if step.call.name == "std":
        return _spread(step, max(0.0, step.first.overall_variance) ** 0.5)
    if step.call.shape is None:
        return None
    count = _count(step.call, step.shapes)
    return _spread(step, (count * average(step.first.second)) ** 0.5)


def _spread(step: Step, mean: float) -> Signal:
    """Returns the signal of a statistic over many values, whose own variance is small."""
    count = _count(step.call, step.shapes)
    signal = mixed(step.first)
    variance = mean**2 / (2 * count)
    return replace(
        signal, mean=mean, variance=variance, first_order=mean**2, before=None, layer=None
    )


@register_operation(*named("matmul", "mm", "bmm", "rmatmul"), Tensor.__matmul__, Tensor.__rmatmul__)
def _product(step: Step) -> Signal | None:
    one, other = step.call.argument(0, "input"), step.call.argument(1, "other")
    if other is None:
        other = step.call.argument(1, "mat2")
    shape = step.shape(one)
    if shape is None or other is None:
        return None
    found = contracted(step.signal(one), step.signal(other), shape[-1])
    return doubted(found, alone(step.call.name))


@register_operation(torch.einsum, torch.functional.einsum)
def _einsum(step: Step) -> Signal | None:
    operands = step.call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    equation = step.call.args[0] if step.call.args else None
    if not isinstance(equation, str) or "->" not in equation or len(operands) != 2:
        return None
    terms, output = equation.replace(" ", "").replace("...", "").split("->")
    count = 1
    for term, value in zip(terms.split(","), operands, strict=True):
        shape = step.shape(value)
        if shape is None:
            return None
        # An ellipsis represents leading dimensions.
        sizes = dict(zip(reversed(term), reversed(shape), strict=False))
        for name, size in sizes.items():
            if name not in output and (name not in terms.split(",")[0] or value is operands[0]):
                count *= size
    found = contracted(step.signal(operands[0]), step.signal(operands[1]), count)
    return doubted(found, alone("einsum"))


@register_operation(nn.Softmax, nn.Softmax2d, *named("softmax"))
def _softmax(step: Step) -> Signal | None:
    shape = step.call.shape
    if isinstance(step.call.target, nn.Module):
        dim = getattr(step.call.target, "dim", 1)
    else:
        dim = step.call.argument(1, "dim", -1)
    if shape is None or not isinstance(dim, int):
        return None
    count = shape[dim]
    mean = 1 / count
    second = _largest_second(count, step.first.overall_variance) / count
    signal = mixed(step.first)
    return replace(signal, mean=mean, variance=second - mean**2, first_order=second)


def _largest_second(count: int, variance: float) -> float:
    """Returns a softmax's sum of squares over `count` scores: e^variance / count, at most 1."""
    return min(1.0, math.exp(min(50.0, max(0.0, variance))) / count)


@register_operation(
    *named("scaled_dot_product_attention"),
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_fused_attention_overrideable,
)
def _attend(step: Step) -> Signal | None:
    query, key, value = (
        step.call.argument(position, name)
        for position, name in enumerate(("query", "key", "value"))
    )
    shape, values = step.shape(key), mixed(step.signal(value))
    if shape is None:
        return doubted(values, alone("attention"))
    scale = step.call.kwargs.get("scale") or shape[-1] ** -0.5
    scores = shape[-1] * scale**2 * average(step.signal(query).second)
    scores *= average(step.signal(key).second)
    variance = average(values.variance) * _largest_second(shape[-2], scores)
    found = replace(values, variance=variance, first_order=variance + average(values.mean) ** 2)
    return doubted(found, alone("attention"))


@register_operation(nn.Embedding, nn.EmbeddingBag, *named("embedding", "embedding_bag"))
def _embed(step: Step) -> Signal:
    weight = embedding_weight(step.call)
    if weight is None:
        return Signal(sources=(Source("embedding", LINEAR),))
    return replace(mixed(constant_signal(weight)), sources=(Source("embedding", LINEAR),))


def embedding_weight(call: Call) -> Tensor | None:
    """Returns the weight of an embedding; None for any other call."""
    target: Any = call.target
    if isinstance(target, nn.Module):
        return target.weight if isinstance(target, (nn.Embedding, nn.EmbeddingBag)) else None
    if rule_for(target) is not _embed:
        return None
    weight = call.argument(1, "weight")
    if isinstance(weight, Ref):  # below torch.nn.functional the weight comes first
        weight = call.args[0]
    return weight if isinstance(weight, Tensor) else None


_UNITS, _STEPS = 8192, 64


@lru_cache(maxsize=4)
@plain_tensors()
def hidden_second(kind: str) -> float:
    """Returns E[h^2] of a recurrent layer whose gates each see a sum of unit variance.

    Simulates it with independent Gaussian sums, from a zero state to a stationary one.

    Args:
        kind: kind of the layer, "LSTM", "GRU" or "RNN".
    """
    generator = torch.Generator().manual_seed(0)

    def sums() -> torch.Tensor:
        return torch.randn(_UNITS, generator=generator, dtype=torch.float32)

    hidden = cell = torch.zeros(_UNITS, dtype=torch.float32)
    for _ in range(_STEPS):
        if kind == "LSTM":
            cell = torch.sigmoid(sums()) * cell + torch.sigmoid(sums()) * torch.tanh(sums())
            hidden = torch.sigmoid(sums()) * torch.tanh(cell)
        elif kind == "GRU":
            update = torch.sigmoid(sums())
            hidden = update * hidden + (1 - update) * torch.tanh(sums())
        else:
            hidden = torch.tanh(sums())
    return hidden.square().mean().item()


@register_operation(nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
def _recur(step: Step) -> Signal:
    second = hidden_second(type(step.call.target).__name__.removesuffix("Cell"))
    hidden = ElementwiseFunction(name=type(step.call.target).__name__, apply=torch.tanh)
    source = Source(step.call.name, hidden)
    return Signal(variance=second, first_order=second, sources=(source,))
