"""The table of rules, and the signal after a call: by its rule, as after an activation, or
unknown.

A rule is registered for exact keys: function objects, or module classes (a subclass has the rule of
its nearest base class).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from mpelu.activations import describe
from mpelu.elementwise import LIKELY_KINKS, ElementwiseFunction, average, key_of_value
from mpelu.graph import (
    LEAVES,
    UNKNOWN,
    Call,
    Ref,
    elementwise_function,
    is_opaque,
    layer_of,
    substitute,
)
from mpelu.init.signal import (
    FirstOrder,
    Note,
    Signal,
    activated,
    constant_signal,
    doubted,
    input_signal,
    unknown_signal,
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call with the signals that enter it."""

    call: Call
    signals: Mapping[int, Signal]
    """Signals of the calls that feed it, by index."""
    shapes: Sequence[torch.Size | None]
    """Shape of each call's output, by index."""
    first_order: FirstOrder
    """Returns the second moment after an activation according to a first-order rule."""

    @property
    def inputs(self) -> list[Signal]:
        """Signals that enter the call, in order."""
        return [self.signals[index] for index in self.call.fed_by]

    @property
    def first(self) -> Signal:
        """Signal of the first input."""
        return self.signals[self.call.fed_by[0]]

    def signal(self, value: Any) -> Signal:
        """Returns the signal of an argument of the call, whether it is computed or constant."""
        return self.signals[value.index] if isinstance(value, Ref) else constant_signal(value)

    def shape(self, value: Any) -> torch.Size | None:
        """Returns the shape of an argument of the call, if it is known."""
        if isinstance(value, Ref):
            return self.shapes[value.index]
        return value.shape if isinstance(value, Tensor) else None


Rule = Callable[[Step], "Signal | None"]
"""Returns the signal after the call, or None if the rule doesn't cover it."""
_Rule = TypeVar("_Rule", bound=Rule)

_RULES: dict[Any, Rule] = {}


def register_operation(*targets: Any) -> Callable[[_Rule], _Rule]:
    """Registers a rule for operations of your own: functions or module classes.

    The rule takes a `Step` and returns the `Signal` after it. Modules of a registered class are not
    looked into, so weights inside them are left unchanged.

    Example:
        >>> class Halve(nn.Module):
        ...     def forward(self, x):
        ...         return x / 2
        >>> @register_operation(Halve)
        ... def halved(step):
        ...     return multiplied(step.first, constant_signal(0.5))
    """

    def register(rule: _Rule) -> _Rule:
        for target in targets:
            _RULES[target] = rule
            _aten_rule.cache_clear()
            if isinstance(target, type) and not target.__module__.startswith("torch.nn"):
                LEAVES.add(target)
        return rule

    return register


def rule_for(target: Any) -> Rule | None:
    """Returns an operation's rule, or None; ATen operations have the rules of torch's functions."""
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    if isinstance(target, OpOverloadPacket):
        return _aten_rule(target)
    if isinstance(target, nn.Module):
        return next((_RULES[kind] for kind in type(target).__mro__ if kind in _RULES), None)
    try:
        return _RULES.get(target)
    except TypeError:  # a callable that can't be hashed
        return None


@lru_cache(maxsize=1024)
def _aten_rule(operation: OpOverloadPacket) -> Rule | None:
    own = _RULES.get(operation)
    if own is not None or not operation._qualified_op_name.startswith(("aten::", "prims::")):
        return own
    name = operation.__name__
    spellings = (*named(name), *named(name.strip("_")))
    return next((_RULES[function] for function in spellings if function in _RULES), None)


def named(*names: str) -> Iterator[Any]:
    """Yields a function in all its forms: torch, method, in place, operator and functional."""
    for name in names:
        for place in (torch, Tensor, F, torch._C._nn, torch.special, operator, torch.linalg):
            for spelling in (name, f"{name}_", f"__{name}__", f"__i{name}__"):
                found = getattr(place, spelling, None)
                if callable(found):
                    yield found
        found = getattr(torch, f"_{name}", None)
        if callable(found):
            yield found
        if name in ("T", "mT", "H", "mH", "real", "data"):
            yield getattr(Tensor, name).__get__


def alone(name: str) -> Note:
    """Returns a note about operations over many values."""
    return Note(
        f"fed by {name}, whose inputs are assumed to be independent",
        "fed by operations over values that are assumed to be independent",
    )


def propagate(step: Step) -> Signal:
    """Returns the signal after any call that runs no layer."""
    target = step.call.target
    if target is None:
        return _input(step.call)
    if not step.call.fed_by:
        return _constant(step.call)
    rule = rule_for(target)
    found = rule(step) if rule is not None else _without_rule(step)
    return unknown_signal(step.call, step.inputs) if found is None else found


def is_known(call: Call) -> bool:
    """Returns whether the call runs a layer, an operation with a rule, or an activation."""
    if layer_of(call) is not None or rule_for(call.target) is not None:
        return True
    if not isinstance(call.target, nn.Module):
        return False
    # This runs while a model is being recorded; trying a module must not be recorded too.
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return describe(call.target) is not None


def _input(call: Call) -> Signal:
    if call.name == UNKNOWN:
        return unknown_signal(call)
    return input_signal(call)


def _constant(call: Call) -> Signal:
    """Returns the signal after a call that nothing feeds, the same for every model input."""
    try:
        value = call.target(*call.args, **call.kwargs)  # type: ignore[misc]
    except Exception:  # whatever a function raises when called outside its context
        return unknown_signal(call)
    return (
        constant_signal(value) if isinstance(value, (Tensor, int, float)) else unknown_signal(call)
    )


def _without_rule(step: Step) -> Signal | None:
    """Tries whether a module or function without a rule is an activation."""
    call, target = step.call, step.call.target
    if not call.fed_by:
        return None
    if isinstance(target, nn.Module):
        activation = describe(target)
        if activation is not None:
            return activated(step.first, call.name, activation, step.first_order)
        if not is_opaque(target):
            return None
        # Such modules mostly check their input or change its shape.
        doubt = Note(f"fed through {call.name}, which has no rule; assumed to pass its input on")
        return doubted(replace(step.first, before=None, layer=None), doubt)
    if len(call.fed_by) > 1:
        return None
    found = elementwise(step, probe=True)
    return None if found is None else as_operation(found)


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
    given = None
    if not has_parameters:
        given = key_of_value(substitute([call.args, call.kwargs], Ref, lambda _: "input"))
    if probe or has_parameters:
        channels = step.first.channels or 1 if has_parameters else 1
        dims = 4 if call.shape is None else max(2, len(call.shape))
        # Python's own functions, such as % on sizes, are decided by their arguments.
        own = None if given is None else key_of_value(function)
        key = None if own is None else (own, given)
        activation = elementwise_function(on_tensor, call.name, channels, dims, key)
    else:
        # A function with a rule is torch's own, so that it and its other arguments say all.
        activation = ElementwiseFunction(
            name=call.name,
            apply=lambda y: on_tensor(y.clone()),
            kinks=LIKELY_KINKS,
            key=None if given is None else (function, given),
        )
    if activation is None:
        return None
    after = activated(step.first, call.name, activation, step.first_order)
    is_finite = math.isfinite(average(after.second)) and average(after.second) < _LARGEST
    return after if is_finite else None


def as_operation(signal: Signal) -> Signal:
    """Marks a signal as coming from a step of a computation rather than from an activation."""
    sources = (replace(source, is_operation=True) for source in signal.sources)
    return replace(signal, sources=(*sources,))
