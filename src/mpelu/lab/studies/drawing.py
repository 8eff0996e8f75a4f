"""Plots of results as PNG and PDF."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from mpelu.lab.studies.results import Plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colors that color-blind readers can tell apart (Okabe and Ito), combined with line styles.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
_MOST_INSIDE = 6
"""Up to this many lines, the legend fits inside the plot."""


def save(figure: Figure, folder: Path, name: str) -> tuple[str, str]:
    """Writes NAME.png and NAME.pdf; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=130)
    figure.savefig(folder / f"{name}.pdf")
    return f"{name}.png", f"{name}.pdf"


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
        looks = zip(cycle(COLORS), cycle(STYLES), strict=False)
        for series, (color, style) in zip(plot.series, looks, strict=False):
            marker = "o" if len(series.x) <= 12 else ""
            axes.plot(
                series.x, series.y, style, color=color, marker=marker, markersize=4,
                linewidth=1.8, label=series.name,
            )  # fmt: skip
        if plot.log_y:
            axes.set_yscale("log")
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # they count steps or layers
        if len(plot.series) > _MOST_INSIDE:
            axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
        elif plot.series:
            axes.legend(fontsize=8)
    return save(figure, folder, name)
