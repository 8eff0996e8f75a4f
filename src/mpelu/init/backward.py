"""The variance of gradients by layer, predicted from the output back to the input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mpelu.elementwise import average
from mpelu.graph import NORMS, Call, Layer
from mpelu.init.plan import Plan
from mpelu.init.signal import Signal


def gradient_variances(
    calls: Sequence[Call],
    layers: Sequence[Layer | None],
    signals: Sequence[Signal],
    plans: Mapping[int, Plan],
) -> list[float | None]:
    """Variance of the gradient at the output of each call, relative to that at the last call's.

    None where it isn't known: before operations that change the number of elements in a way that
    has no rule here, and where the calls have no shapes to tell by how much.

    Args:
        calls: of the model, in order.
        layers: that the calls run.
        signals: of every call, as the planner left them.
        plans: of the weights, by the index of their call.
    """
    found: list[float | None] = [None] * len(calls)
    if calls:
        found[-1] = 1.0
    sums: list[float] = [0.0] * len(calls)
    is_known = [True] * len(calls)
    for index in range(len(calls) - 1, -1, -1):
        if found[index] is None and is_known[index] and sums[index] > 0:
            found[index] = sums[index]
        here = found[index]
        layer = layers[index]
        for fed in set(calls[index].fed_by) if layer is None else (layer.fed,):
            factor = None
            if here is not None and layer is not None:
                factor = _over_layer(layer, plans.get(index))
            elif here is not None:
                factor = _over_operation(index, fed, calls, signals)
            if here is None or factor is None:
                is_known[fed] = False
            else:
                sums[fed] += here * factor
    return found


def chi_of(plan: Plan, layer: Layer, signal: Signal) -> float:
    """The factor of the gradient's variance over a layer and the activation before it."""
    return average(plan.std**2) * layer.fan_in * plan.reached * signal.slope_before


def _over_layer(layer: Layer, plan: Plan | None) -> float | None:
    """From the gradient's variance at a layer's output to that at its input."""
    if plan is None:
        return None
    steps = 1 if layer.transposed else math.prod(layer.stride)
    return average(plan.std**2) * layer.fan_out / steps * plan.reached


def _over_operation(
    index: int, fed: int, calls: Sequence[Call], signals: Sequence[Signal]
) -> float | None:
    """The same for any other call."""
    call, before = calls[index], signals[index].before
    if before is not None and before is not signals[fed].before:
        return signals[index].slope_before
    if isinstance(call.target, NORMS):
        variance = average(signals[fed].variance)
        return 1 / variance if variance > 0 else None
    one, other = calls[fed].shape, call.shape
    if one is None or other is None:
        return 1.0 if call.kind != "average" else None
    ratio = one.numel() / max(1, other.numel())
    if ratio == 1:
        return 1.0
    return ratio**-2 if call.kind == "average" else None
