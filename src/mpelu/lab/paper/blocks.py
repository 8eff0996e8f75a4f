"""Figures 4 and 5: residual blocks, drawn from the descriptions that networks are built from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpelu.lab.paper.settings import LABELS
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Study
from mpelu.lab.tables import Cell, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpelu.models.residual import ResidualDesign

Panels = Sequence[tuple[str, str]]
"""The title and the family of networks of each block."""

_COLORS = {"conv": "#D9E8F5", "bn": "#F5E6CC", "act": "#D5EBDD"}
_STEP = 1.0
_HEIGHT = 0.62
_WIDTH = 2.3
_SHORTCUT = 1.9


def describe(family: str) -> tuple[ResidualDesign, str]:
    """The description that networks of the family are built from, and their activation."""
    from mpelu.models.registry import FAMILIES

    found = FAMILIES[family]
    assert found.design is not None
    assert found.activation is not None
    return found.design, LABELS[found.activation]


def words(description: ResidualDesign) -> list[str]:
    """The layers of the block from top to bottom, with "+" for the addition."""
    order = (*description.before.split(), *description.branch.split())
    return [*order, "+", *description.after.split()]


def figure(panels: Panels) -> Figure:
    """Draws the blocks side by side, each with its shortcut on the left."""
    from matplotlib.figure import Figure

    described = [(title, *describe(family)) for title, family in panels]
    longest = max(len(words(each)) for _, each, _ in described)
    drawn = Figure(figsize=(2.35 * len(panels), 0.52 * longest + 1.5), layout="constrained")
    for index, (title, description, activation) in enumerate(described):
        axes = drawn.add_subplot(1, len(panels), index + 1)
        _draw(axes, description, activation)
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-2.5, 1.6), ylim=(-(longest + 1.2) * _STEP, 0.6), aspect="equal")
        axes.axis("off")
    return drawn


def _draw(axes: Axes, description: ResidualDesign, activation: str) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch

    order = words(description)
    # What a word takes up above and below its middle.
    reach = [0.27 if word == "+" else _HEIGHT / 2 for word in order]
    _arrow(axes, (0, 0.3), (0, -_STEP + reach[0]))
    axes.text(0.15, 0.25, "x", va="center", style="italic")
    for index, word in enumerate(order, 1):
        y = -index * _STEP
        if word == "+":
            axes.add_patch(Circle((0, y), 0.27, facecolor="white", edgecolor="black", zorder=3))
            axes.text(0, y, "+", ha="center", va="center", fontsize=12, zorder=4)
            # The shortcut: a line around the branch, from the block's input to the addition.
            axes.plot([0, -_SHORTCUT, -_SHORTCUT], [-0.15, -0.15, y], color="black", linewidth=1)
            _arrow(axes, (-_SHORTCUT, y), (-0.27, y))
        else:
            kernel = word.removeprefix("conv")
            text = {"bn": "BN", "act": activation}.get(word, f"{kernel}×{kernel} conv")
            box = FancyBboxPatch(
                (-_WIDTH / 2, y - _HEIGHT / 2), _WIDTH, _HEIGHT, edgecolor="black", linewidth=0.9,
                boxstyle="round,pad=0,rounding_size=0.12", facecolor=_COLORS[word[:4]],
            )  # fmt: skip
            axes.add_patch(box)
            axes.text(0, y, text, ha="center", va="center", fontsize=9)
        end = reach[index] if index < len(order) else 0.0
        _arrow(axes, (0, y - reach[index - 1]), (0, y - _STEP + end))


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    shape = {"arrowstyle": "-|>", "color": "black", "linewidth": 1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=shape)


def result(gathered: Gathered, panels: Panels) -> Result:
    """The drawing, and the order of layers in words."""
    from mpelu.lab import plots

    rows = []
    for title, family in panels:
        description, activation = describe(family)
        texts = (
            title.replace("\n", " "), f"{family}-N", activation, " ".join(words(description)),
            description.stem, description.tail or "-", description.shortcut,
        )  # fmt: skip
        rows.append(tuple(map(Cell, texts)))
    return gathered.result(
        header=("block", "network", "activation", "order", "stem", "tail", "shortcut"),
        rows=tuple(rows),
        notes=(
            "drawn from the descriptions that the networks are built from (mpelu.models.residual)",
            "where a block changes the shape, its shortcut starts after the layers ahead of the "
            "first convolution",
        ),
        figures=plots.save(figure(panels), gathered.folder),
    )


VARIOUS = (
    ("(a) non-bottleneck", "resnet"),
    ("(b) MPELU\nnon-bottleneck", "mpelu-resnet"),
    ("(c) full pre-activ.\nbottleneck", "preresnet"),
    ("(d) MPELU full pre-activ.\nbottleneck", "mpelu-preresnet"),
)
ALTERNATIVES = (
    ("(a) MPELU-only\npre-activ. with BN", "mpelu-only-preresnet-bn"),
    ("(b) MPELU-only\npre-activ.", "mpelu-only-preresnet"),
    ("(c) nopre with BN\nbefore addition", "nopre-bn-resnet"),
    ("(d) nopre-activ.", "nopre-resnet"),
    ("(e) nopre-activ.\nwithout BN", "nopre-nobn-resnet"),
)
FIGURE4 = Study(
    name="figure4",
    title="Various residual blocks",
    needs="nothing",
    summarize=lambda gathered: result(gathered, VARIOUS),
)
FIGURE5 = Study(
    name="figure5",
    title="Alternative residual functions",
    needs="nothing",
    summarize=lambda gathered: result(gathered, ALTERNATIVES),
)
