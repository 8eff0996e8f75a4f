"""Claims in section 4.3: which deep networks without batch normalization converge.

Tables in which some networks don't learn at all say so in a word, as does table 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import LABELS, LSUV, MSRA, OURS, PLAIN_SOURCES, plain
from mpelu.lab.plots import Plot
from mpelu.lab.sweep.gather import Gathered, is_number
from mpelu.lab.sweep.study import Job, Setting, Study
from mpelu.lab.sweep.table import curves, plain_text, tabulate
from mpelu.lab.tables import Result

NEAR_CHANCE = 0.95
"""A network has learned if its training loss is below this share of the loss at chance."""
_EXPLODED = 50.0
"""A training loss far above that at chance."""

CONVERGES, FAILS = "converges", "fails to converge"

MODES_PAPER = {
    # activation: FAN_IN, FAN_OUT, AVERAGE
    "relu": (FAILS, FAILS, FAILS),
    "prelu": (FAILS, CONVERGES, FAILS),
    "elu": (CONVERGES, CONVERGES, CONVERGES),
    "mpelu": (CONVERGES, CONVERGES, CONVERGES),
}
MODES = ("fan_in", "fan_out", "average")
EXPLODES = "explodes within several iterations"

LSUV_PAPER = (
    (30, LSUV, EXPLODES),
    (30, OURS, CONVERGES),
    (52, LSUV, EXPLODES),
    (52, OURS, CONVERGES),
)


def learned(ended: Job) -> bool:
    """Whether the last quarter of the training losses is clearly below the loss at chance."""
    losses: list[float] = [row["loss"] for row in ended.run.steps if is_number(row.get("loss"))]
    if ended.diverged or not losses:
        return False
    end = losses[-max(1, len(losses) // 4) :]
    return sum(end) / len(end) < NEAR_CHANCE * math.log(ended.num_classes)


def _text(ended: Sequence[Job], values: Sequence[float]) -> str:
    errors = plain_text(ended, values)
    if all(each.diverged for each in ended):
        return errors
    count = sum(learned(each) for each in ended)
    if count == len(ended):
        return f"converges: {errors}"
    return f"fails: {errors}" if count == 0 else f"{count} of {len(ended)} converge: {errors}"


def table(gathered: Gathered) -> Result:
    """The table with a word on whether training converged, and the training losses as a plot."""
    series = curves(gathered, "step", "loss")
    plot = Plot(
        title="Training loss, first seed",
        x_label="iterations",
        y_label="cross entropy, nats",
        # On a linear axis, one network that explodes would flatten all others.
        log_y=any(max(each.y, default=0) > _EXPLODED for each in series),
        series=series,
    )
    if gathered.options.is_smoke:  # a few steps can't show it
        return tabulate(gathered, plots=(plot,))
    note = (
        f"converges: the mean training loss of the last quarter is below {NEAR_CHANCE} times the "
        "loss at chance, log(classes)"
    )
    return tabulate(gathered, text=_text, plots=(plot,), notes=(note,))


def _convergence(source: str) -> list[Setting]:
    found = []
    for activation, row in MODES_PAPER.items():
        method = MSRA if activation in ("relu", "prelu") else OURS
        alpha = {"relu": None, "prelu": 0.25}.get(activation, 1.0)
        for mode, printed in zip(MODES, row, strict=True):
            config = plain(
                30, activation, method, source, alpha=alpha, batch_norm=False, mode=mode,
                decay=0.0 if activation == "mpelu" else 1.0,
            )  # fmt: skip
            labels = (LABELS[activation], mode.upper())
            found.append(
                Setting(name=f"{activation}-{mode}", labels=labels, paper=printed, config=config)
            )
    return found


def _lsuv(source: str) -> list[Setting]:
    found = []
    for depth, method, printed in LSUV_PAPER:
        config = plain(depth, "elu", method, source, alpha=1.0, batch_norm=False)
        if method == LSUV:
            config = replace(config, linear_std=None)
        name, labels = f"{depth}-{method.lower()}", (f"{depth}", method)
        found.append(Setting(name=name, labels=labels, paper=printed, config=config))
    return found


CONVERGENCE = Study(
    name="convergence",
    title="Which 30-layer networks without batch normalization converge (section 4.3)",
    needs="ImageNet",
    labels=("activation", "mode"),
    quantity="top-1 error %",
    settings=_convergence,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 1, "full": 1},
    # The code first: under FAN_OUT, a classifier with few classes would start from huge weights.
    sources={each: PLAIN_SOURCES[each] for each in ("code", "paper")},
    summarize=table,
)
LSUV_STUDY = replace(
    CONVERGENCE,
    name="lsuv",
    title="LSUV in ELU networks of 30 and 52 layers without batch normalization (section 4.3)",
    labels=("layers", "init"),
    settings=_lsuv,
    sources=PLAIN_SOURCES,
    comparisons=(("30-ours", "30-lsuv"), ("52-ours", "52-lsuv")),
)
