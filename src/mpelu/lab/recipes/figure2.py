"""Figure 2: how fast Network in Network learns by activation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mpelu.lab.recipes import scale, summary, table01
from mpelu.lab.recipes.gather import Gathered, Kept
from mpelu.lab.recipes.recipe import Options, Recipe, Setting
from mpelu.lab.recipes.result import Plot, Result

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
            labels=(activation,),
            paper=printed,
            config=table01.config(activation, alpha, True, reading),
        )
        for (activation, alpha), printed in PAPER.items()
    ]


def _reached(error: float, kept: Kept) -> float | None:
    """The first tested iteration with this error or less."""
    for row in kept.run.tests:
        if isinstance(row.get("test_error"), (int, float)) and row["test_error"] <= error:
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
    notes = [f"tested every {every.test_every} iterations"]
    if error != ERROR["full"]:
        notes.append(f"shrunk: {error:g} % error in place of {ERROR['full']:g} %")
    return summary.table(
        recipe,
        options,
        folder,
        value=partial(_reached, error),
        text=lambda kept, values: _text(error, kept, values),
        plots=_plots,
        notes=tuple(notes),
    )


def _text(error: float, kept: object, values: object) -> str:
    found = sorted(values)  # type: ignore[call-overload]
    count = len(kept)  # type: ignore[arg-type]
    if not found:
        return f"{error:g} % not reached" if count else "no run"
    missed = f", {count - len(found)} of {count} did not reach it" if len(found) < count else ""
    return ", ".join(f"{value:.0f}" for value in found) + missed


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
