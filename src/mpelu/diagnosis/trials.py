"""What initializations would change, each tried on a copy of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from mpelu.converting import convert
from mpelu.diagnosis.findings import findings_of
from mpelu.diagnosis.measure import Loss, Measurement, measure
from mpelu.diagnosis.report import CURABLE, METHODS, Trial, gradient_ratio
from mpelu.graph import Inputs, copied, reason
from mpelu.init import initialize_
from mpelu.modules import MPELU


def trials_of(
    model: nn.Module,
    measured: Measurement,
    inputs: Inputs,
    targets: Any,
    loss: Loss | None,
    say: Callable[[str], None],
) -> Iterator[Trial]:
    """Tries every initialization, and MPELU in place of the activations if none of them helps.

    Args:
        model: model that is copied for each trial.
        measured: measurement of the model as it is.
        inputs: as for `measure`.
        targets: as for `measure`.
        loss: as for `measure`.
        say: receives a line before each trial.
    """
    helps = False
    for method in METHODS:
        say(f"trying initialization {method}")
        trial = _trial(model, method, inputs, targets, loss)
        helps = helps or not trial.problem
        yield trial
    # Activations between layers that aren't gates.
    modules = dict(model.named_modules())
    last = max((row.position for row in measured.layers), default=0)
    swap = {
        row.name: row.type
        for row in measured.rows.values()
        if row.kind == "activation"
        and row.position < last
        and not row.is_gate
        and row.name in modules
        and not isinstance(modules[row.name], MPELU)
    }
    if swap and not helps:
        say("trying MPELU in place of the activations")
        yield _trial(model, "exact", inputs, targets, loss, swap)


def _trial(
    model: nn.Module,
    method: str,
    inputs: Inputs,
    targets: Any,
    loss: Loss | None,
    swap: Mapping[str, str] | None = None,
) -> Trial:
    """Effect of an initialization on a copy, in which MPELU may replace activations.

    Args:
        model: as for `trials_of`.
        method: initialization to try.
        inputs: as for `measure`.
        targets: as for `measure`.
        loss: as for `measure`.
        swap: paths of the activations to replace, and their classes.
    """
    tried = copied(model)
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    swapped = tuple(dict.fromkeys((swap or {}).values()))
    try:
        if swap:
            for path in swap:  # so that convert knows them, whatever they are
                tried.set_submodule(path, nn.ELU())
            kept = [
                path
                for path, _ in tried.named_modules()
                if path and not any(f"{each}.".startswith(f"{path}.") for each in swap)
            ]
            tried = convert(tried, inputs, skip=kept).model
        report = initialize_(tried, inputs, method=method, generator=generator)
        measured = measure(tried, inputs, targets, loss)
    except Exception as error:  # also what the model itself raises on other weights
        return Trial(method=method, swapped=swapped, problem=reason(error))
    found = [each for each in findings_of(measured) if each.kind in CURABLE]
    predicted = [row.predicted for row in report.rows if row.predicted is not None]
    return Trial(
        method=method,
        swapped=swapped,
        predicted=predicted[-1] if predicted else None,
        signal=measured.layers[-1].signal if measured.layers else None,
        gradient_ratio=gradient_ratio([*measured.rows.values()]),
        problem=found[0].kind if found else "",
    )
