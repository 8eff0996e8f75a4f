"""Table 6: LSUV and the paper's initialization in the 15-layer network."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.paper import table02
from mpelu.lab.paper.settings import LSUV, OURS
from mpelu.lab.sweep.study import Setting

PAPER = {
    # activation, alpha: initial value and decay multiplier, beta's decay: LSUV, ours
    ("mpelu", 0.0, 1.0, 1.0): ("37.72", "37.41"),
    ("mpelu", 0.25, 0.0, 0.0): ("39.93", "39.46"),
    ("mpelu", 0.25, 1.0, 1.0): ("37.67", "37.47"),
    ("mpelu", 1.0, 1.0, 1.0): ("37.62", "37.33"),
    ("mpelu", 1.0, 0.0, 0.0): ("38.57", "38.42"),
    ("elu", 1.0, 0.0, 0.0): ("39.85", "39.83"),
}


def settings(source: str) -> list[Setting]:
    found = []
    for case, printed in PAPER.items():
        for method, text in zip((LSUV, OURS), printed, strict=True):
            row = table02.setting((method, *case, text), source)
            assert row.config is not None
            if method == LSUV:  # it initializes linear layers as well, in both sources
                row = replace(row, config=replace(row.config, linear_std=None))
            found.append(row)
    return found


STUDY = replace(
    table02.STUDY,
    name="table6",
    title="LSUV and the paper's initialization in the 15-layer network on ImageNet",
    settings=settings,
    comparisons=(
        ("mpelu-1-ours-decay1", "mpelu-1-lsuv-decay1"),
        ("elu-1-ours", "elu-1-lsuv"),
    ),
)
