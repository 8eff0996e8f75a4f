"""Activations and other functions of one value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

import mpelu.functional
from mpelu.activations import describe
from mpelu.elementwise import (
    LIKELY_KINKS,
    ElementwiseFunction,
    average,
    exponential,
    key_of_value,
    leaky,
)
from mpelu.graph import Call, Ref, elementwise_function, substitute
from mpelu.init.operations.registry import Step, named, register_operation
from mpelu.init.signal import Signal, activated, mixed, multiplied

_LARGEST = 1e30


def elementwise(step: Step, probe: bool = False) -> Signal | None:
    call, function = step.call, step.call.target
    if not callable(function) or len(call.fed_by) != 1:
        return None

    def on_tensor(y: Tensor) -> Tensor:
        args, kwargs = substitute((call.args, call.kwargs), Ref, lambda _: y)
        output: Tensor = function(*args, **kwargs)
        return output

    has_parameters = any(isinstance(value, Tensor) and value.numel() > 1 for value in call.args)
    if probe or has_parameters:
        channels = step.first.channels or 1 if has_parameters else 1
        dims = 4 if call.shape is None else max(2, len(call.shape))
        activation = elementwise_function(on_tensor, call.name, channels, dims)
    else:
        # A function with a rule is torch's own, so that it and its other arguments say all.
        given = key_of_value(substitute([call.args, call.kwargs], Ref, lambda _: "input"))
        activation = ElementwiseFunction(
            name=call.name,
            apply=lambda y: on_tensor(y.clone()),
            kinks=LIKELY_KINKS,
            key=None if given is None else (function, given),
        )
    if activation is None:
        return None
    after = activated(step.first, call.name, activation, step.factor)
    is_finite = math.isfinite(average(after.second)) and average(after.second) < _LARGEST
    return after if is_finite else None


_Describe = Callable[[Call], ElementwiseFunction]


def _function(
    *names: str,
) -> Callable[[_Describe], _Describe]:
    def register(function_of: _Describe) -> _Describe:
        @register_operation(*named(*names))
        def apply(step: Step) -> Signal | None:
            if len(step.call.fed_by) != 1:
                return None
            return activated(step.first, step.call.name, function_of(step.call), step.factor)

        return function_of

    return register


@_function("relu")
def _relu(call: Call) -> ElementwiseFunction:
    return leaky(0.0, "relu")


@_function("leaky_relu")
def _leaky_relu(call: Call) -> ElementwiseFunction:
    return leaky(call.argument(1, "negative_slope", 0.01), "leaky_relu")


@_function("prelu")
def _prelu(call: Call) -> ElementwiseFunction:
    return leaky(call.argument(1, "weight"), "prelu")


@_function("elu")
def _elu(call: Call) -> ElementwiseFunction:
    return exponential(call.argument(1, "alpha", 1.0), 1.0, name="elu")


@_function("celu")
def _celu(call: Call) -> ElementwiseFunction:
    alpha = call.argument(1, "alpha", 1.0)
    return exponential(alpha, 1 / alpha, name="celu")


@_function("selu")
def _selu(call: Call) -> ElementwiseFunction:
    found = describe("selu")
    assert found is not None
    return found


@register_operation(mpelu.functional.mpelu)
def _mpelu(step: Step) -> Signal:
    alpha, beta = step.call.argument(1, "alpha"), step.call.argument(2, "beta")
    return activated(step.first, "mpelu", exponential(alpha, beta, name="mpelu"), step.factor)


register_operation(
    *named(
        "sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "hardswish", "hardsigmoid",
        "hardtanh", "relu6", "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink",
        "sin", "erf", "threshold",
    )
)(elementwise)  # fmt: skip


@register_operation(
    *named(
        "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "abs", "absolute",
        "square", "cos", "clamp", "clamp_min", "clamp_max", "clip",
    )
)  # fmt: skip
def _formula(step: Step) -> Signal | None:
    return formula(step, is_inverse=step.call.name in ("rsqrt", "reciprocal"))


def as_operation(signal: Signal) -> Signal:
    """The signal of a function that is a step of a computation rather than an activation."""
    sources = (replace(source, is_operation=True) for source in signal.sources)
    return replace(signal, sources=(*sources,))


def formula(step: Step, is_inverse: bool) -> Signal | None:
    """Part of a formula, such as a norm: tangents at zero say nothing about it."""
    found, before = elementwise(step), step.first
    if found is None:
        return None
    found = as_operation(found)
    # Errors don't grow by it either: what a norm divides by has the same ones.
    return replace(
        found,
        factor=found.second,
        before=None,
        doubts=before.doubts,
        growth=-before.growth if is_inverse else before.growth,
    )


@register_operation(*named("pow", "float_power"))
def _power(step: Step) -> Signal | None:
    exponent = step.call.argument(1, "exponent")
    return formula(step, exponent < 0) if isinstance(exponent, (int, float)) else None


@register_operation(nn.GLU, *named("glu"))
def _gated(step: Step) -> Signal:
    gate = activated(mixed(step.first), "sigmoid", _SIGMOID, step.factor)
    return multiplied(mixed(step.first), gate)


_SIGMOID = ElementwiseFunction(name="sigmoid", apply=torch.sigmoid, key=torch.sigmoid)
