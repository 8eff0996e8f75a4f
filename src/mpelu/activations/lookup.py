"""Activations by name and by module, and the function that adds your own to the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from mpelu.activations.record import KINDS, ActivationRecord, LearnableParameter
from mpelu.activations.table import TABLE

if TYPE_CHECKING:
    from torch import nn

    from mpelu.elementwise import ElementwiseFunction


class ActivationParameter(NamedTuple):
    """A learnable parameter of an activation in a model."""

    name: str
    """In the model, such as "layer1.0.act.alpha"."""
    parameter: nn.Parameter
    kind: str
    """One of `KINDS`."""
    label: str
    """Such as "α of MPELU"."""


_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_by_class = {record.module: record for record in TABLE.values() if record.module}
"""By "package.module:Class"."""
_references: dict[str, ActivationRecord] = {}
"""By package.module:factory, as far as they have been resolved."""


def register_activation(
    name: str,
    build: Callable[..., nn.Module],
    *,
    label: str | None = None,
    color: str = "#777777",
    parameters: Mapping[str, str] | None = None,
) -> ActivationRecord:
    """Adds an activation to the table.

    It can then be named wherever an activation is: in `mpelu.models.create`, in a run's config, in
    studies. Modules of its class are recognized: `mpelu.param_groups` puts its learnable parameters
    in a group of their own, runs record them, and inspection and report show them. (A class that
    the table already has keeps its record.) Its slopes and moments are found by running it.

    Args:
        name: a new name, such as "swish2".
        build: from the number of channels to a new module, for example the module's class. If it
            has parameters called alpha, beta or dim, these are options of the activation.
        label: as in tables and legends (default: the name of the module's class).
        color: of its curves, as #rrggbb.
        parameters: the learnable parameters of the module by attribute, and the kind of each, one
            of `mpelu.activations.KINDS` (default: all, of kind "shape").

    Returns:
        The record.

    Raises:
        ValueError: if the name is taken, or `build` doesn't fit.

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
            f"register_activation: expected a name of letters, digits and _, got {name!r}"
        )
    if name in TABLE:
        raise ValueError(f"register_activation: the name {name!r} is taken; choose another")
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", color):
        raise ValueError(f"register_activation: expected color as #rrggbb, got {color!r}")
    record = _tried_out("register_activation", name, build, label, color, parameters)
    TABLE[name] = record
    return record


def resolve(activation: str | Callable[[int], nn.Module]) -> ActivationRecord:
    """The record of an activation.

    Args:
        activation: a name of the table, "package.module:factory", or a callable. Factory and
            callable are called with the number of channels and return a new module.

    Raises:
        ValueError: in one line, if there is no such activation, or if it returns no module.

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
    """Whether a name has the form package.module:factory. Nothing is imported.

    Example:
        >>> is_reference("mine.acts:Swish2"), is_reference("relu")
        (True, False)
    """
    return _REFERENCE.fullmatch(name) is not None


def find_activation(module: nn.Module) -> ActivationRecord | None:
    """The record of a module's class or of the nearest class that it inherits from.

    None for torch.nn.Identity, which stands for many things besides an activation.

    Example:
        >>> find_activation(torch.nn.PReLU()).parameters[0].attribute
        'weight'
    """
    found = _match(type(module))
    return None if found is None else found[0]


def find_function(function: Any) -> ActivationRecord | None:
    """The record of the activation that a function of torch computes, also a method or in place.

    Example:
        >>> find_function(torch.nn.functional.relu).name, find_function(torch.Tensor.relu_).name
        ('relu', 'relu')
    """
    try:
        return _functions().get(function)
    except TypeError:  # what can't be hashed
        return None


@cache
def _functions() -> dict[Any, ActivationRecord]:
    """The activations of torch.nn by the functions of their name."""
    import torch

    return {
        getattr(home, name): record
        for record in TABLE.values()
        if record.module.startswith("torch.nn.")
        for home in (torch.nn.functional, torch, torch.Tensor)
        for name in (record.name, f"{record.name}_")
        if hasattr(home, name)
    }


def learnable_parameters(model: nn.Module) -> Iterator[ActivationParameter]:
    """Yields the learnable parameters of a model's activations, in order of depth.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 2), mpelu.MPELU(2))
        >>> [found.name for found in learnable_parameters(model)]
        ['1.alpha', '1.beta']
    """
    for path, module in model.named_modules():
        record = find_activation(module)
        if record is None:
            continue
        known = {each.attribute: each for each in record.parameters}
        for attribute, parameter in module.named_parameters(recurse=False):
            # A class that inherits from a known one may have more.
            about = known.get(attribute, LearnableParameter(attribute=attribute))
            name = f"{path}.{attribute}" if path else attribute
            yield ActivationParameter(name, parameter, about.kind, record.label_of(about))


def describe(activation: nn.Module | str) -> ElementwiseFunction | None:
    """The elementwise function that a module computes, with its slopes at zero and its moments.

    In closed form where the table has one; otherwise a copy of the module is run.

    Args:
        activation: a module, or the name of an activation of the table or of torch.nn, such as
            "relu" or "tanh".

    Returns:
        None if the module isn't elementwise or has no values (lazy or meta).

    Raises:
        ValueError: if no elementwise activation has that name.

    Example:
        >>> mean, second = describe(torch.nn.ReLU()).moments()
        >>> round(second, 4)
        0.5
        >>> round(describe("gelu").squared_slope(), 4)
        0.4559
    """
    from torch.nn.modules.batchnorm import _NormBase
    from torch.nn.parameter import is_lazy

    from mpelu.graph import elementwise

    if isinstance(activation, str):
        return _named(activation)
    if any(is_lazy(each) or each.is_meta for each in activation.parameters()):
        return None
    # A norm layer looks elementwise in evaluation mode.
    if any(isinstance(each, _NormBase) for each in activation.modules()):
        return None
    return known_function(activation) or elementwise(activation)


def _named(name: str) -> ElementwiseFunction:
    from torch import nn

    from mpelu.elementwise import LINEAR

    plain = name.replace("_", "").lower()
    if plain in ("linear", "identity"):
        return LINEAR
    builders: dict[str, Callable[[], nn.Module]] = {
        each.lower(): getattr(nn, each) for each in nn.modules.activation.__all__
    }
    builders |= {each.replace("_", ""): partial(TABLE[each].make, 1) for each in TABLE}
    try:
        found = describe(builders[plain]())
    except (KeyError, TypeError):  # no such name, or one without defaults, such as Threshold
        found = None
    if found is None:
        raise ValueError(f"expected the name of an elementwise activation, got {name!r}")
    return found


def known_function(module: nn.Module) -> ElementwiseFunction | None:
    """The function of a module that the table knows, without running it; otherwise None.

    Example:
        >>> known_function(torch.nn.LeakyReLU(0.1)).slope
        0.1
    """
    found = _match(type(module))
    if found is None:
        return None
    record, base = found
    # A class that inherits from a known one may compute something else.
    if record.function is None or type(module).forward is not base.forward:
        return None
    return record.function(module)


def slopes_at_zero(record: ActivationRecord, **options: Any) -> tuple[float, float]:
    """The slopes just below and just above zero, averaged over channels.

    Args:
        record: the activation.
        **options: alpha and beta as far as the activation takes them.

    Raises:
        ValueError: for an option that it doesn't take, or if it isn't elementwise.

    Example:
        >>> slopes_at_zero(resolve("mpelu"), alpha=0.25, beta=2.0)
        (0.5, 1.0)
    """
    given = record.check(**options)
    if record.slopes is not None:
        values = {**record.options, **given}
        return record.slopes(**{name: values[name] for name in ("alpha", "beta") if name in values})
    found = describe(record.sample(**given))
    if found is None:
        raise ValueError(f"{record.name}: expected an elementwise activation")
    from mpelu.elementwise import average

    _, below, above = found.at_zero()
    return average(below), average(above)


def _tried_out(
    caller: str,
    name: str,
    build: Callable[..., nn.Module],
    label: str | None = None,
    color: str = "#777777",
    parameters: Mapping[str, str] | None = None,
) -> ActivationRecord:
    """A record for a factory that has been called once, and whose class is now recognized."""
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
            raise ValueError(
                f"{caller}: expected a parameter of {type(module).__name__}, got {attribute!r}"
            )
        if kind not in KINDS:
            raise ValueError(f"{caller}: expected a kind of {', '.join(KINDS)}, got {kind!r}")
    known = find_activation(module)
    if parameters is None and known is not None:
        kinds = {each.attribute: each.kind for each in known.parameters}
        symbols = {each.attribute: each.symbol for each in known.parameters}
    else:
        kinds, symbols = dict(parameters or dict.fromkeys(own, "shape")), {}
    record = ActivationRecord(
        name=name,
        label=label or type(module).__name__,
        build=build,
        color=color,
        parameters=tuple(
            LearnableParameter(attribute=each, kind=kind, symbol=symbols.get(each, ""))
            for each, kind in kinds.items()
        ),
        module=_path(type(module)),
    )
    if _may_stand_for_it(type(module)):
        _by_class.setdefault(record.module, record)
    return record


def _may_stand_for_it(cls: type) -> bool:
    """Whether all modules of a class can be taken for activations: not nn.Sequential, nn.Linear."""
    is_torch = cls.__module__.startswith("torch.nn.")
    return not is_torch or cls.__module__ == "torch.nn.modules.activation"


def _imported(reference: str) -> Any:
    """What a reference names."""
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


def _match(cls: type) -> tuple[ActivationRecord, Any] | None:
    for base in cls.__mro__:
        record = _by_class.get(_path(base))
        if record is not None:
            return record, base
    return None


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
