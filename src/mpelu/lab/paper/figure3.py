"""Figure 3: degradation with depth, with and without batch normalization."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.paper import table05
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Setting
from mpelu.lab.sweep.table import plots_of, tabulate
from mpelu.lab.tables import Result

SHOWN = ("mpelu-15-ours-bn", "mpelu-30-gaussian-bn", "mpelu-30-ours-bn", "mpelu-30-ours")


def settings(source: str) -> list[Setting]:
    """The networks in the figure, with their values from table 5."""
    found = {each.name: each for each in table05.settings(source)}
    return [found[name] for name in SHOWN]


def summarize(gathered: Gathered) -> Result:
    plots = plots_of(
        gathered,
        ("(a) training loss", "step", "loss", "cross entropy, nats"),
        ("(b) training error", "test", "train_error", "top-1 training error, %"),
        ("(c) test error", "test", "test_error", "top-1 test error, %"),
    )
    return tabulate(gathered, plots=plots)


STUDY = replace(
    table05.STUDY,
    name="figure3",
    title="Degradation with depth: 15 and 30 layers on ImageNet",
    settings=settings,
    comparisons=(("mpelu-30-ours-bn", "mpelu-15-ours-bn"), ("mpelu-30-ours", "mpelu-30-ours-bn")),
    summarize=summarize,
)
