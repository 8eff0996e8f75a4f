"""Table 3: leaky ReLU slopes in the 15-layer network on ImageNet."""

from __future__ import annotations

from pathlib import Path

from mpelu.lab.studies import scale, solvers, summary
from mpelu.lab.studies.paper import top5
from mpelu.lab.studies.recipe import Options, Recipe, Setting
from mpelu.lab.studies.result import Result

PAPER = {
    # network: slope, top-1, top-5
    "ReLU": (0.0, "37.66", "15.98"),
    "LReLU (A)": (0.1, "37.92", "16.26"),
    "LReLU (B)": (0.25, "38.54", "16.65"),
    "LReLU (C)": (0.5, "42.76", "20.18"),
    "LReLU (D)": (1.0, "60.27", "36.60"),
}


def settings(reading: str) -> list[Setting]:
    return [
        Setting(
            name=f"slope-{slope:g}",
            labels=(name, f"{slope:g}"),
            paper=top_1,
            config=solvers.plain(
                15,
                "leaky_relu" if slope else "relu",
                solvers.GAUSSIAN,
                reading,
                alpha=slope or None,
            ),
        )
        for name, (slope, top_1, _) in PAPER.items()
    ]


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    """The usual table, with the top-5 error of the trained networks beside it."""
    printed = {name: top_5 for name, (_, _, top_5) in PAPER.items()}
    result = summary.table(recipe, options, folder)
    return top5.add(result, recipe, options, folder, printed)


RECIPE = Recipe(
    name="table3",
    title="15-layer network on ImageNet by the slope of leaky ReLU",
    needs="ImageNet as folders train/ and val/",
    labels=("15-layer network with", "slope a"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain_15,
    seeds={"smoke": 1, "small": 2, "full": 1},
    readings=solvers.PLAIN_READINGS,
    comparisons=(("slope-0", "slope-1"),),
    summarize=summarize,
)
