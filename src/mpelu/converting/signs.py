"""Finds activations whose output must not become negative, by what the model does with it.

MPELU is negative below zero. Sooner or later it would give NaN in a model that divides by the sum
of its ReLUs, as linear attention does, takes their logarithm or square root, or uses them as
probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.graph import (
    COMPARES,
    DIVIDES,
    NOT_NEGATIVE,
    SIGN_KEPT,
    Call,
    Ref,
    tensors_in,
)


@dataclass(frozen=True)
class Demand:
    """A tensor that must not be negative."""

    source: int
    """Index of the call that returned it."""
    verb: str
    """What the model does with it."""
    place: str
    """File and line; or "the model", if they are unknown."""

    @property
    def reason(self) -> str:
        return f"{self.place} {self.verb} what it returns, which must not be negative"


def demands(
    call: Call, args: Sequence[Any], kwargs: dict[str, Any], place: Callable[[], str]
) -> Iterator[Demand]:
    """Yields the tensor that a call takes and that must not be negative.

    A tensor that has negative values already isn't yielded, since the model copes with them.

    Args:
        call: call of the model.
        args: positional arguments that the call is about to get; none in a symbolic trace.
        kwargs: keyword arguments, likewise.
        place: function that returns file and line of the call.
    """
    position, name, verb = NOT_NEGATIVE.get(call.operation, (0, "input", ""))
    if call.name in ("pow", "float_power"):
        verb = _power(call.argument(1, "exponent"))
    if verb == COMPARES and call.argument(1, "other") != 0:
        return
    given = call.argument(position, name)
    if not verb or not isinstance(given, Ref):
        return
    value = args[position] if len(args) > position else kwargs.get(name)
    if not isinstance(value, Tensor) or _is_non_negative(value):
        yield Demand(given.index, verb, place())


def must_stay(
    calls: Sequence[Call], found: Sequence[Demand], is_activation: Callable[[Call], bool]
) -> dict[int, str]:
    """The calls of activations whose output must not become negative, and why.

    Outputs are followed as long as the sign is kept: through sums, products with numbers that
    aren't negative and changes of shape, but not through layers, nor through operations such as
    norms, variances and softmax, whose output is positive in any case.

    Args:
        calls: calls of the model.
        found: tensors that must not be negative.
        is_activation: tells whether a call is that of an activation.
    """
    checked = {
        calls[compared].fed_by[0]
        for call in calls
        if call.operation in ("all", "isalltrue") and call.fed_by
        for compared in call.fed_by
        if calls[compared].operation in ("ge", "gt")
    }
    reasons: dict[int, str] = {}
    for demand in found:
        if demand.verb == COMPARES and demand.source not in checked:
            continue
        waiting, seen = [demand.source], {demand.source}
        while waiting:
            index = waiting.pop()
            if is_activation(calls[index]):
                reasons.setdefault(index, demand.reason)
                continue
            before = set(_with_the_sign(calls[index], calls, demand.verb)) - seen
            waiting += before
            seen |= before
    return reasons


def _with_the_sign(call: Call, calls: Sequence[Call], verb: str) -> tuple[int, ...]:
    """The calls whose outputs determine the sign of what a call returns."""
    name = call.operation
    if isinstance(call.target, nn.Module) and any(True for _ in call.target.parameters()):
        return ()
    if name in ("clamp", "clip", "clampmin"):
        # A lower bound is enough for a logarithm, but as a divisor it makes the quotient explode.
        is_mended = verb != DIVIDES and call.argument(1, "min") is not None
        return () if is_mended else call.fed_by
    if name == "pow":
        exponent = call.argument(1, "exponent")
        return call.fed_by if isinstance(exponent, (int, float)) and exponent % 2 == 1 else ()
    if call.kind not in ("multiply", "product", "linear", "convolution"):
        return call.fed_by if name in SIGN_KEPT else ()
    numbers = [value for value in call.args if isinstance(value, (int, float))]
    fixed = [*numbers, *tensors_in((call.args, call.kwargs))]
    is_signed = _is_square(call, calls) or not all(map(_is_non_negative, fixed))
    return () if is_signed else call.fed_by


def _is_square(call: Call, calls: Sequence[Call]) -> bool:
    """Whether the call multiplies each number by itself, with or without a sum."""
    if len(set(call.fed_by)) == len(call.fed_by) or calls[call.fed_by[0]].kind == "split":
        return False
    equation = call.args[0] if call.args else ""
    if isinstance(equation, str):  # of einsum
        return len(set(equation.replace(" ", "").partition("->")[0].split(","))) == 1
    return call.kind == "multiply"


def _power(exponent: Any) -> str:
    if isinstance(exponent, (int, float)) and float(exponent).is_integer():
        return DIVIDES if exponent < 0 else ""
    return "raises to a power that isn't an integer"


def _is_non_negative(value: Tensor | float) -> bool:
    if not isinstance(value, Tensor):
        return value >= 0
    if value.is_meta or value.is_complex() or not value.numel():
        return False
    with torch._C.DisableTorchFunction():
        return bool(value.detach().min() >= 0)
