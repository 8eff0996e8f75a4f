"""Sums, differences, products and quotients of signals and numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import nn

from mpelu.elementwise import average
from mpelu.graph import Call, Ref
from mpelu.init.operations.registry import Step, named, register_operation
from mpelu.init.signal import Signal, added, constant_signal, multiplied


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
    return multiplied(step.signal(numerator), replace(inverse, factor=1 / center**2))


def _finite(signal: Signal) -> Signal:
    return signal if math.isfinite(average(signal.second)) else constant_signal(1.0)


_ADDITIONS = frozenset(named("add", "radd", "sub", "subtract", "rsub"))


def added_signals(call: Call) -> bool:
    """Whether the call is an addition or subtraction."""
    if isinstance(call.target, nn.Module):
        return False
    try:
        return call.target in _ADDITIONS
    except TypeError:  # a callable that can't be hashed
        return False
