"""Figure 5: alternatives of the residual function."""

from __future__ import annotations

from pathlib import Path

from mpelu.lab.studies.paper import blocks
from mpelu.lab.studies.recipe import Options, Recipe
from mpelu.lab.studies.result import Result

PANELS = (
    ("(a) MPELU-only\npre-activ. with BN", "mpelu-only-preresnet-bn"),
    ("(b) MPELU-only\npre-activ.", "mpelu-only-preresnet"),
    ("(c) nopre with BN\nbefore addition", "nopre-bn-resnet"),
    ("(d) nopre-activ.", "nopre-resnet"),
    ("(e) nopre-activ.\nwithout BN", "nopre-nobn-resnet"),
)


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    return blocks.result(recipe, options, folder, PANELS)


RECIPE = Recipe(
    name="figure5",
    title="Alternatives of the residual function",
    needs="nothing",
    quantity="",
    summarize=summarize,
)
