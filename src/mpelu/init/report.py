"""What an initialization did to each weight."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.graph import Weights
from mpelu.init.operations import NORMS
from mpelu.init.outputs import deviation
from mpelu.init.plan import (
    CAPPED_NOTE,
    FEW_NOTE,
    HOOK_NOTE,
    MEAN_NOTE,
    OFF,
    RANGE_NOTE,
    REUSED_NOTE,
    SCALE_NOTE,
    TANGENT_NOTE,
    UNEVEN_NOTE,
    ZERO_NOTE,
    Plan,
)
from mpelu.init.signal import UNSTABLE_NOTE, Source
from mpelu.init.values import Value, average


@dataclass(frozen=True, kw_only=True)
class Row:
    """One weight."""

    layer: str
    """Path of the weight in the model."""
    rule: str
    """The method and mode; behind them "balanced" if the weight was scaled by its gradient, and
    "measured" if it was scaled by measurement. "frozen", or "left as it was"."""
    feed: str = ""
    """The activation that feeds the layer, several joined by +, or "input"."""
    alpha: float | list[float] | None = None
    """Of the activation: a number, or one for each channel where they differ."""
    beta: float | list[float] | None = None
    fan: float | None = None
    """n in the rule."""
    std: float
    """Of the weights; over all groups where these differ."""
    predicted: float | None = None
    """Variance of the layer's output by propagation of moments."""
    measured: float | None = None
    """The same on the example inputs; of one or two outputs the mean square, which `predicted` is
    too, since weights have mean zero."""
    gradient: float | None = None
    """Predicted variance of the gradient at the layer's output, relative to the last call's.
    This and the next two are predicted by "critical", "deep" and shapes by depth."""
    chi: float | None = None
    """Factor of the gradient's variance over the layer and the activation before it."""
    correlation: float | None = None
    """Of two unrelated inputs at the layer's output."""
    note: str = ""
    """What was assumed, or why the weight was left as it was."""


@dataclass(frozen=True)
class Report:
    """Rows in the order of the forward pass, then the weights that are not in it.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), mpelu.MPELU(), torch.nn.Linear(8, 2))
        >>> report = mpelu.init.initialize_(model, torch.randn(64, 8))
        >>> [row.feed for row in report.rows]
        ['input', '1 (MPELU)']
    """

    rows: tuple[Row, ...]
    correlation: float | None = None
    """C_f(0): the largest correlation that two unrelated inputs have anywhere in the network."""

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings and lists."""
        return {"rows": [asdict(row) for row in self.rows], "correlation": self.correlation}

    def __str__(self) -> str:
        header = ["layer", "rule", "fed by", "alpha", "beta", "fan", "std", "predicted", "measured"]
        has_depth = any(row.correlation is not None for row in self.rows)
        header += ["gradient", "chi", "correlation"] if has_depth else []
        cells = [
            [
                row.layer,
                row.rule,
                row.feed,
                _number(row.alpha),
                _number(row.beta),
                _number(row.fan),
                _number(row.std),
                _number(row.predicted),
                _number(row.measured),
                *(
                    [_number(row.gradient), _number(row.chi), _number(row.correlation)]
                    if has_depth
                    else []
                ),
            ]
            for row in self.rows
        ]
        notes = [f"{row.layer}: {row.note}" for row in self.rows if row.note]
        if self.correlation is not None:
            notes.insert(0, f"C_f(0): {self.correlation:.3g}")
        return "\n".join([*_aligned([header, *cells]), *notes])


def rows_of(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    weights: Weights,
    plans: Sequence[Plan],
    rule: str,
    measured: Mapping[int, float],
    scaled: Collection[int] = (),
    balanced: Collection[int] = (),
    zeros: Collection[str] = (),
) -> tuple[Row, ...]:
    """A row for each plan, and for each weight of two or more dimensions without one.

    Args:
        model: whose weights they are.
        parameters: of the model, by path.
        weights: which calls used a parameter.
        plans: in order.
        rule: method and mode.
        measured: variance of the output, by the index of the plan.
        scaled: indices of plans whose weight was scaled by measurement.
        balanced: indices of plans whose weight was scaled by its gradient.
        zeros: paths of weights that stayed zero.
    """
    rows = [
        _row(
            plan,
            f"{rule}, balanced" if index in balanced else rule,
            measured.get(index),
            deviation(weights.again(plan.weight)) if index in scaled else None,
        )
        for index, plan in enumerate(plans)
    ]
    placed = {name for plan in plans for name in weights.originals(plan.name)}
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    reset = {id(parameter) for module in norms for parameter in module.parameters()}
    rows += [
        Row(
            layer=name,
            rule="left as it was" if parameter.requires_grad else "frozen",
            std=deviation(parameter),
            note=_reason_left(model, name, weights.used) if parameter.requires_grad else "",
        )
        for name, parameter in parameters.items()
        if parameter.dim() > 1 and name not in placed and id(parameter) not in reset
    ]
    rows += [
        Row(layer=name, rule="left as it was", std=0.0, note=ZERO_NOTE)
        for name, parameter in parameters.items()
        if name in zeros and id(parameter) in reset and parameter.requires_grad
    ]
    return tuple(rows)


def _row(plan: Plan, rule: str, measured: float | None, scaled_std: float | None) -> Row:
    """Of a plan, and the deviation of its weight if it was scaled by measurement."""
    alone = plan.sources[0].activation if len(plan.sources) == 1 else None
    trained_rule = rule if scaled_std is None else f"{rule}, measured"
    if plan.left:
        trained_rule = "left as it was"
    return Row(
        layer=plan.name,
        rule=trained_rule if plan.is_trained else "frozen",
        feed=" + ".join(map(_label, plan.sources)),
        alpha=None if alone is None else _numbers(alone.alpha),
        beta=None if alone is None else _numbers(alone.beta),
        fan=plan.fan if plan.is_trained else None,
        std=_std(plan) if scaled_std is None else scaled_std,
        predicted=plan.predicted,
        measured=measured,
        note=_note(plan, measured) if plan.is_trained else "",
    )


def _std(plan: Plan) -> float:
    if plan.left or not plan.is_trained:
        return average(plan.std) if plan.left else deviation(plan.weight)
    return math.sqrt(average(plan.std**2))


_LASTING = (
    UNSTABLE_NOTE, TANGENT_NOTE, CAPPED_NOTE, FEW_NOTE, MEAN_NOTE, UNEVEN_NOTE, REUSED_NOTE,
    SCALE_NOTE, RANGE_NOTE, HOOK_NOTE.partition("}")[2],
)  # fmt: skip
"""Notes that a measurement on one batch doesn't settle."""


def _note(plan: Plan, measured: float | None) -> str:
    """Doubts about a prediction count only as long as nothing was measured."""
    if plan.left:
        return plan.left
    if measured is None:
        return "; ".join(plan.doubts)
    predicted = plan.predicted or 0.0
    is_close = predicted > 0 and 1 / OFF <= measured / predicted <= OFF
    if is_close:
        return "; ".join(doubt for doubt in plan.doubts if doubt.endswith(_LASTING))
    return "; ".join([f"measured {measured:.3g} where {predicted:.3g} was predicted", *plan.doubts])


def _reason_left(model: nn.Module, name: str, used: Mapping[str, str]) -> str:
    if _is_scripted(model, name):
        return "inside a scripted module, which can't be looked into; left as it was"
    if not used:  # torch.fx shows which functions are called, not what computes their weights
        return "torch.fx shows no layer that uses it; left as it was (example_inputs may show one)"
    if name not in used:
        return "not used in the forward pass; left as it was"
    return (
        f"used by {used[name]}, but not as the weight of a layer that the input feeds; left as it "
        "was"
    )


def _is_scripted(model: nn.Module, name: str) -> bool:
    """Whether a module on the way to a parameter is scripted."""
    parts = name.split(".")[:-1]
    paths = [".".join(parts[:count]) for count in range(len(parts) + 1)]
    return any(isinstance(model.get_submodule(path), torch.jit.ScriptModule) for path in paths)


def _label(source: Source) -> str:
    kind = source.activation.name
    return source.name if kind in ("linear", source.name) else f"{source.name} ({kind})"


def _numbers(value: Value | None) -> float | list[float] | None:
    return value.tolist() if isinstance(value, Tensor) else value


def _number(value: float | list[float] | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"{min(value):.3g}..{max(value):.3g}"
    return f"{value:.4g}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < 3 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
