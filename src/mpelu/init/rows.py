"""Rows of the report, from the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from mpelu.init.channels import Value, average
from mpelu.init.plan import Plan
from mpelu.init.propagate import NORMS
from mpelu.init.report import Row
from mpelu.init.signal import Source


def _numbers(value: Value | None) -> float | list[float] | None:
    return value.tolist() if isinstance(value, Tensor) else value


def _label(source: Source) -> str:
    kind = source.activation.name
    return source.name if kind in ("linear", source.name) else f"{source.name} ({kind})"


def _row(plan: Plan, rule: str, measured: float | None) -> Row:
    alone = plan.sources[0].activation if len(plan.sources) == 1 else None
    doubts = [source.doubt for source in plan.sources if source.doubt]
    weight = plan.layer.weight
    return Row(
        layer=plan.name,
        rule=rule if plan.is_trained else "frozen",
        feed=" + ".join(map(_label, plan.sources)),
        alpha=None if alone is None else _numbers(alone.alpha),
        beta=None if alone is None else _numbers(alone.beta),
        fan=plan.fan if plan.is_trained else None,
        std=average(plan.std**2) ** 0.5 if plan.is_trained else _std(weight),
        predicted=plan.predicted,
        measured=measured,
        note="; ".join(doubts) if plan.is_trained else "",
    )


def _std(weight: Tensor) -> float:
    return weight.detach().double().std(correction=0).item()


def rows_of(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    plans: Sequence[Plan],
    rule: str,
    measured: Mapping[int, float],
) -> tuple[Row, ...]:
    """A row for each plan, and for each weight of two or more dimensions without one."""
    rows = [_row(plan, rule, measured.get(id(plan.layer.weight))) for plan in plans]
    placed = {id(plan.layer.weight) for plan in plans}
    left = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.dim() > 1 and id(parameter) not in placed
    }
    if left:
        norms = [module for module in model.modules() if isinstance(module, NORMS)]
        reset = {id(parameter) for module in norms for parameter in module.parameters()}
        rows += [
            Row(
                layer=name,
                rule="left as it was",
                std=_std(parameter),
                note="not the weight of a linear or convolutional layer in the forward pass; "
                "left as it was",
            )
            for name, parameter in left.items()
            if id(parameter) not in reset
        ]
    return tuple(rows)
