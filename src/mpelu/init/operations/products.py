"""Products of signals, attention, embeddings and recurrent layers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.elementwise import LINEAR, ElementwiseFunction, average
from mpelu.graph import Call, Ref
from mpelu.init.operations.registry import Step, alone, named, register_operation, rule_for
from mpelu.init.recurrent import hidden_second
from mpelu.init.signal import Signal, Source, constant_signal, contracted, doubted, mixed


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
        # An ellipsis stands for leading dimensions.
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
    return replace(signal, mean=mean, variance=second - mean**2, factor=second)


def _largest_second(count: int, variance: float) -> float:
    """The sum of squares of a softmax over `count` scores of this variance: e^variance / count."""
    return min(1.0, math.exp(min(50.0, max(0.0, variance))) / count)


@register_operation(*named("scaled_dot_product_attention"))
def attend(step: Step) -> Signal | None:
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
    found = replace(values, variance=variance, factor=variance + average(values.mean) ** 2)
    return doubted(found, alone("attention"))


@register_operation(nn.Embedding, nn.EmbeddingBag, *named("embedding", "embedding_bag"))
def _embed(step: Step) -> Signal:
    weight = embedding_weight(step.call)
    if weight is None:
        return Signal(0.0, 1.0, 1.0, (Source("embedding", LINEAR),))
    return replace(mixed(constant_signal(weight)), sources=(Source("embedding", LINEAR),))


def embedding_weight(call: Call) -> Tensor | None:
    """The weight of an embedding; None for any other call."""
    target: Any = call.target
    if isinstance(target, nn.Module):
        return target.weight if isinstance(target, (nn.Embedding, nn.EmbeddingBag)) else None
    if rule_for(target) is not _embed:
        return None
    weight = call.argument(1, "weight")
    if isinstance(weight, Ref):  # below torch.nn.functional the weight comes first
        weight = call.args[0]
    return weight if isinstance(weight, Tensor) else None


def _hidden(name: str) -> ElementwiseFunction:
    return ElementwiseFunction(name=name, apply=torch.tanh)


@register_operation(nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
def _recur(step: Step) -> Signal:
    second = hidden_second(type(step.call.target).__name__.removesuffix("Cell"))
    source = Source(step.call.name, _hidden(type(step.call.target).__name__))
    return Signal(0.0, second, second, (source,))
