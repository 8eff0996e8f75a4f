"""Plots of results as PNG and PDF."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from mpelu.activations import TABLE
from mpelu.lab import colors
from mpelu.lab.sweep.results import Plot, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colors that color-blind readers can tell apart (Okabe and Ito), combined with line styles.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BESIDE = ("#623900", "#AD689E", "#1900A4")
"""Colors of lines that show no activation; unlike the colors of common activations."""
STYLES = ("-", "--", "-.", ":")
_MOST_INSIDE = 6
"""Up to this many lines, the legend fits inside the plot."""


def save(figure: Figure, folder: Path, name: str) -> tuple[str, str]:
    """Writes NAME.png and NAME.pdf; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=130)
    figure.savefig(folder / f"{name}.pdf")
    return f"{name}.png", f"{name}.pdf"


def looks(lines: Sequence[Series]) -> list[tuple[str, str]]:
    """Color and line style of each line.

    An activation has its color in `mpelu.lab.colors`, and a style for each time it comes again.
    Where that gives too few styles, all lines take turns.
    """
    places: dict[str, int] = {}
    counts: dict[str, int] = {}
    found, others = [], cycle(BESIDE)
    for line in lines:
        is_known = line.activation in TABLE
        color = colors.COLORS.get(line.activation, colors.OTHER) if is_known else next(others)
        place, seen = places.setdefault(color, len(places)), counts.get(color, 0)
        found.append((color, STYLES[(place + seen) % len(STYLES)]))
        counts[color] = seen + 1
    is_shown = any(line.activation in TABLE for line in lines)
    if is_shown and max(counts.values()) <= len(STYLES):
        return found
    return [(COLORS[i % len(COLORS)], STYLES[i % len(STYLES)]) for i in range(len(lines))]


def draw(plots: Sequence[Plot], folder: Path, name: str = "figure") -> tuple[str, ...]:
    """Draws all plots side by side into one figure; returns the names of its files."""
    if not plots:
        return ()
    # pyplot would choose a window system and keep every figure in memory.
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    width = 6.4 if any(len(plot.series) > _MOST_INSIDE for plot in plots) else 4.6
    size = (0.6 + width * len(plots), 4.4)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12))
    for index, plot in enumerate(plots):
        axes = figure.add_subplot(1, len(plots), index + 1)
        for series, (color, style) in zip(plot.series, looks(plot.series), strict=True):
            marker = "o" if len(series.x) <= 12 else ""
            axes.plot(
                series.x, series.y, style, color=color, marker=marker, markersize=4,
                linewidth=1.8, label=series.name,
            )  # fmt: skip
        if plot.log_y:
            axes.set_yscale("log")
        if plot.y_range is not None:
            low, high = plot.y_range
            margin = 0.02 * (high - low)  # so that lines at the ends are seen
            axes.set_ylim(low - margin, high + margin)
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # they count steps or layers
        if len(plot.series) > _MOST_INSIDE:
            axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
        elif plot.series:
            axes.legend(fontsize=8)
    return save(figure, folder, name)
