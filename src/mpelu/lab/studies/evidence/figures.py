"""Figures of the studies: differences with intervals, curves, and learned alpha and beta."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

from mpelu.lab.studies.drawing import COLORS, STYLES
from mpelu.lab.studies.evidence.kept import KeptStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def study(kept: KeptStudy) -> Figure:
    """Differences beside curves; without comparisons the curves alone."""
    from matplotlib.figure import Figure

    panels = [_curves] if not kept.comparisons else [_forest, _curves]
    figure = Figure(figsize=(0.4 + 5.2 * len(panels), 3.9), layout="constrained")
    for index, panel in enumerate(panels):
        panel(kept, figure.add_subplot(1, len(panels), index + 1))
    return figure


def forests(studies: Mapping[str, KeptStudy], caption: str) -> Figure:
    """The differences of several studies, side by side.

    Args:
        studies: by the title of their panel.
        caption: below them.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.4 + 4.9 * len(studies), 3.4), layout="constrained")
    for index, (title, kept) in enumerate(studies.items()):
        axes = figure.add_subplot(1, len(studies), index + 1)
        _forest(kept, axes)
        axes.set_title(f"{title}\n{axes.get_title()}", fontsize=10)
    figure.supxlabel(caption, fontsize=9, color="0.35")
    return figure


def _forest(kept: KeptStudy, axes: Axes) -> None:
    """A line for each difference: its interval, and a point at the mean."""
    shown = [(first, kept.difference(first)) for first, _ in kept.comparisons]
    names = []
    for place, (name, found) in enumerate(shown):
        names.append(kept.labels[name])
        interval = found and found.interval
        if interval is None:
            if found is not None:
                text = f" better in {found.wins}, worse in {found.losses}; some runs diverged"
                axes.text(0, place, text, va="center", fontsize=9, color="#D55E00")
            continue
        color = "#0072B2" if interval.found else "#777777"
        if interval.pairs > 1:
            axes.plot([interval.low, interval.high], [place, place], color=color, linewidth=2.2)
        axes.plot([interval.difference], [place], "o", color=color, markersize=6)
    axes.axvline(0, color="black", linewidth=0.9)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    base = kept.labels[kept.comparisons[0][1]]
    axes.set_xlabel(f"test error minus that of {base}, percentage points")
    pairs = sorted({each.pairs for _, each in shown if each is not None})
    count = "-".join(str(each) for each in {pairs[0]: 0, pairs[-1]: 0}) if pairs else "0"
    axes.set_title(f"n = {count} pairs, 95 % intervals; left is better", fontsize=10)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


def _curves(kept: KeptStudy, axes: Axes) -> None:
    """The mean test error over seeds, by step."""
    looks = zip(cycle(COLORS), cycle(STYLES), strict=False)
    for (name, label), (color, style) in zip(kept.labels.items(), looks, strict=False):
        runs = [run for run in kept.runs if run.setting == name]
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for step, error in run.tests:
                by_step.setdefault(step, []).append(error)
        # A mean ends where a run diverged: that of the others would hide it.
        steps = sorted(step for step, errors in by_step.items() if len(errors) == len(runs))
        means = [statistics.fmean(by_step[step]) for step in steps]
        axes.plot(steps, means, style, color=color, marker="o", markersize=3.5, label=label)
    axes.set(xlabel="steps", ylabel="test error, %", title="Mean over seeds")
    axes.title.set_fontsize(10)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.legend(fontsize=8)


def learned(kept: KeptStudy, settings: tuple[str, ...]) -> Figure:
    """alpha and beta by layer after training: means, and the range of channels."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10.4, 3.9), layout="constrained")
    for index, (parameter, symbol) in enumerate((("alpha", "α"), ("beta", "β"))):
        axes = figure.add_subplot(1, 2, index + 1)
        for setting, color in zip(settings, COLORS, strict=False):
            runs = [run for run in kept.runs if run.setting == setting]
            names = [each for each in (runs[0].learned if runs else ()) if each.endswith(parameter)]
            places = range(1, len(names) + 1)
            values = [[run.learned[name] for run in runs] for name in names]
            means, lows, highs = (
                [statistics.fmean(each[column] for each in layer) for layer in values]
                for column in range(3)
            )
            axes.fill_between(places, lows, highs, color=color, alpha=0.12, linewidth=0)
            axes.plot(
                places, means, color=color, marker="o", markersize=3.5, label=kept.labels[setting]
            )
        axes.set(xlabel="MPELU, from input to output", ylabel=symbol)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    figure.axes[0].legend(fontsize=8)
    figure.suptitle(
        "After training: mean over channels and seeds; shaded, the range of channels", fontsize=10
    )
    return figure
