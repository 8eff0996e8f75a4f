"""Figure 2: how fast Network in Network learns, by activation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import LABELS, NIN_SOURCES, nin
from mpelu.lab.sweep.gather import Gathered, is_number
from mpelu.lab.sweep.statistics import text_of
from mpelu.lab.sweep.study import Job, Setting, Study
from mpelu.lab.sweep.table import plots_of, tabulate
from mpelu.lab.tables import Result

PAPER = {
    # iterations to 15 % test error, from the caption
    ("relu", None): "25k",
    ("prelu", 0.25): "15k",
    ("elu", 1.0): "",
    ("mpelu", 1.0): "9k",
}
ERROR = {"full": 15.0, "small": 45.0, "smoke": 95.0}
"""The test error in % to reach. Networks that train for minutes don't reach 15."""


def settings(source: str) -> list[Setting]:
    return [
        Setting(name=name, labels=(LABELS[name],), paper=printed, config=nin(name, alpha, source))
        for (name, alpha), printed in PAPER.items()
    ]


def _reached(error: float, ended: Job) -> float | None:
    """The first tested iteration with at most this error."""
    for row in ended.run.tests:
        reached = is_number(row.get("test_error")) and row["test_error"] <= error
        if reached and is_number(row.get("step")):
            return float(row["step"])
    return None


def summarize(gathered: Gathered) -> Result:
    error = ERROR[gathered.options.scale]
    config = gathered.rows[0].config
    assert config is not None
    is_full = error == ERROR["full"]
    shrunk = () if is_full else (f"{error:g} % test error instead of {ERROR['full']:g} %",)
    plots = plots_of(
        gathered,
        ("(a) training loss", "test", "train_loss", "cross entropy, nats"),
        ("(b) test error", "test", "test_error", "test error, %"),
    )
    return tabulate(
        gathered,
        measured=f"iterations to {error:g} % test error",
        shrunk=shrunk,
        digits=0,
        value=partial(_reached, error),
        text=partial(_text, error),
        plots=plots,
        notes=(f"tested every {config.test_interval} iterations",),
    )


def _text(error: float, ended: Sequence[Job], values: Sequence[float]) -> str:
    count, found = len(ended), len(values)
    if not found:
        return f"{error:g} % not reached" if count else "no run"
    missed = f", {count - found} of {count} did not reach it" if found < count else ""
    return text_of(values, digits=0) + missed


STUDY = Study(
    name="figure2",
    title="Convergence of Network in Network on CIFAR-10 (augmented)",
    needs="CIFAR-10",
    labels=("activation",),
    quantity="iterations to 15 % test error",
    settings=settings,
    shrink=scale.nin,
    seeds={"smoke": 1, "small": 3, "full": 5},
    sources=NIN_SOURCES,
    comparisons=(("mpelu", "relu"), ("mpelu", "prelu")),
    summarize=summarize,
)
