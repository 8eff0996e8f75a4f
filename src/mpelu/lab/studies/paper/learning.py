"""Whether networks learn at all, for tables in which some don't."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpelu.lab.studies import summary
from mpelu.lab.studies.gather import EndedRun, Gathered, is_number
from mpelu.lab.studies.results import Plot, Result

NEAR_CHANCE = 0.95
"""A network has learned if its training loss is below this share of the loss at chance."""
_EXPLODED = 50.0
"""A training loss far above that at chance."""


def learned(ended: EndedRun) -> bool:
    """Whether the last quarter of the training losses is clearly below the loss at chance."""
    losses: list[float] = [row["loss"] for row in ended.run.steps if is_number(row.get("loss"))]
    if ended.diverged or not losses:
        return False
    end = losses[-max(1, len(losses) // 4) :]
    return sum(end) / len(end) < NEAR_CHANCE * math.log(ended.num_classes)


def _text(ended: Sequence[EndedRun], values: Sequence[float]) -> str:
    errors = summary.plain_text(ended, values)
    if all(each.diverged for each in ended):
        return errors
    count = sum(learned(each) for each in ended)
    if count == len(ended):
        return f"converges: {errors}"
    return f"fails: {errors}" if count == 0 else f"{count} of {len(ended)} converge: {errors}"


def table(gathered: Gathered) -> Result:
    """The table with a word on whether training converged, and the training losses as a plot."""
    if gathered.options.is_smoke:  # a few steps can't show it
        return summary.table(gathered, plots=_plots)
    note = (
        f"converges: the mean training loss of the last quarter is below {NEAR_CHANCE} times the "
        "loss at chance, log(classes)"
    )
    return summary.table(gathered, text=_text, plots=_plots, notes=(note,))


def _plots(gathered: Gathered) -> tuple[Plot, ...]:
    series = summary.curves(gathered, "step", "loss")
    return (
        Plot(
            title="Training loss, first seed",
            x_label="iterations",
            y_label="cross entropy, nats",
            # On a linear axis, one network that explodes would flatten all others.
            log_y=any(max(each.y, default=0) > _EXPLODED for each in series),
            series=series,
        ),
    )
