"""Finds activations by name or reference, and adds your own to the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpelu.activations.table import (
    BY_CLASS,
    KINDS,
    TABLE,
    ActivationRecord,
    LearnableParameter,
    class_path,
    find_activation,
)

if TYPE_CHECKING:
    from torch import nn

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_references: dict[str, ActivationRecord] = {}
"""Records of resolved references, by package.module:factory."""


def register_activation(
    name: str,
    build: Callable[..., nn.Module],
    *,
    label: str | None = None,
    parameters: Mapping[str, str] | None = None,
) -> ActivationRecord:
    """Adds an activation to the table.

    Its name can then be used wherever an activation is named: in `mpelu.models.create`, in a run's
    config, in studies. Modules of its class are recognized: `mpelu.param_groups` puts its learnable
    parameters in a group of their own, runs record them, and inspection and report show them. (A
    class already in the table keeps its record.) Its slopes and moments are found by running it.

    Args:
        name: new name, such as "swish2".
        build: function from the number of channels to a new module, for example the module's class.
            Parameters called alpha, beta or dim become options of the activation.
        label: name in tables and legends (default: the name of the module's class).
        parameters: kind of each learnable parameter by attribute, one of
            `mpelu.activations.KINDS` (default: all are learnable, of kind "shape").

    Returns:
        The new record.

    Raises:
        ValueError: if the name is taken, or `build` doesn't return a module.

    Example:
        >>> class Scaled(torch.nn.Module):
        ...     def __init__(self, channels: int) -> None:
        ...         super().__init__()
        ...         self.gain = torch.nn.Parameter(torch.ones(channels, 1, 1))
        ...
        ...     def forward(self, input: torch.Tensor) -> torch.Tensor:
        ...         return self.gain * input.tanh()
        >>> mpelu.register_activation("scaled", Scaled, parameters={"gain": "scale"}).label
        'Scaled'
        >>> network = mpelu.models.create("resnet-8", activation="scaled")
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ValueError(
            f"register_activation: expected a name of letters, digits and _; got {name!r}"
        )
    if name in TABLE:
        raise ValueError(f"register_activation: the name {name!r} is taken; choose another")
    record = _tried_out("register_activation", name, build, label, parameters)
    TABLE[name] = record
    return record


def resolve(activation: str | Callable[[int], nn.Module]) -> ActivationRecord:
    """Returns the record of an activation.

    Args:
        activation: a name in the table, "package.module:factory", or a callable. Factories and
            callables are called with the number of channels and return a new module.

    Raises:
        ValueError: if there is no such activation, or if its factory doesn't return a module.

    Example:
        >>> resolve("relu").label
        'ReLU'
        >>> resolve("torch.nn:PReLU").make(8)
        PReLU(num_parameters=8)
    """
    if not isinstance(activation, str):
        if not callable(activation):
            raise ValueError(f"activation: expected a name or a callable, got {activation!r}")
        return ActivationRecord(name="a callable", label="callable", build=activation)
    if activation in TABLE:
        return TABLE[activation]
    if is_reference(activation):
        if activation not in _references:
            factory = _imported(activation)
            _references[activation] = _tried_out("activation", activation, factory)
        return _references[activation]
    close = get_close_matches(activation, TABLE, n=1)
    meant = f"did you mean {close[0]!r}? Choose " if close else "choose "
    raise ValueError(
        f"unknown activation {activation!r}; {meant}{', '.join(TABLE)} or package.module:factory"
    )


def is_reference(name: str) -> bool:
    """Returns whether a name has the form package.module:factory, without importing anything.

    Example:
        >>> is_reference("mine.acts:Swish2"), is_reference("relu")
        (True, False)
    """
    return _REFERENCE.fullmatch(name) is not None


def _tried_out(
    caller: str,
    name: str,
    build: Callable[..., nn.Module],
    label: str | None = None,
    parameters: Mapping[str, str] | None = None,
) -> ActivationRecord:
    """Calls a factory once and returns its record; its class is recognized from then on."""
    if not callable(build):
        raise ValueError(f"{caller}: expected {name} to be callable, got {build!r}")
    record = ActivationRecord(name=name, label=name, build=build)
    try:
        module = record.sample()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{caller}: {name}(4), for 4 channels, failed: {reason}") from error
    own = [attribute for attribute, _ in module.named_parameters(recurse=False)]
    for attribute, kind in (parameters or {}).items():
        if attribute not in own:
            raise ValueError(f"{caller}: {type(module).__name__} has no parameter {attribute!r}")
        if kind not in KINDS:
            raise ValueError(f"{caller}: expected one of {', '.join(KINDS)}; got kind {kind!r}")
    known = find_activation(module)
    if parameters is None and known is not None:
        kinds = {each.attribute: each.kind for each in known.parameters if each.attribute in own}
        symbols = {each.attribute: each.symbol for each in known.parameters}
    else:
        kinds, symbols = dict(parameters or dict.fromkeys(own, "shape")), {}
    record = ActivationRecord(
        name=name,
        label=label or type(module).__name__,
        build=build,
        parameters=tuple(
            LearnableParameter(attribute=each, kind=kind, symbol=symbols.get(each, ""))
            for each, kind in kinds.items()
        ),
        module=class_path(type(module)),
    )
    if _may_stand_for_it(type(module)):
        BY_CLASS.setdefault(record.module, record)
    return record


def _may_stand_for_it(cls: type) -> bool:
    """Returns whether all modules of a class are activations, unlike nn.Sequential or nn.Linear."""
    is_torch = cls.__module__.startswith("torch.nn.")
    return not is_torch or cls.__module__ == "torch.nn.modules.activation"


def _imported(reference: str) -> Any:
    """Imports what a reference names."""
    place, _, path = reference.partition(":")
    try:
        found: Any = import_module(place)
    except (Exception, SystemExit) as error:  # the module's own code may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"activation: {place} can't be imported: {reason}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"activation: {place} has no {path}")
        found = getattr(found, part)
    return found
