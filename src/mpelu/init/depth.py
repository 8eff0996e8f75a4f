"""Effects of depth on a network: gradients, how alike two inputs become, and the shapes of MPELU
that keep them apart.

The structure is read from the calls: activations make two inputs more alike, additions and
concatenations average over several paths, and batch norm sets inputs apart again. `mpelu.theory`
then finds the beta at which the correlation of two unrelated inputs, where it is largest in the
network, equals the target C_f(0).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from mpelu.elementwise import ElementwiseFunction, average, exponential, leaky, remembered
from mpelu.graph import NORMS, Call, Layer
from mpelu.init.methods import Deep, Fitted
from mpelu.init.operations import added_signals
from mpelu.init.plan import Plan
from mpelu.init.planner import Planned
from mpelu.init.report import Initialization, InitializedWeight
from mpelu.init.signal import Signal
from mpelu.modules import MPELU
from mpelu.theory.shaping import Map, beta_for, network_correlation, tabulated_map

CRITICAL_TARGET, TARGET = 0.5, 0.3
"""Default C_f(0) that shapes are chosen for, with and without critical biases.

Without them, inputs are also pushed apart, so the same shape has a smaller C_f(0)."""
LARGEST_BETA = 1.0
"""Largest beta without a target: shallow networks don't get more curvature than ELU has."""


def shape_for(planned: Planned, method: Fitted) -> tuple[list[MPELU], float] | None:
    """Chooses beta for the MPELUs of a network. Returns them with their beta, or None if they keep
    their shapes.

    Raises:
        ValueError: if there is no MPELU to shape, or no beta reaches the method's target.
    """
    structure = Structure(planned, method.sets_biases)
    modules = structure.modules
    if not modules:
        if isinstance(method, Deep) and method.target is None:
            return None
        raise ValueError(
            f"initialize_: {method.name} with shapes requires a trained MPELU in the model"
        )
    try:
        beta = structure.beta(method.target)
    except ValueError as error:
        raise ValueError(f"initialize_: target: {error}") from error
    return None if beta is None else (modules, beta)


def report_depth(
    rows: Sequence[InitializedWeight], planned: Planned, sets_biases: bool
) -> Initialization:
    """Returns the report with predicted gradients and correlations.

    Args:
        rows: rows of the report, with one for each plan first.
        planned: plans, and what is predicted with them.
        sets_biases: whether layers have biases with the critical variance.
    """
    correlations = Structure(planned, sets_biases).correlations()
    gradients = gradient_variances(planned)
    found = list(rows)
    for number, plan in enumerate(planned.plans):
        layer = planned.layers[plan.index]
        if layer is not None:
            before = planned.signals[layer.fed]
            chi = average(plan.std**2) * layer.fan_in * plan.reached * before.slope_before
            found[number] = replace(
                rows[number],
                gradient=gradients[plan.index],
                chi=chi,
                correlation=correlations[plan.index],
            )
    return Initialization(tuple(found), max(correlations, default=0.0))


def gradient_variances(planned: Planned) -> list[float | None]:
    """Returns the gradient's variance at the output of each call, relative to the last call's.

    It is None where it is unknown: before operations that change the number of elements in a way
    that has no rule here, or by an amount that can't be told without shapes.
    """
    calls, layers, signals = planned.calls, planned.layers, planned.signals
    plans = {plan.index: plan for plan in planned.plans}
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


def _over_layer(layer: Layer, plan: Plan | None) -> float | None:
    """Returns the ratio of the gradient's variance at a layer's input to that at its output."""
    if plan is None:
        return None
    steps = 1 if layer.transposed else math.prod(layer.stride)
    return average(plan.std**2) * layer.fan_out / steps * plan.reached


def _over_operation(
    index: int, fed: int, calls: Sequence[Call], signals: Sequence[Signal]
) -> float | None:
    """Returns the ratio of the gradient's variance before any other call to that after it."""
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


@dataclass(frozen=True, slots=True)
class _Place:
    """What a call does to the correlation of two inputs."""

    fed: tuple[int, ...] = ()
    """Calls that the signal comes from. If there are none, the correlation is zero."""
    weights: tuple[float, ...] = ()
    """Weights of the paths in an average."""
    module: MPELU | None = None
    """MPELU whose shape can be chosen."""
    map: Map | None = None
    """Correlation map of an activation with its current shape."""


class Structure:
    """How correlations propagate through a network.

    Args:
        planned: what is planned for the network.
        sets_biases: whether layers have biases with the critical variance.
    """

    def __init__(self, planned: Planned, sets_biases: bool) -> None:
        calls, layers, signals = planned.calls, planned.layers, planned.signals
        # The critical variance of biases requires biases.
        self._critical = sets_biases and any(
            layer is not None
            and signals[layer.fed].before is not None
            and layer.bias is not None
            and layer.bias.requires_grad
            for layer in layers
        )
        self._places = [
            _place(call, layer, signal, signals, self._critical)
            for call, layer, signal in zip(calls, layers, signals, strict=True)
        ]

    @property
    def modules(self) -> list[MPELU]:
        """MPELUs whose shape can be chosen."""
        found = {id(each.module): each.module for each in self._places if each.module is not None}
        return list(found.values())

    def correlations(self, step: Map | None = None) -> list[float]:
        """Returns the correlation after every call for two inputs that are uncorrelated.

        Args:
            step: map of the MPELUs whose shape can be chosen; None for their current shape.
        """
        found: list[float] = []
        for place in self._places:
            if not place.fed:
                value = 0.0
            elif place.weights:
                total = sum(place.weights) or 1.0
                pairs = zip(place.weights, place.fed, strict=True)
                value = sum(weight * found[index] for weight, index in pairs) / total
            else:
                value = max(found[index] for index in place.fed)
            if place.module is not None and step is not None:
                value = step(value)
            elif place.map is not None:
                value = place.map(value)
            found.append(value)
        return found

    def closest(self, step: Map | None = None) -> float:
        """Returns C_f(0), the largest correlation anywhere."""
        return max(self.correlations(step), default=0.0)

    def beta(self, target: float | None) -> float | None:
        """Returns the beta that gives the target, with alpha = 1 / beta; None if shapes can stay.

        Without a target, the default is an upper bound: shapes that don't exceed it stay.
        """
        if target is not None:
            return beta_for(self.closest, target, self._critical)
        bound = CRITICAL_TARGET if self._critical else TARGET
        if self.closest() <= bound * (1 + 1e-6):  # also shapes that were chosen here before
            return None
        if network_correlation(self.closest, LARGEST_BETA, self._critical) <= bound:
            return LARGEST_BETA
        return beta_for(self.closest, bound, self._critical, LARGEST_BETA)


def _place(
    call: Call,
    layer: Layer | None,
    after: Signal,
    signals: Sequence[Signal],
    critical: bool,
) -> _Place:
    if call.target is None or not call.fed_by:
        return _Place()
    if layer is not None:
        return _Place((layer.fed,))
    if isinstance(call.target, _BatchNorm) or call.target is F.batch_norm:
        # It removes the mean over the batch, which is what unrelated inputs have in common.
        return _Place()
    before = after.before
    if before is not None and before is not signals[call.fed_by[0]].before:
        target = call.target
        module = target if isinstance(target, MPELU) and _is_trained(target) else None
        return _Place(fed=call.fed_by[:1], module=module, map=_map_of(before[0], critical))
    if len(call.fed_by) > 1 and (added_signals(call) or call.kind == "join"):
        return _Place(call.fed_by, tuple(average(signals[each].second) for each in call.fed_by))
    return _Place(call.fed_by)


def _is_trained(module: MPELU) -> bool:
    return all(each.requires_grad for each in module.parameters())


def _map_of(activation: ElementwiseFunction, critical: bool) -> Map:
    """Returns an activation's map, averaging parameters that differ by channel."""
    if activation.slope is not None:
        activation = leaky(average(activation.slope))
    elif activation.alpha is not None and activation.beta is not None:
        activation = exponential(average(activation.alpha), average(activation.beta))
    elif activation.channels > 1:  # the first channel stands for all
        whole = activation

        def first(y: torch.Tensor) -> torch.Tensor:
            flat = y.reshape(-1, 1).expand(-1, whole.channels)
            return whole.apply(flat)[:, 0].reshape(y.shape)

        activation = replace(whole, apply=first, channels=1)
    return remembered(
        ("map", activation.key), (critical,), lambda: tabulated_map(activation, critical)
    )


@contextlib.contextmanager
def shaped(modules: Sequence[MPELU], beta: float) -> Iterator[None]:
    """Gives modules slope 1 and this beta, and restores their shape if the block raises."""
    values = {"alpha": 1 / beta, "beta": beta, "slope": 1.0, "rate": beta}
    parameters = [parameter for each in modules for parameter in each.parameters()]
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for each in modules:
                for name, parameter in each.named_parameters(recurse=False):
                    parameter.fill_(values[name])
        yield
    except BaseException:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
        raise
