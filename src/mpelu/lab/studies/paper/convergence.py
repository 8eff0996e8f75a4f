"""A claim in section 4.3: which 30-layer networks converge without batch normalization."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab import paper
from mpelu.lab.studies import scale
from mpelu.lab.studies.paper import learning
from mpelu.lab.studies.study import Setting, Study

CONVERGES, FAILS = "converges", "fails to converge"

PAPER = {
    # activation: FAN_IN, FAN_OUT, AVERAGE
    "relu": (FAILS, FAILS, FAILS),
    "prelu": (FAILS, CONVERGES, FAILS),
    "elu": (CONVERGES, CONVERGES, CONVERGES),
    "mpelu": (CONVERGES, CONVERGES, CONVERGES),
}
MODES = ("fan_in", "fan_out", "average")


def settings(source: str) -> list[Setting]:
    return [
        Setting(
            name=f"{activation}-{mode}",
            labels=(paper.LABELS[activation], mode.upper()),
            paper=printed,
            config=replace(
                paper.plain(
                    30,
                    activation,
                    paper.MSRA if activation in ("relu", "prelu") else paper.OURS,
                    source,
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


STUDY = Study(
    name="convergence",
    title="Which 30-layer networks without batch normalization converge (section 4.3)",
    needs="ImageNet",
    labels=("activation", "mode"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 1, "full": 1},
    # The code first: under FAN_OUT, a classifier with few classes would start from huge weights.
    sources={each: paper.PLAIN_SOURCES[each] for each in ("code", "paper")},
    summarize=learning.table,
)
