"""A claim of section 4.3: which 30-layer networks converge without batch normalization."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.studies import scale, solvers
from mpelu.lab.studies.paper import learning
from mpelu.lab.studies.paper.table02 import NAMES
from mpelu.lab.studies.recipe import Recipe, Setting

CONVERGES, FAILS = "converges", "fails to converge"

PAPER = {
    # activation: FAN_IN, FAN_OUT, AVERAGE
    "relu": (FAILS, FAILS, FAILS),
    "prelu": (FAILS, CONVERGES, FAILS),
    "elu": (CONVERGES, CONVERGES, CONVERGES),
    "mpelu": (CONVERGES, CONVERGES, CONVERGES),
}
MODES = ("fan_in", "fan_out", "average")


def settings(reading: str) -> list[Setting]:
    return [
        Setting(
            name=f"{activation}-{mode}",
            labels=(NAMES[activation], mode.upper()),
            paper=printed,
            config=replace(
                solvers.plain(
                    30,
                    activation,
                    solvers.MSRA if activation in ("relu", "prelu") else solvers.OURS,
                    reading,
                    alpha={"relu": None, "prelu": 0.25}.get(activation, 1.0),
                    batch_norm=False,
                    mode=mode,
                ),
                activation_decay_mult=0.0 if activation == "mpelu" else 1.0,
            ),
        )
        for activation, row in PAPER.items()
        for mode, printed in zip(MODES, row, strict=True)
    ]


RECIPE = Recipe(
    name="convergence",
    title="Which 30-layer networks without batch normalization converge (section 4.3)",
    needs="ImageNet as folders train/ and val/",
    labels=("activation", "mode"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 1, "full": 1},
    # The code first: counting outputs, the classifier of few classes would start from huge weights.
    readings={each: solvers.PLAIN_READINGS[each] for each in ("code", "paper")},
    summarize=learning.table,
)
