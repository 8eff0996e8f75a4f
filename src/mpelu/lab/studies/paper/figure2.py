"""Figure 2: how fast Network in Network learns by activation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mpelu.lab.studies import scale, summary
from mpelu.lab.studies.gather import Gathered, Kept, is_number
from mpelu.lab.studies.paper import table01
from mpelu.lab.studies.paper.table02 import NAMES
from mpelu.lab.studies.recipe import Options, Recipe, Setting
from mpelu.lab.studies.result import Plot, Result
from mpelu.lab.studies.statistics import text_of

PAPER = {
    # iterations to 15 % test error, from the caption
    ("relu", None): "25k",
    ("prelu", 0.25): "15k",
    ("elu", 1.0): "",
    ("mpelu", 1.0): "9k",
}
ERROR = {"full": 15.0, "small": 60.0, "smoke": 95.0}
"""Test error in % that has to be reached; networks trained for minutes don't reach 15."""


def settings(reading: str) -> list[Setting]:
    return [
        Setting(
            name=activation,
            labels=(NAMES[activation],),
            paper=printed,
            config=table01.config(activation, alpha, True, reading),
        )
        for (activation, alpha), printed in PAPER.items()
    ]


def _reached(error: float, kept: Kept) -> float | None:
    """The first tested iteration with this error or less."""
    for row in kept.run.tests:
        reached = is_number(row.get("test_error")) and row["test_error"] <= error
        if reached and is_number(row.get("step")):
            return float(row["step"])
    return None


def _plots(gathered: Gathered) -> tuple[Plot, ...]:
    return (
        Plot(
            title="(a) training loss",
            x_label="iterations",
            y_label="cross entropy, nats",
            series=summary.curves(gathered, "test", "train_loss"),
        ),
        Plot(
            title="(b) test error",
            x_label="iterations",
            y_label="test error, %",
            series=summary.curves(gathered, "test", "test_error"),
        ),
    )


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    error = ERROR[options.scale]
    every = recipe.at_scale(options)[0].config
    assert every is not None
    shrunk = () if options.scale == "full" else (f"{error:g} % error in place of 15 %",)
    return summary.table(
        recipe,
        options,
        folder,
        measured=f"iterations to {error:g} % test error",
        shrunk=shrunk,
        digits=0,
        value=partial(_reached, error),
        text=lambda kept, values: _text(error, kept, values),
        plots=_plots,
        notes=(f"tested every {every.test_interval} iterations",),
    )


def _text(error: float, kept: Sequence[Kept], values: Sequence[float]) -> str:
    count, found = len(kept), len(values)
    if not found:
        return f"{error:g} % not reached" if count else "no run"
    missed = f", {count - found} of {count} did not reach it" if found < count else ""
    return text_of(values, digits=0) + missed


RECIPE = Recipe(
    name="figure2",
    title="Convergence of Network in Network on CIFAR-10 (augmented)",
    needs="CIFAR-10",
    labels=("activation",),
    quantity="iterations to 15 % test error",
    settings=settings,
    shrink=scale.nin,
    seeds={"smoke": 1, "small": 1, "full": 5},
    readings=table01.READINGS,
    comparisons=(("mpelu", "relu"), ("mpelu", "prelu")),
    summarize=summarize,
)
