"""A claim of section 4.3: LSUV makes 30- and 52-layer ELU networks explode."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.studies import scale, solvers
from mpelu.lab.studies.paper import learning
from mpelu.lab.studies.recipe import Recipe, Setting
from mpelu.lab.studies.solvers import LSUV, OURS

EXPLODES = "explodes within several iterations"
CONVERGES = "converges"

PAPER = (
    (30, LSUV, EXPLODES),
    (30, OURS, CONVERGES),
    (52, LSUV, EXPLODES),
    (52, OURS, CONVERGES),
)


def settings(reading: str) -> list[Setting]:
    found = []
    for depth, method, printed in PAPER:
        config = solvers.plain(depth, "elu", method, reading, alpha=1.0, batch_norm=False)
        if method == LSUV:
            config = replace(config, linear_std=None)
        found.append(
            Setting(
                name=f"{depth}-{method.lower()}",
                labels=(f"{depth}", method),
                paper=printed,
                config=config,
            )
        )
    return found


RECIPE = Recipe(
    name="lsuv",
    title="LSUV in ELU networks of 30 and 52 layers without batch normalization (section 4.3)",
    needs="ImageNet as folders train/ and val/",
    labels=("layers", "initialization"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 1, "full": 1},
    readings=solvers.PLAIN_READINGS,
    comparisons=(("30-ours", "30-lsuv"), ("52-ours", "52-lsuv")),
    summarize=learning.table,
)
