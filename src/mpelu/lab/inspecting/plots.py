"""Draws the figure of an inspection: signal, gradients, shares and parameters by depth."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_KINDS = {"conv, linear": ("conv", "linear"), "norm": ("norm",), "activation": ("activation",)}
_COLORS = {"conv, linear": "#0072b2", "norm": "#999999", "activation": "#d55e00"}
_SHARES = {
    "positive": ("inputs > 0", "#0072b2"),
    "saturated": ("units saturated", "#d55e00"),
    "linear": ("linear", "#009e73"),
    "never_positive": ("never > 0", "#999999"),
    "dead": ("dead", "#000000"),
}
_MOMENTS = {
    "variance": "variance of outputs",
    "signal": "signal: variance between samples",
    "mean": "absolute mean of outputs",
    "gradient": "mean square of the gradient at outputs",
}
_RESIDUAL_COLORS = ("#440154", "#31688e", "#35b779", "#e0a500")
_PARAMETER_LOOKS = (("#009e73", "o"), ("#cc79a7", "x"), ("#0072b2", "s"), ("#e69f00", "^"))
"""Color and marker of the first learned parameter, the second and so on."""
_DEPTH = "depth, in convolutional and linear layers"

Panel = Callable[[Axes], None]


def draw_inspection(found: dict[str, Any], title: str) -> Figure:
    """Draws moments, gradients, shares and parameters by depth, and parameters over training.

    Args:
        found: the contents of inspect.json.
        title: title of the figure.
    """
    rows = _with_depth(found["layers"])
    panels: list[Panel] = [
        partial(_moment, rows=rows, key=key, text=text) for key, text in _MOMENTS.items()
    ]
    depths = {(row["name"], row["call"]): row["depth"] for row in rows}
    if found["residual"] is not None:
        panels.append(partial(_shares, rows=rows))
    if found["residual"] is not None and min(found["residual"]["bounded"] or [1]) < 1:
        panels.append(partial(_residuals, residual=found["residual"], depths=depths))
    learned = found["activations"]
    if learned["labels"]:
        panels.append(partial(_by_depth, learned=learned, depths=depths))
    if len(learned["epochs"]) > 1:
        panels += [
            partial(_over_training, learned=learned, depths=depths, name=name)
            for name in learned["labels"]
        ]
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False}):
        return _draw(panels, title)


def to_png(drawn: Figure) -> bytes:
    """Returns the figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _draw(panels: Sequence[Panel], title: str) -> Figure:
    lines = -(-len(panels) // 2)
    drawn = Figure(figsize=(11, 0.6 + 3.1 * lines), layout="constrained")
    drawn.suptitle(title, fontsize=11)
    for index, panel in enumerate(panels, 1):
        axes = drawn.add_subplot(lines, 2, index)
        axes.spines["right"].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.5)
        panel(axes)
    return drawn


def _with_depth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    depth, found = 0, []
    for row in rows:
        depth += row["kind"] in ("conv", "linear")
        found.append({**row, "depth": depth})
    return found


def _line(
    axes: Axes, points: Sequence[tuple[float, float]], *, label: str, color: str, marker: str = "o"
) -> None:
    """Draws points joined by a faint line: in residual networks they jump within a block."""
    x, y = [x for x, _ in points], [y for _, y in points]
    axes.plot(x, y, color=color, linewidth=0.8, alpha=0.35)
    size = 3.5 if len(points) < 100 else 1.5
    axes.plot(x, y, color=color, linestyle="none", marker=marker, markersize=size, label=label)


def _titled(axes: Axes, title: str) -> None:
    """Puts title and legend above the axes, where they hide no point."""
    axes.set_title(title, loc="left", pad=18)
    axes.set_xlabel(_DEPTH)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.lines:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.02, 0.97),
            ncols=5,
            frameon=False,
            fontsize=8,
            handletextpad=0.1,
            columnspacing=0.8,
        )


def _moment(axes: Axes, *, rows: Sequence[dict[str, Any]], key: str, text: str) -> None:
    for name, kinds in _KINDS.items():
        points = [
            (row["depth"], abs(row[key])) for row in rows if row["kind"] in kinds and row[key]
        ]
        if points:
            _line(axes, points, label=name, color=_COLORS[name])
    axes.set_yscale("log")
    _titled(axes, text)


def _shares(axes: Axes, *, rows: Sequence[dict[str, Any]]) -> None:
    for key, (name, color) in _SHARES.items():
        points = [(row["depth"], 100 * row[key]) for row in rows if row[key] is not None]
        if points:
            _line(axes, points, label=name, color=color)
    axes.set_ylim(-3, 103)
    _titled(axes, "inputs and units of activations, %")


def _residuals(axes: Axes, *, residual: dict[str, Any], depths: dict[tuple[str, int], int]) -> None:
    for index, bound in enumerate(residual["residuals"]):
        points = [
            (depths[row["name"], row["call"]], 100 * row["bounded"][index])
            for row in residual["layers"]
            if row["bounded"] is not None
        ]
        color = _RESIDUAL_COLORS[index % len(_RESIDUAL_COLORS)]
        _line(axes, points, label=f"< {bound:g}", color=color)
    axes.set_ylim(-3, 103)
    _titled(axes, "inputs with a Taylor residual below the bound, %")


def _by_depth(axes: Axes, *, learned: dict[str, Any], depths: dict[tuple[str, int], int]) -> None:
    labels: dict[str, str] = learned["labels"]
    for (name, label), (color, marker) in zip(
        labels.items(), cycle(_PARAMETER_LOOKS), strict=False
    ):
        layers = [
            each for each in learned["layers"] if name in each and (each["name"], 1) in depths
        ]
        x = [depths[each["name"], 1] for each in layers]
        values = [[value for value in each[name] if value is not None] for each in layers]
        means = [(at, sum(v) / len(v)) for at, v in zip(x, values, strict=True) if v]
        low = [min(v, default=float("nan")) for v in values]
        high = [max(v, default=float("nan")) for v in values]
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        _line(axes, means, label=label, color=color, marker=marker)
    _titled(axes, "learned parameters: mean and range")


def _over_training(
    axes: Axes, *, learned: dict[str, Any], depths: dict[tuple[str, int], int], name: str
) -> None:
    layers = [each for each in learned["layers"] if name in each["history"]]
    order = {each["name"]: depths.get((each["name"], 1), 0) for each in layers}
    deepest = max(order.values(), default=1) or 1
    scale = matplotlib.colors.Normalize(0, deepest)
    colors = matplotlib.colormaps["viridis"]
    for each in layers:
        values = [float("nan") if v is None else v for v in each["history"][name]["mean"]]
        axes.plot(
            learned["epochs"], values, color=colors(scale(order[each["name"]])), linewidth=0.8
        )
    axes.set_title(f"{learned['labels'][name]} over training, mean of channels", loc="left")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    assert axes.figure is not None
    bar = axes.figure.colorbar(matplotlib.cm.ScalarMappable(scale, colors), ax=axes)
    bar.set_label("depth", fontsize=8)
