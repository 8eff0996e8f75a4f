"""Rules for values: arithmetic, activations and other functions of one number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import mpelu.functional
from mpelu.activations import describe
from mpelu.elementwise import ElementwiseFunction, average, exponential, leaky
from mpelu.functional import MIN_BETA
from mpelu.graph import Call, Ref
from mpelu.init.operations.registry import (
    Step,
    as_operation,
    elementwise,
    named,
    register_operation,
)
from mpelu.init.signal import (
    Signal,
    activated,
    added,
    constant_signal,
    mixed,
    multiplied,
)

aten: Any = torch.ops.aten


def _pair(step: Step) -> tuple[Signal, Signal] | None:
    call = step.call
    one, other = call.argument(0, "input"), call.argument(1, "other")
    if any(value is None or isinstance(value, (str, complex)) for value in (one, other)):
        return None
    return step.signal(one), step.signal(other)


@register_operation(*named("add", "radd"))
def _add(step: Step) -> Signal | None:
    pair = _pair(step)
    alpha = step.call.kwargs.get("alpha", 1)
    if pair is None:
        return None
    if alpha != 1:
        return added(pair[0], multiplied(pair[1], constant_signal(alpha)))
    return added(*pair)


@register_operation(*named("sub", "subtract"))
def _subtract(step: Step) -> Signal | None:
    pair = _pair(step)
    return None if pair is None else added(*pair, sign=-1)


@register_operation(*named("rsub"))
def _subtract_from(step: Step) -> Signal | None:
    pair = _pair(step)
    return None if pair is None else added(pair[1], pair[0], sign=-1)


@register_operation(*named("neg", "negative"))
def _negate(step: Step) -> Signal:
    return multiplied(step.first, constant_signal(-1.0))


@register_operation(*named("mul", "multiply", "rmul"))
def _multiply(step: Step) -> Signal | None:
    pair = _pair(step)
    return None if pair is None else multiplied(*pair)


@register_operation(*named("div", "divide", "true_divide", "truediv"))
def _divide(step: Step) -> Signal | None:
    if step.call.kwargs.get("rounding_mode") is not None:
        return None
    return _quotient(step, step.call.argument(0, "input"), step.call.argument(1, "other"))


@register_operation(*named("rdiv", "rtruediv"))
def _divide_into(step: Step) -> Signal | None:
    return _quotient(step, step.call.args[1], step.call.args[0])


def _quotient(step: Step, numerator: Any, divisor: Any) -> Signal | None:
    if not isinstance(divisor, Ref):
        if isinstance(divisor, (int, float)) and divisor == 0:
            return None
        return multiplied(step.signal(numerator), _finite(constant_signal(1 / divisor)))
    below = step.signals[divisor.index]
    # 1 / x has moments only where x stays away from zero.
    center, spread = average(below.mean), below.overall_variance
    if not center**2 > 9 * spread:
        return None
    inverse = replace(
        below,
        mean=1 / center,
        variance=spread / center**4,
        before=None,
        layer=None,
        growth=-below.growth,
    )
    return multiplied(step.signal(numerator), replace(inverse, first_order=1 / center**2))


def _finite(signal: Signal) -> Signal:
    return signal if math.isfinite(average(signal.second)) else constant_signal(1.0)


_ADDITIONS = frozenset(named("add", "radd", "sub", "subtract", "rsub"))


def added_signals(call: Call) -> bool:
    """Returns whether the call is an addition or subtraction."""
    if isinstance(call.target, nn.Module):
        return False
    try:
        return call.target in _ADDITIONS
    except TypeError:  # a callable that can't be hashed
        return False


# These have scales of their own; ATen's celu and selu call elu.
register_operation(aten.elu, aten._prelu_kernel)(elementwise)


_Describe = Callable[[Call], ElementwiseFunction]


def _function(*names: str) -> Callable[[_Describe], _Describe]:
    def register(function_of: _Describe) -> _Describe:
        @register_operation(*named(*names))
        def apply(step: Step) -> Signal | None:
            if len(step.call.fed_by) != 1:
                return None
            return activated(step.first, step.call.name, function_of(step.call), step.first_order)

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
    if alpha is None:
        slope, beta = step.call.kwargs["slope"], step.call.kwargs["rate"]
        beta = torch.as_tensor(beta, dtype=torch.float64).clamp(min=MIN_BETA)
        alpha = slope / beta
    return activated(step.first, "mpelu", exponential(alpha, beta, name="mpelu"), step.first_order)


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


def formula(step: Step, is_inverse: bool) -> Signal | None:
    """Returns the signal after part of a formula, such as a norm, which tangents don't describe."""
    found, before = elementwise(step), step.first
    if found is None:
        return None
    found = as_operation(found)
    # It doesn't make errors grow either: what a norm divides by has the same errors.
    return replace(
        found,
        first_order=found.second,
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
    gate = activated(mixed(step.first), "sigmoid", _SIGMOID, step.first_order)
    return multiplied(mixed(step.first), gate)


_SIGMOID = ElementwiseFunction(name="sigmoid", apply=torch.sigmoid, key=torch.sigmoid)
