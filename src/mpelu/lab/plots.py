"""Plots: what they hold, the colors of activations, and how they are drawn as PNG and PDF.

The page of `mpelu report` has the same colors, lighter where it is dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.activations import TABLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {
    "relu": "#000000",
    "leaky_relu": "#56B4E9",
    "prelu": "#0072B2",
    "rrelu": "#E69F00",
    "elu": "#009E73",
    "celu": "#117733",
    "srelu": "#CC79A7",
    "selu": "#44AA99",
    "gelu": "#332288",
    "silu": "#882255",
    "mish": "#AA4499",
    "relu6": "#661100",
    "hardswish": "#6699CC",
    "pelu": "#999933",
    "mpelu": "#D55E00",
    "identity": "#999999",
}
"""By name, as #rrggbb; add the color of an activation of your own here."""
OTHER = "#777777"
"""Color of activations of the table that have none of their own."""
DARK_PAPER = "#16181b"
"""Background of the dark theme."""
_LEAST_CONTRAST = 4.0
PALETTE = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colors that color-blind readers can tell apart (Okabe and Ito)."""
_BESIDE = ("#623900", "#AD689E", "#1900A4")
"""Colors of lines that show no activation; unlike the colors of common activations."""
STYLES = ("-", "--", "-.", ":")
_MOST_INSIDE = 6
"""Up to this many lines, the legend fits inside the plot."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    activation: str = ""
    """The activation that it shows, whose color it has; empty if it shows something else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Lines over a common axis."""

    title: str
    x_label: str
    y_label: str
    log_y: bool = False
    y_range: tuple[float, float] | None = None
    """Range of the vertical axis; None to fit the lines."""
    series: tuple[Series, ...]


def color_name(activation: Any) -> str:
    """The name under which the page has the color of an activation; empty if it has none.

    Example:
        >>> color_name("relu"), color_name("mine:Swish"), color_name(None)
        ('relu', '', '')
    """
    return activation if isinstance(activation, str) and activation in TABLE else ""


def activation_styles() -> str:
    """A style sheet with a class c-NAME for each activation of the table."""
    colors = {name: COLORS.get(name, OTHER) for name in TABLE}
    light = "".join(f"--c-{name}: {color};" for name, color in colors.items())
    dark = "".join(f"--c-{name}: {lightened(color)};" for name, color in colors.items())
    rules = "".join(f".c-{name} {{--c: var(--c-{name})}}\n" for name in TABLE)
    return (
        f":root {{{light}}}\n"
        f':root[data-theme="dark"] {{{dark}}}\n'
        f'@media (prefers-color-scheme: dark) {{:root:not([data-theme="light"]) {{{dark}}}}}\n'
        f"{rules}"
    )


def lightened(color: str) -> str:
    """The color, mixed with as much white as it needs to be seen in the dark theme.

    Example:
        >>> lightened("#000000"), lightened("#56B4E9")
        ('#787878', '#56b4e9')
    """
    paper = _luminance(_parts(DARK_PAPER))
    for percent in range(101):
        mixed = [round(part + (255 - part) * percent / 100) for part in _parts(color)]
        if (_luminance(mixed) + 0.05) / (paper + 0.05) >= _LEAST_CONTRAST:
            break
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _parts(color: str) -> list[int]:
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


def _luminance(parts: list[int]) -> float:
    """Relative luminance, as the Web Content Accessibility Guidelines define it."""
    shares = [part / 255 for part in parts]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def save(figure: Figure, folder: Path) -> tuple[str, str]:
    """Writes figure.png and figure.pdf; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "figure.png", dpi=130)
    figure.savefig(folder / "figure.pdf")
    return "figure.png", "figure.pdf"


def looks(lines: Sequence[Series]) -> list[tuple[str, str]]:
    """Color and line style of each line.

    An activation has its color in `COLORS`, and a style for each time it comes again.
    Where that gives too few styles, all lines take turns.
    """
    places: dict[str, int] = {}
    counts: dict[str, int] = {}
    found, others = [], cycle(_BESIDE)
    for line in lines:
        is_known = line.activation in TABLE
        color = COLORS.get(line.activation, OTHER) if is_known else next(others)
        place, seen = places.setdefault(color, len(places)), counts.get(color, 0)
        found.append((color, STYLES[(place + seen) % len(STYLES)]))
        counts[color] = seen + 1
    is_shown = any(line.activation in TABLE for line in lines)
    if is_shown and max(counts.values()) <= len(STYLES):
        return found
    return [(PALETTE[i % len(PALETTE)], STYLES[i % len(STYLES)]) for i in range(len(lines))]


def draw(plots: Sequence[Plot], folder: Path) -> tuple[str, ...]:
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
    return save(figure, folder)
