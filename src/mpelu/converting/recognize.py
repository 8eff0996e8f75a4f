"""Which activation a module is, and which parameters make an MPELU the same function."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.activations import TABLE, ActivationRecord, find_activation, find_function
from mpelu.activations.table import known_function
from mpelu.graph import elementwise, elementwise_function, isolated
from mpelu.modules import MIN_BETA, STEEP

RELU_ALPHA = 1e-6
"""Alpha of an MPELU that starts as ReLU, and its largest error. Because alpha isn't zero, backward
still needs only the output."""
SIMILAR = 0.03
"""Largest distance from an activation of the table at which a module of an unknown class counts as
that activation. Approximations of GELU are within 0.021."""
EQUAL = 1e-6
"""Largest distance at which it computes the same; far from zero, in proportion to the value."""
_FAR = (10.0, 20.0, 50.0, 100.0, 1e3, 1e6)


@dataclass(frozen=True)
class Kind:
    """An activation that was recognized."""

    label: str
    record: ActivationRecord | None
    function: Any = None
    """The activation itself, or a module of torch.nn that computes the same, if there is one."""


@dataclass(frozen=True)
class Start:
    """What an MPELU starts from."""

    values: dict[str, Any]
    """Its parameters by name: alpha and beta, or slope and rate."""
    error: float | None = None
    """Largest difference to the function that is kept; None if no function is kept."""
    is_straight: bool = False
    """Whether it is a leaky ReLU, whose slopes a checkpoint of the original has."""

    @property
    def channels(self) -> int:
        """The number of channels that the values are for; 1 if they are shared."""
        return max(each.numel() if isinstance(each, Tensor) else 1 for each in self.values.values())

    @property
    def numbers(self) -> dict[str, float]:
        """The values of one channel."""
        return {name: float(value) for name, value in self.values.items()}


def recognize(module: nn.Module) -> Kind | None:
    """Recognizes an activation by its class, or by what it computes."""
    name = type(module).__name__
    record = find_activation(module)
    if record is not None:
        return Kind(name, record, module)
    state = (*module.children(), *module.parameters(), *module.buffers())
    if state or isinstance(module, torch.jit.ScriptModule):
        return None
    if type(module).__module__.startswith("torch.nn."):
        return None
    return _by_values(module)


def _by_values(module: nn.Module) -> Kind | None:
    function = elementwise(module)
    if function is None:
        return None
    points = torch.linspace(-8, 8, 1025, dtype=torch.float64).unsqueeze(1)
    with torch.no_grad():
        values = function.apply(points)
    for record, known in _candidates():
        off = _distance(values, known(points))
        if off <= SIMILAR:
            same = off <= EQUAL and _is_equal(module, known, points)
            return Kind(type(module).__name__, record, known if same else None)
    return None


def _candidates() -> Iterator[tuple[ActivationRecord, nn.Module]]:
    for record in TABLE.values():
        if record.module.startswith("torch.nn.") and not record.parameters:
            yield record, record.sample().double().eval()


def _distance(values: Tensor, expected: Tensor) -> float:
    """The largest difference; for values beyond 8, in proportion to the value."""
    return ((values - expected).abs() / (expected.abs() / 8).clamp(min=1)).max().item()


def _is_equal(module: nn.Module, known: nn.Module, points: Tensor) -> bool:
    """Whether both are equal far from zero too, in training mode and in evaluation mode."""
    far = points.new_tensor(_FAR).unsqueeze(1)
    points = torch.cat([points, far, -far])
    for is_training in (False, True):
        copied = isolated(module).cpu().train(is_training)
        function = elementwise_function(copied, "", dims=4) or elementwise_function(
            copied, "", dims=2
        )
        if function is None:
            return False
        with torch.no_grad():
            off = _distance(function.apply(points), known(points))
        if not off <= EQUAL:
            return False
    return True


def wanted(module: nn.Module, replace: Sequence[type[nn.Module]] | None) -> Kind | None:
    """Recognizes a module that is to be replaced.

    Args:
        module: module of the model.
        replace: classes to replace, with modules that compute the same as one of them; None for
            all activations except MPELU.
    """
    kind = recognize(module)
    if replace is None:
        is_mpelu = kind is not None and kind.record is not None and kind.record.name == "mpelu"
        return None if is_mpelu else kind
    if isinstance(module, tuple(replace)):
        return kind or Kind(type(module).__name__, None, module)
    return kind if kind is not None and is_among(kind.record, replace) else None


def wanted_function(value: Any, replace: Sequence[type[nn.Module]] | None) -> Kind | None:
    """Recognizes an activation's function in an attribute that is to be replaced."""
    record = find_function(value)
    if record is None or not is_among(record, replace):
        return None
    computed = module_for(record, (), {})
    return None if computed is None else Kind(record.label, record, computed)


def is_among(record: ActivationRecord | None, replace: Sequence[type[nn.Module]] | None) -> bool:
    """Whether an activation's class is to be replaced."""
    if record is None or replace is None:
        return replace is None
    return record.module in {f"{each.__module__}:{each.__qualname__}" for each in replace}


def module_for(record: ActivationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The module of torch.nn that computes what a call of an activation's function does.

    Args:
        record: record of the activation.
        args: positional arguments of the call, without the input.
        kwargs: keyword arguments of the call.

    Returns:
        The module, or None if there is none.
    """
    if record.parameters or record.name == "rrelu":
        return None
    kind: Any = getattr(nn, record.module.rpartition(":")[2])
    accepted = list(inspect.signature(kind).parameters)
    given = {**dict(zip(accepted, args, strict=False)), **kwargs}
    given = {name: value for name, value in given.items() if name != "input"}
    if not all(isinstance(value, (int, float, str)) for value in given.values()):
        return None
    return kind(**given)


def start_of(kind: Kind) -> Start | str:
    """The parameters that keep an activation's function, or the reason why there are none."""
    if kind.function is None:
        return f"{kind.label}: no MPELU computes the same"
    if kind.record is not None and kind.record.name == "rrelu":
        return "RReLU has random slopes in training, which no MPELU has"
    known = known_function(kind.function)
    if known is None or not known.has_closed_form:
        return f"no MPELU equals {kind.label}"
    if known.slope is not None:
        return _leaky_start(known.slope)
    assert known.alpha is not None
    assert known.beta is not None
    if (torch.as_tensor(known.beta) < MIN_BETA).any():
        return f"no MPELU equals {kind.label}: its beta would be below {MIN_BETA}"
    scales = torch.as_tensor(known.scale, dtype=torch.float64)
    if (scales != 1).any():
        return f"no MPELU equals {kind.label}, whose slope above zero isn't 1"
    if (torch.as_tensor(known.alpha) > STEEP).any():
        slope = _number(known.alpha * known.beta)
        return Start({"slope": slope, "rate": _number(known.beta)}, error=0.0)
    return Start({"alpha": _number(known.alpha), "beta": _number(known.beta)}, error=0.0)


def _number(value: float | Tensor) -> float | Tensor:
    is_single = not isinstance(value, Tensor) or value.numel() == 1
    return float(value) if is_single else value


def _leaky_start(slope: float | Tensor) -> Start:
    """ReLU within 1e-6, so that backward needs only the output; any other slope exactly."""
    slopes = torch.as_tensor(slope, dtype=torch.float64)
    if not slopes.any():
        return Start({"alpha": RELU_ALPHA, "beta": 1.0}, error=RELU_ALPHA)
    return Start({"slope": _number(slope), "rate": 0.0}, error=0.0, is_straight=True)
