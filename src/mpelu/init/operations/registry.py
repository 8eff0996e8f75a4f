"""One table of rules: how each operation changes the signal that goes through it.

A rule is registered for exact keys: function objects, or classes of modules (a subclass has the
rule of its nearest base class).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional as F

from mpelu.graph import LEAVES, Call, Ref
from mpelu.init.signal import Factor, Note, Signal, constant_signal


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call with the signals that enter it."""

    call: Call
    signals: Mapping[int, Signal]
    """The signals of the calls that feed it, by index."""
    shapes: Sequence[torch.Size | None]
    """The shape of each call's output, by index."""
    factor: Factor
    """What a first-order rule takes for the second moment after an activation."""

    @property
    def inputs(self) -> list[Signal]:
        """The signals that enter the call, in order."""
        return [self.signals[index] for index in self.call.fed_by]

    @property
    def first(self) -> Signal:
        """The signal of the first input."""
        return self.signals[self.call.fed_by[0]]

    def signal(self, value: Any) -> Signal:
        """The signal of an argument of the call, be it computed or constant."""
        return self.signals[value.index] if isinstance(value, Ref) else constant_signal(value)

    def shape(self, value: Any) -> torch.Size | None:
        """The shape of an argument of the call, where it is known."""
        if isinstance(value, Ref):
            return self.shapes[value.index]
        return value.shape if isinstance(value, Tensor) else None


Rule = Callable[[Step], "Signal | None"]
"""Returns the signal after the call, or None if the rule doesn't cover it."""
_Rule = TypeVar("_Rule", bound=Rule)

_RULES: dict[Any, Rule] = {}


def register_operation(*targets: Any) -> Callable[[_Rule], _Rule]:
    """Registers a rule for operations of your own: functions, or classes of modules.

    The rule takes a `Step` and returns the `Signal` after it. Modules of a registered class are not
    looked into, so weights inside them are left as they were.

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
    """The rule of an operation, or None. An ATen operation has the rule of torch's function."""
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
    """Every spelling of a function: in torch, as a method, in place, as an operator, functional."""
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
    """Doubt about operations over many values."""
    return Note(
        f"fed by {name}, whose inputs are taken as independent",
        "fed by operations over values that are taken as independent",
    )
