"""Norms, which set the scale of a signal and end every doubt about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.elementwise import Value, average
from mpelu.graph import NORMS, Call, is_frozen
from mpelu.init.operations.registry import Step, named, register_operation, rule_for
from mpelu.init.operations.shape import keeps, mixes
from mpelu.init.signal import Signal, constant_signal, mixed


@register_operation(*NORMS)
def _norm_module(step: Step) -> Signal:
    module: Any = step.call.target
    signal = step.first
    mean: Value = 0.0
    variance: Value = 1.0
    if isinstance(module, nn.RMSNorm):
        mean, variance = root_mean_square(signal)
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
    # Those that are trained are ones and zeros, or will be; a scale of zeros opens by training.
    is_closed = isinstance(weight, nn.Parameter) and not weight.is_meta and not weight.any()
    scale = constant_signal(weight).mean if is_closed or _is_fixed(weight) else 1.0
    shift = constant_signal(bias).mean if _is_fixed(bias) else 0.0
    mean: Value = 0.0
    variance: Value = 1.0
    if call.name == "rms_norm":
        mean, variance = root_mean_square(step.first)
        shift = 0.0
    return normalized(step.first, mean * scale + shift, variance * scale**2)


def _is_fixed(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.requires_grad


def root_mean_square(signal: Signal) -> tuple[Value, Value]:
    second = average(signal.second) or 1.0
    return signal.mean / second**0.5, signal.variance / second


def normalized(signal: Signal, mean: Value, variance: Value) -> Signal:
    """After a norm, which ends every doubt about the scale before it."""
    return replace(
        signal,
        mean=mean,
        variance=variance,
        factor=1.0,
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
    """Whether the output of a call reaches nothing but a norm, which ignores its scale."""
    while len(consumers.get(index, ())) == 1:
        index = consumers[index][0]
        rule = rule_for(calls[index].target)
        if rule in _NORMERS:
            return not is_frozen_norm(calls[index])
        if rule not in _KEEPERS:
            return False
    return False


def normalizes(call: Call) -> bool:
    """Whether the call is a norm that is trained."""
    if call.target is None or is_frozen_norm(call):
        return False
    return rule_for(call.target) in _NORMERS


def is_frozen_norm(call: Call) -> bool:
    return isinstance(call.target, nn.Module) and is_frozen(call.target)
