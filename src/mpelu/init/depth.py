"""What "deep" stands for, and what the report says about depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpelu.graph import Call, Layer
from mpelu.init.backward import chi_of, gradient_variances
from mpelu.init.operations import added_signals, normalizes
from mpelu.init.orthogonal import DISTRIBUTIONS
from mpelu.init.plan import Plan
from mpelu.init.report import Report, Row
from mpelu.init.shape import SHAPES, Structure
from mpelu.init.signal import Signal
from mpelu.theory.tailoring import Tailored


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How weights are chosen, with nothing left to the method."""

    rule: str
    """As the report calls it."""
    method: str
    distribution: str
    activation_shape: str | None


def is_plain(calls: Sequence[Call]) -> bool:
    """Whether a network has neither norms nor shortcuts, so that depth is left to its weights."""
    return not any(
        normalizes(call) or (len(call.fed_by) > 1 and added_signals(call)) for call in calls
    )


def choose(
    calls: Sequence[Call],
    method: str,
    mode: str,
    distribution: str | None,
    activation_shape: str | None,
) -> Choice:
    """The choice for a network; arguments as for `initialize_`.

    "deep" is the critical rule with orthogonal weights and shapes by depth in a plain network, and
    the exact rule in one with norms or shortcuts.
    """
    fan = "fan_in" if mode == "balanced" else mode
    rule = method if method in ("gaussian", "xavier", "deep") else f"{method} {fan}"
    if method == "deep":
        if is_plain(calls):
            method, distribution = "critical", distribution or "orthogonal"
            activation_shape = activation_shape or "depth"
        else:
            method, rule = "exact", f"deep: exact {fan}"
    elif distribution == "orthogonal":
        rule = f"{rule}, orthogonal"
    if activation_shape == "tailored":
        rule = f"{rule}, tailored"
    return Choice(
        rule=rule,
        method=method,
        distribution=distribution or "normal",
        activation_shape=activation_shape,
    )


def check_choice(
    method: str,
    distribution: str | None,
    activation_shape: str | None,
    shape_target: float | None,
) -> None:
    """Raises ValueError for arguments that don't exist or don't go together."""
    if distribution not in (None, *DISTRIBUTIONS):
        raise ValueError(
            f"initialize_: expected a distribution of {list(DISTRIBUTIONS)}, got {distribution!r}"
        )
    if activation_shape not in (None, *SHAPES):
        raise ValueError(
            f"initialize_: expected an activation_shape of {list(SHAPES)}, got {activation_shape!r}"
        )
    if activation_shape == "tailored" and method not in ("critical", "deep"):
        raise ValueError(
            f"initialize_: expected method critical or deep for activation_shape 'tailored', "
            f"got {method}"
        )
    if shape_target is not None:
        if activation_shape == "tailored":
            raise ValueError(
                "initialize_: expected no shape_target for activation_shape 'tailored', "
                f"got {shape_target}"
            )
        if activation_shape is None and method != "deep":
            raise ValueError("initialize_: expected activation_shape with shape_target, got None")
        if not 0 < shape_target < 1:
            raise ValueError(
                f"initialize_: expected a shape_target above 0 and below 1, got {shape_target}"
            )
    if method == "lsuv" and (distribution is not None or activation_shape is not None):
        raise ValueError(
            "initialize_: expected neither distribution nor activation_shape with lsuv"
        )


def report_depth(
    rows: Sequence[Row],
    plans: Sequence[Plan],
    calls: Sequence[Call],
    layers: Sequence[Layer | None],
    signals: Sequence[Signal],
    critical: bool,
    tailored: Tailored | None = None,
) -> Report:
    """The report with what is predicted of gradients and correlations.

    Args:
        rows: one for each plan first.
        plans: of the weights, in order.
        calls: of the model.
        layers: that the calls run.
        signals: of every call, as the planner left them.
        critical: whether layers have biases of the critical variance.
        tailored: the shape of all MPELUs, if it is by the conditions of TAT.
    """
    correlations = Structure(calls, layers, signals, critical, tailored).correlations()
    gradients = gradient_variances(calls, layers, signals, {plan.index: plan for plan in plans})
    found = list(rows)
    for number, plan in enumerate(plans):
        layer = layers[plan.index]
        if layer is not None:
            found[number] = replace(
                rows[number],
                gradient=gradients[plan.index],
                chi=chi_of(plan, layer, signals[layer.fed]),
                correlation=correlations[plan.index],
            )
    return Report(tuple(found), max(correlations, default=0.0))
