"""A claim in section 4.3: LSUV makes ELU networks of 30 and 52 layers explode."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab import paper
from mpelu.lab.paper import LSUV, OURS
from mpelu.lab.studies import scale
from mpelu.lab.studies.paper import learning
from mpelu.lab.studies.study import Setting, Study

EXPLODES = "explodes within several iterations"
CONVERGES = "converges"

PAPER = (
    (30, LSUV, EXPLODES),
    (30, OURS, CONVERGES),
    (52, LSUV, EXPLODES),
    (52, OURS, CONVERGES),
)


def settings(source: str) -> list[Setting]:
    found = []
    for depth, method, printed in PAPER:
        config = paper.plain(depth, "elu", method, source, alpha=1.0, batch_norm=False)
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


STUDY = Study(
    name="lsuv",
    title="LSUV in ELU networks of 30 and 52 layers without batch normalization (section 4.3)",
    needs="ImageNet",
    labels=("layers", "init"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 1, "full": 1},
    sources=paper.PLAIN_SOURCES,
    comparisons=(("30-ours", "30-lsuv"), ("52-ours", "52-lsuv")),
    summarize=learning.table,
)
