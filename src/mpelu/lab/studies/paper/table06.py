"""Table 6: LSUV against the paper's initialization in the 15-layer network."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.studies import scale, solvers
from mpelu.lab.studies.paper import table02
from mpelu.lab.studies.recipe import Recipe, Setting
from mpelu.lab.studies.solvers import LSUV, OURS

PAPER = {
    # activation, alpha: initial value and decay multiplier, beta's decay: LSUV, ours
    ("mpelu", 0.0, 1.0, 1.0): ("37.72", "37.41"),
    ("mpelu", 0.25, 0.0, 0.0): ("39.93", "39.46"),
    ("mpelu", 0.25, 1.0, 1.0): ("37.67", "37.47"),
    ("mpelu", 1.0, 1.0, 1.0): ("37.62", "37.33"),
    ("mpelu", 1.0, 0.0, 0.0): ("38.57", "38.42"),
    ("elu", 1.0, 0.0, 0.0): ("39.85", "39.83"),
}


def settings(reading: str) -> list[Setting]:
    return [
        _without_linear_std(table02.setting(method, *case, text, reading))
        for case, printed in PAPER.items()
        for method, text in zip((LSUV, OURS), printed, strict=True)
    ]


def _without_linear_std(setting: Setting) -> Setting:
    """LSUV sets linear layers as well, in either reading."""
    config = setting.config
    if config is None or config.init != "lsuv":
        return setting
    return replace(setting, config=replace(config, linear_std=None))


RECIPE = Recipe(
    name="table6",
    title="LSUV against the paper's initialization in the 15-layer network on ImageNet",
    needs="ImageNet as folders train/ and val/",
    labels=("initialization", "activation", "alpha/decay", "beta/decay"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain_15,
    seeds={"smoke": 1, "small": 1, "full": 1},
    readings=solvers.PLAIN_READINGS,
    comparisons=(
        ("mpelu-1-ours-decay1", "mpelu-1-lsuv-decay1"),
        ("elu-1-ours", "elu-1-lsuv"),
    ),
)
