"""Figure 3: degradation with depth, with and without batch normalization."""

from __future__ import annotations

from mpelu.lab.paper import scale, table05
from mpelu.lab.paper.settings import PLAIN_SOURCES
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.results import Plot, Result
from mpelu.lab.sweep.study import Setting, Study
from mpelu.lab.sweep.table import curves, tabulate

SHOWN = ("mpelu-15-ours-bn", "mpelu-30-gaussian-bn", "mpelu-30-ours-bn", "mpelu-30-ours")


def settings(source: str) -> list[Setting]:
    """The networks in the figure, with their values from table 5."""
    found = {each.name: each for each in table05.settings(source)}
    return [found[name] for name in SHOWN]


def _plots(gathered: Gathered) -> tuple[Plot, ...]:
    shown = (
        ("(a) training loss", "step", "loss", "cross entropy, nats"),
        ("(b) training error", "test", "train_error", "top-1 training error, %"),
        ("(c) test error", "test", "test_error", "top-1 test error, %"),
    )
    return tuple(
        Plot(
            title=title,
            x_label="iterations",
            y_label=label,
            series=curves(gathered, kind, quantity),
        )
        for title, kind, quantity, label in shown
    )


def summarize(gathered: Gathered) -> Result:
    return tabulate(gathered, plots=_plots)


STUDY = Study(
    name="figure3",
    title="Degradation with depth: 15 and 30 layers on ImageNet",
    needs="ImageNet",
    labels=table05.STUDY.labels,
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain,
    seeds={"smoke": 1, "small": 2, "full": 1},
    sources=PLAIN_SOURCES,
    comparisons=(("mpelu-30-ours-bn", "mpelu-15-ours-bn"), ("mpelu-30-ours", "mpelu-30-ours-bn")),
    summarize=summarize,
)
