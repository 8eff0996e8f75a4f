"""Figure 4: various residual blocks."""

from __future__ import annotations

from pathlib import Path

from mpelu.lab.studies.paper import blocks
from mpelu.lab.studies.recipe import Options, Recipe
from mpelu.lab.studies.result import Result

PANELS = (
    ("(a) non-bottleneck", "resnet"),
    ("(b) MPELU\nnon-bottleneck", "mpelu-resnet"),
    ("(c) full pre-activ.\nbottleneck", "preresnet"),
    ("(d) MPELU full pre-activ.\nbottleneck", "mpelu-preresnet"),
)


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    return blocks.result(recipe, options, folder, PANELS)


RECIPE = Recipe(
    name="figure4",
    title="Various residual blocks",
    needs="nothing",
    quantity="",
    summarize=summarize,
)
