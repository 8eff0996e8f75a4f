"""Which activation a module is, and which alpha and beta make an MPELU the same function."""

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
from mpelu.modules import MIN_BETA

RELU_ALPHA = 1e-6
"""Alpha of an MPELU that starts as ReLU. It is off by no more than this, and as alpha isn't zero,
backward still needs the output alone."""
LEAKY_BETA = 0.01
"""Beta of an MPELU that starts as leaky ReLU of slope s: alpha is s / beta, and the error at y is
less than s beta y^2 / 2. A smaller beta would cost no precision, but it would hardly train: a step
of an optimizer changes the slope by alpha times the step of beta."""
SIMILAR = 0.03
"""A module of an unknown class counts as an activation of the table if it is nowhere further from
it: approximations of GELU are within 0.021."""
EQUAL = 1e-6
"""One that is nowhere further from it, far from zero in proportion, computes the same."""
_FAR = (10.0, 20.0, 50.0, 100.0, 1e3, 1e6)


@dataclass(frozen=True)
class Kind:
    """An activation as far as it is recognized."""

    label: str
    record: ActivationRecord | None
    function: Any = None
    """A module of torch.nn that computes exactly the same, or the activation itself."""


@dataclass(frozen=True)
class Start:
    """Alpha and beta to begin with."""

    alpha: float | Tensor
    beta: float | Tensor
    error: float | None = None
    """Largest difference to the function that is kept, for any input; None if none is kept."""
    slope: float = 0.0
    """The largest slope of a leaky ReLU that is kept, whose error depends on the input."""

    def error_at(self, lowest: float | None, dtype: torch.dtype) -> float | None:
        """The largest difference for inputs down to the lowest, with alpha and beta of a dtype."""
        if self.error is None or not self.slope:
            return self.error
        if lowest is None:
            return None
        rounded = 2 * torch.finfo(dtype).eps * abs(lowest)
        return self.slope * (float(self.beta) * lowest**2 / 2 + rounded)


def recognize(module: nn.Module) -> Kind | None:
    """The activation that a module is: by its class, or by what it computes."""
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
    """The largest difference; beyond 8, in proportion to the value."""
    return ((values - expected).abs() / (expected.abs() / 8).clamp(min=1)).max().item()


def _is_equal(module: nn.Module, known: nn.Module, points: Tensor) -> bool:
    """Whether both are the same function far from zero too, and in training as in evaluation."""
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
    """The activation that a module is, if it is one to replace.

    Args:
        module: of the model.
        replace: classes. Modules that compute the same as one of them count too. None for all
            activations that are recognized, but MPELU.
    """
    kind = recognize(module)
    if replace is None:
        is_mpelu = kind is not None and kind.record is not None and kind.record.name == "mpelu"
        return None if is_mpelu else kind
    if isinstance(module, tuple(replace)):
        return kind or Kind(type(module).__name__, None, module)
    return kind if kind is not None and is_among(kind.record, replace) else None


def wanted_function(value: Any, replace: Sequence[type[nn.Module]] | None) -> Kind | None:
    """The same for the value of an attribute, which may be an activation's function."""
    record = find_function(value)
    if record is None or not is_among(record, replace):
        return None
    computed = module_for(record, (), {})
    return None if computed is None else Kind(record.label, record, computed)


def is_among(record: ActivationRecord | None, replace: Sequence[type[nn.Module]] | None) -> bool:
    """Whether the class of an activation is one of those to replace."""
    if record is None or replace is None:
        return replace is None
    return record.module in {f"{each.__module__}:{each.__qualname__}" for each in replace}


def module_for(record: ActivationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The module of torch.nn for a call of an activation's function, or None if there is none.

    Args:
        record: of the activation.
        args: of the function, without the input.
        kwargs: likewise.
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


def start_of(kind: Kind, leaky_beta: float) -> Start | str:
    """Alpha and beta that keep the function, or the reason why there are none."""
    if kind.function is None:
        return f"{kind.label}: no MPELU computes the same"
    if kind.record is not None and kind.record.name == "rrelu":
        return "the slopes of RReLU are random in training; no MPELU's are"
    known = known_function(kind.function)
    if known is None or not known.has_closed_form:
        return f"no MPELU equals {kind.label}"
    if known.slope is not None:
        return _leaky_start(known.slope, leaky_beta)
    alpha, beta = known.alpha, known.beta
    assert alpha is not None
    assert beta is not None
    if (torch.as_tensor(beta) < MIN_BETA).any():
        return f"no MPELU equals {kind.label}: its beta would be below {MIN_BETA}"
    scales = torch.as_tensor(known.scale, dtype=torch.float64)
    if (scales != 1).any():
        return f"no MPELU equals {kind.label}, whose slope above zero isn't 1"
    return Start(_number(alpha), _number(beta), error=0.0)


def _number(value: float | Tensor) -> float | Tensor:
    is_single = not isinstance(value, Tensor) or value.numel() == 1
    return float(value) if is_single else value


def _leaky_start(slope: float | Tensor, beta: float) -> Start:
    slopes = torch.as_tensor(slope, dtype=torch.float64)
    if not slopes.any():
        return Start(RELU_ALPHA, 1.0, error=RELU_ALPHA)
    alpha = torch.where(slopes == 0, RELU_ALPHA, slopes / beta)
    return Start(_number(alpha), beta, error=0.0, slope=slopes.abs().max().item())
