"""The signal after any call: by its rule, as an activation, or unknown."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from mpelu.activations import describe
from mpelu.graph import UNKNOWN, Call, is_opaque, layer_of
from mpelu.init.operations.elementwise import as_operation, elementwise
from mpelu.init.operations.registry import Step, rule_for
from mpelu.init.signal import (
    Note,
    Signal,
    activated,
    constant_signal,
    doubted,
    input_signal,
    unknown_signal,
)


def propagate(step: Step) -> Signal:
    """The signal after any call but that of a layer."""
    target = step.call.target
    if target is None:
        return _input(step.call)
    if not step.call.fed_by:
        return _constant(step.call)
    rule = rule_for(target)
    found = rule(step) if rule is not None else _without_rule(step)
    return unknown_signal(step.call, step.inputs) if found is None else found


def is_known(call: Call) -> bool:
    """Whether the call is that of a layer, of an operation with a rule, or of an activation."""
    if layer_of(call) is not None or rule_for(call.target) is not None:
        return True
    if not isinstance(call.target, nn.Module):
        return False
    # Asked for while the model runs, so trying a module must not be watched.
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return describe(call.target) is not None


def _input(call: Call) -> Signal:
    if call.name == UNKNOWN:
        return unknown_signal(call)
    return input_signal(call)


def _constant(call: Call) -> Signal:
    """Of a call that nothing feeds: what it computes is the same for every input."""
    try:
        value = call.target(*call.args, **call.kwargs)  # type: ignore[misc]
    except Exception:  # whatever a function called out of its context raises
        return unknown_signal(call)
    return (
        constant_signal(value) if isinstance(value, (Tensor, int, float)) else unknown_signal(call)
    )


def _without_rule(step: Step) -> Signal | None:
    """A module or function nobody registered: an activation, if trying shows that it is one."""
    call, target = step.call, step.call.target
    if not call.fed_by:
        return None
    if isinstance(target, nn.Module):
        activation = describe(target)
        if activation is not None:
            return activated(step.first, call.name, activation, step.factor)
        if not is_opaque(target):
            return None
        # Mostly checks of the input and changes of shape.
        doubt = Note(f"fed through {call.name}, which has no rule; taken as passing its input on")
        return doubted(replace(step.first, before=None, layer=None), doubt)
    if len(call.fed_by) > 1:
        return None
    found = elementwise(step, probe=True)
    return None if found is None else as_operation(found)
