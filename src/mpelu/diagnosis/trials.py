"""What initializations would give, each tried on a copy of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mpelu.converting import convert
from mpelu.diagnosis.findings import findings_of
from mpelu.diagnosis.inputs import Loss
from mpelu.diagnosis.remarks import measure_opened
from mpelu.diagnosis.rows import Measurement, gradient_ratio
from mpelu.graph import Inputs, copied, reason
from mpelu.init.initialize import initialize_
from mpelu.modules import MPELU

METHODS = ("exact", "taylor", "msra", "xavier", "lsuv")
"""Initializations that are tried, the first that helps being named."""
CURABLE = (
    "non-finite", "signal dies", "signal explodes", "gradient vanishes", "gradient explodes",
    "dead", "symmetric", "saturated", "linear",
)  # fmt: skip
"""Kinds of problems that other weights may solve."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What an initialization gives, measured on a copy of the model."""

    method: str
    swapped: tuple[str, ...] = ()
    """Classes of the activations that MPELU took the place of."""
    predicted: float | None = None
    """Variance of the last layer's output by propagation of moments."""
    signal: float | None = None
    """Variance of the last layer's output between samples, measured."""
    gradient_ratio: float | None = None
    """What a relative change of the first weights does to the loss, as a multiple of the last."""
    problem: str = ""
    """What would still be wrong, or why it can't be applied; empty if nothing."""

    @property
    def label(self) -> str:
        """The method and what it was tried with, in words."""
        return f"{self.method} {swap_words(self.swapped)}" if self.swapped else self.method


def swap_words(swapped: Sequence[str]) -> str:
    """What MPELU took the place of, in words."""
    return f"with MPELU for {' and '.join(swapped)}"


def trials_of(
    model: nn.Module,
    measured: Measurement,
    inputs: Inputs,
    targets: Any,
    loss: Loss | None,
    say: Callable[[str], None],
) -> Iterator[Trial]:
    """Tries every initialization, and MPELU in place of the activations if none of them helps."""
    helps = False
    for method in METHODS:
        say(f"trying initialization {method}")
        trial = _trial(model, method, inputs, targets, loss)
        helps = helps or not trial.problem
        yield trial
    swap = _between_layers(model, measured)
    if swap and not helps:
        say("trying MPELU in place of the activations")
        yield _trial(model, "exact", inputs, targets, loss, swap)


def _between_layers(model: nn.Module, measured: Measurement) -> dict[str, str]:
    """Paths and classes of activations between layers that aren't MPELUs, nor gates."""
    modules = dict(model.named_modules())
    last = measured.layers[-1].position if measured.layers else 0
    return {
        row.name: row.type
        for row in measured.rows
        if row.kind == "activation"
        and row.position < last
        and row.name in modules
        and not row.is_gate
        and not isinstance(modules[row.name], MPELU)
    }


def _trial(
    model: nn.Module,
    method: str,
    inputs: Inputs,
    targets: Any,
    loss: Loss | None,
    swap: Mapping[str, str] | None = None,
) -> Trial:
    """What an initialization gives on a copy, in which MPELU may take the place of activations."""
    tried = copied(model)
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    swapped = tuple(dict.fromkeys((swap or {}).values()))
    try:
        if swap:
            for path in swap:  # so that convert knows them, whatever they are
                tried.set_submodule(path, nn.ELU())
            others = [path for path, _ in tried.named_modules() if path and path not in swap]
            kept = [
                path for path in others if not any(each.startswith(f"{path}.") for each in swap)
            ]
            tried = convert(tried, inputs, skip=kept).model
        report = initialize_(tried, inputs, method=method, generator=generator)
        measured, _ = measure_opened(tried, inputs, targets, loss)
    except Exception as error:  # also what the model itself raises on other weights
        return Trial(method=method, swapped=swapped, problem=reason(error))
    found = [each for each in findings_of(measured) if each.kind in CURABLE]
    predicted = [row.predicted for row in report.rows if row.predicted is not None]
    return Trial(
        method=method,
        swapped=swapped,
        predicted=predicted[-1] if predicted else None,
        signal=measured.layers[-1].signal if measured.layers else None,
        gradient_ratio=gradient_ratio(measured),
        problem=found[0].kind if found else "",
    )
