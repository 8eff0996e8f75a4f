"""Whether networks learn at all, for tables in which some don't."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mpelu.lab.studies import summary
from mpelu.lab.studies.gather import Gathered, Kept, classes, is_number
from mpelu.lab.studies.recipe import Options, Recipe
from mpelu.lab.studies.result import Plot, Result

NEAR_CHANCE = 0.95
"""A network has learned once its training loss is below this share of that of a guess."""
_EXPLODED = 50.0
"""A training loss far above any guess's."""


def learned(kept: Kept) -> bool:
    """Whether the last quarter of the training losses is clearly below that of a guess."""
    losses = [row["loss"] for row in kept.run.steps if is_number(row.get("loss"))]
    if kept.diverged or not losses:
        return False
    end = losses[-max(1, len(losses) // 4) :]
    return sum(end) / len(end) < NEAR_CHANCE * math.log(classes(kept.run.path))


def _text(kept: Sequence[Kept], values: Sequence[float]) -> str:
    errors = summary.plain_text(kept, values)
    if all(each.diverged for each in kept):
        return errors
    count = sum(learned(each) for each in kept)
    if count == len(kept):
        return f"converges: {errors}"
    return f"fails: {errors}" if count == 0 else f"{count} of {len(kept)} converge: {errors}"


def table(recipe: Recipe, options: Options, folder: Path) -> Result:
    """The table with a word on whether training got anywhere, and the training losses drawn."""
    note = (
        f"converges: training loss of the last quarter below {NEAR_CHANCE} of a guess's, "
        "log(classes)"
    )
    return summary.table(recipe, options, folder, text=_text, plots=_plots, notes=(note,))


def _plots(gathered: Gathered) -> tuple[Plot, ...]:
    series = summary.curves(gathered, "step", "loss")
    return (
        Plot(
            title="Training loss, first seed",
            x_label="iterations",
            y_label="cross entropy, nats",
            # One network that explodes would flatten all others.
            log_y=any(max(each.y, default=0) > _EXPLODED for each in series),
            series=series,
        ),
    )
