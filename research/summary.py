"""The table and figures of a study: errors, differences with their intervals, and curves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING

from mpelu.lab.plots import PALETTE, STYLES, save
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.statistics import POWER, Pairing, mean_std
from mpelu.lab.tables import Cell, Result
from research.kept import KEPT, KeptStudy, keep, steps_to, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def summarize(gathered: Gathered, *, reach: float | None = None, has_figure: bool = True) -> Result:
    """Keeps the runs, draws them and makes the table.

    Args:
        gathered: the runs.
        reach: a test error in %; the table tells how many steps it took to reach it.
        has_figure: whether there is something to draw.
    """
    kept = keep(gathered)
    if gathered.options.is_smoke:  # a difference would mean nothing
        kept = replace(kept, comparisons=[])
    gathered.folder.mkdir(parents=True, exist_ok=True)
    write(kept, gathered.folder / KEPT)
    drawn = save(figure(kept), gathered.folder) if has_figure else ()
    header, rows = cells(kept, reach)
    return gathered.result(
        shrunk=next((row.shrunk for row in gathered.rows), ()),
        header=header,
        rows=rows,
        notes=(*notes(kept), *_left_out(gathered)),
        figures=drawn,
    )


def cells(
    kept: KeptStudy, reach: float | None = None
) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Header and rows."""
    compared = sorted({kept.labels[second] for _, second in kept.comparisons})
    header = (
        "setting",
        "test error %",
        *([f"difference to {' or '.join(compared)}", "could show"] if compared else []),
        *([f"steps to {reach:g} %"] if reach is not None else []),
        "n",
        "diverged",
    )
    rows = []
    for name, label in kept.labels.items():
        row = [Cell(label), _error(kept, name)]
        if compared:
            row += _difference(kept.difference(name))
        if reach is not None:
            row.append(_steps(kept, name, reach))
        count = sum(run.setting == name for run in kept.runs)
        diverged = kept.diverged(name)
        rows.append((*row, Cell(str(count), count), Cell(str(diverged), diverged)))
    return header, tuple(rows)


def _error(kept: KeptStudy, setting: str) -> Cell:
    errors = tuple(kept.errors(setting).values())
    if not errors:
        return Cell("-")
    mean, std = mean_std(errors)
    text = f"{mean:.2f} ± {std:.2f}" if len(errors) > 1 else f"{mean:.2f}"
    return Cell(text, mean, errors)


def _difference(found: Pairing | None) -> list[Cell]:
    if found is None:
        return [Cell(""), Cell("")]
    if found.difference is None:
        return [Cell(found.text()), Cell("")]
    could = Cell(f"{found.detectable:.2f}", found.detectable) if found.pairs > 1 else Cell("")
    return [Cell(found.short(), found.difference), could]


def _steps(kept: KeptStudy, setting: str, reach: float) -> Cell:
    found = [steps_to(run, reach) for run in kept.runs if run.setting == setting]
    reached = [each for each in found if each is not None]
    if not reached:
        return Cell("not reached" if found else "-")
    middle = statistics.median(reached)
    missed = (
        f" ({len(found) - len(reached)} of {len(found)} never)" if len(reached) < len(found) else ""
    )
    return Cell(f"{middle:,.0f}{missed}", middle, tuple(map(float, reached)))


def notes(kept: KeptStudy) -> tuple[str, ...]:
    """What the columns mean."""
    found = ["test error: mean ± standard deviation over seeds, after the last step"]
    if kept.comparisons:
        together = len(kept.comparisons)
        found += [
            f"differences: mean over pairs of runs with the same seed, with paired t intervals "
            f"that hold together with 95 % ({together} of them, Bonferroni)",
            f"could show: the smallest true difference that so many pairs would have shown with "
            f"probability {POWER:g}",
        ]
    return tuple(found)


def _left_out(gathered: Gathered) -> tuple[str, ...]:
    if not gathered.left_out:
        return ()
    return (f"{len(gathered.left_out)} left out: {'; '.join(gathered.left_out)}",)


def figure(kept: KeptStudy) -> Figure:
    """Differences beside curves; without comparisons the curves alone."""
    from matplotlib.figure import Figure

    panels = [_curves] if not kept.comparisons else [_forest, _curves]
    drawn = Figure(figsize=(0.4 + 5.2 * len(panels), 3.9), layout="constrained")
    for index, panel in enumerate(panels):
        panel(kept, drawn.add_subplot(1, len(panels), index + 1))
    return drawn


def forests(studies: Mapping[str, KeptStudy], caption: str) -> Figure:
    """The differences of several studies, side by side.

    Args:
        studies: by the title of their panel.
        caption: below them.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(0.4 + 4.9 * len(studies), 3.4), layout="constrained")
    for index, (title, kept) in enumerate(studies.items()):
        axes = drawn.add_subplot(1, len(studies), index + 1)
        _forest(kept, axes)
        axes.set_title(f"{title}\n{axes.get_title()}", fontsize=10)
    drawn.supxlabel(caption, fontsize=9, color="0.35")
    return drawn


def _forest(kept: KeptStudy, axes: Axes) -> None:
    """A line for each difference: its interval, and a point at the mean."""
    shown = [(first, kept.difference(first)) for first, _ in kept.comparisons]
    names = []
    for place, (name, found) in enumerate(shown):
        names.append(kept.labels[name])
        if found is None:
            continue
        if found.difference is None:
            text = f" better in {found.wins}, worse in {found.losses}; some runs diverged"
            axes.text(0, place, text, va="center", fontsize=9, color="#D55E00")
            continue
        color = "#0072B2" if found.excludes_zero else "#777777"
        if found.pairs > 1:
            axes.plot([found.low, found.high], [place, place], color=color, linewidth=2.2)
        axes.plot([found.difference], [place], "o", color=color, markersize=6)
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
    looks = zip(cycle(PALETTE), cycle(STYLES), strict=False)
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

    drawn = Figure(figsize=(10.4, 3.9), layout="constrained")
    for index, (parameter, symbol) in enumerate((("alpha", "α"), ("beta", "β"))):
        axes = drawn.add_subplot(1, 2, index + 1)
        for setting, color in zip(settings, PALETTE, strict=False):
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
    drawn.axes[0].legend(fontsize=8)
    drawn.suptitle(
        "After training: mean over channels and seeds; shaded, the range of channels", fontsize=10
    )
    return drawn
