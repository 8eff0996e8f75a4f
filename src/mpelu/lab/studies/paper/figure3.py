"""Figure 3: degradation, 15 against 30 layers, with and without batch normalization."""

from __future__ import annotations

from pathlib import Path

from mpelu.lab.studies import scale, solvers, summary
from mpelu.lab.studies.gather import Gathered
from mpelu.lab.studies.paper import table05
from mpelu.lab.studies.recipe import Options, Recipe, Setting
from mpelu.lab.studies.result import Plot, Result

SHOWN = ("mpelu-15-ours-bn", "mpelu-30-gaussian-bn", "mpelu-30-ours-bn", "mpelu-30-ours")


def settings(reading: str) -> list[Setting]:
    """The networks of the figure; their values are those of table 5."""
    found = {each.name: each for each in table05.settings(reading)}
    return [found[name] for name in SHOWN]


def _plots(gathered: Gathered) -> tuple[Plot, ...]:
    shown = (
        ("(a) training loss", "step", "loss", "cross entropy, nats"),
        ("(b) training error", "test", "train_error", "top-1 training error, %"),
        ("(c) test error", "test", "test_error", "top-1 test error, %"),
    )
    return tuple(
        Plot(
            title=title,
            x_label="iterations",
            y_label=label,
            series=summary.curves(gathered, kind, quantity),
        )
        for title, kind, quantity, label in shown
    )


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    return summary.table(recipe, options, folder, plots=_plots)


RECIPE = Recipe(
    name="figure3",
    title="Degradation: 15 against 30 layers on ImageNet",
    needs="ImageNet as folders train/ and val/",
    labels=table05.RECIPE.labels,
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 2, "full": 1},
    readings=solvers.PLAIN_READINGS,
    comparisons=(("mpelu-30-ours-bn", "mpelu-15-ours-bn"), ("mpelu-30-ours", "mpelu-30-ours-bn")),
    summarize=summarize,
)
