"""Table 6: LSUV and the paper's initialization in the 15-layer network."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.paper import scale, table02
from mpelu.lab.paper.settings import LSUV, OURS, PLAIN_SOURCES
from mpelu.lab.sweep.study import Setting, Study

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
    return [
        _without_linear_std(table02.setting(method, *case, text, source))
        for case, printed in PAPER.items()
        for method, text in zip((LSUV, OURS), printed, strict=True)
    ]


def _without_linear_std(setting: Setting) -> Setting:
    """LSUV initializes linear layers as well, in both sources."""
    config = setting.config
    if config is None or config.init != "lsuv":
        return setting
    return replace(setting, config=replace(config, linear_std=None))


STUDY = Study(
    name="table6",
    title="LSUV and the paper's initialization in the 15-layer network on ImageNet",
    needs="ImageNet",
    labels=("init", "activation", "alpha/decay", "beta/decay"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain_15,
    seeds={"smoke": 1, "small": 1, "full": 1},
    sources=PLAIN_SOURCES,
    comparisons=(
        ("mpelu-1-ours-decay1", "mpelu-1-lsuv-decay1"),
        ("elu-1-ours", "elu-1-lsuv"),
    ),
)
