"""Figure 1: shapes of activation functions, and special cases of MPELU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpelu.lab.plots import COLORS
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Study
from mpelu.lab.tables import Cell, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

ALPHA, BETA = 25.6302, 0.01
"""With these, MPELU is close to a PReLU."""
SLOPE = 0.25


def figure() -> Figure:
    """Draws both panels: activation functions, and special cases of MPELU."""
    from matplotlib.figure import Figure
    from torch import nn

    from mpelu import MPELU

    drawn = Figure(figsize=(9.5, 4.4), layout="constrained")
    left, right = drawn.subplots(1, 2)
    shapes = [
        ("ReLU", nn.ReLU(), COLORS["relu"], "-"),
        ("PReLU, a = 0.25", nn.PReLU(init=SLOPE), COLORS["prelu"], "--"),
        ("ELU, α = 1", nn.ELU(), COLORS["elu"], "-."),
        ("MPELU, α = 3, β = 1", MPELU(alpha=3.0), COLORS["mpelu"], "-"),
    ]
    like_prelu = MPELU(alpha=ALPHA, beta=BETA)
    cases = [
        ("α = 0: ReLU", MPELU(alpha=0.0), COLORS["relu"], "-"),
        ("α = 25.6302, β = 0.01: close to PReLU 0.25", like_prelu, COLORS["prelu"], "--"),
        ("α = 1, β = 1: ELU", MPELU(), COLORS["elu"], "-."),
        ("α = 98, β = 0.01: close to the identity", MPELU(alpha=98.0, beta=0.01), "#CC79A7", ":"),
    ]
    _panel(left, "Shapes of activation functions", shapes)
    _panel(right, "Special cases of MPELU", cases)
    return drawn


def _panel(axes: Axes, title: str, curves: Sequence[tuple[str, nn.Module, str, str]]) -> None:
    import torch

    y = torch.linspace(-4, 3, 701)
    for label, function, color, style in curves:
        values = function(y).detach()
        axes.plot(y.numpy(), values.numpy(), style, color=color, label=label, linewidth=2)
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set(title=title, xlabel="input y", ylabel="output f(y)", xlim=(-4, 3), ylim=(-4, 3))
    axes.legend(fontsize=8, loc="upper left")


def summarize(gathered: Gathered) -> Result:
    """The drawing, and how close the special cases are on [-4, 0]."""
    import torch
    from torch import nn

    from mpelu import MPELU
    from mpelu.lab import plots

    y = torch.linspace(-4, 0, 401, dtype=torch.float64)
    near, leaky = "α = 25.6302, β = 0.01", nn.LeakyReLU(SLOPE)
    cases = (
        ("α = 0", "ReLU", "equal", 0.0, 1.0, nn.ReLU()),
        (near, "PReLU, a = 0.25", "approximates", ALPHA, BETA, leaky),
        ("α = 1, β = 1", "ELU", "equal", 1.0, 1.0, nn.ELU()),
    )
    rows = []
    for shown, other, printed, alpha, beta, function in cases:
        ours = MPELU(alpha=alpha, beta=beta, dtype=torch.float64)(y)
        distance = (ours - function(y)).abs().max().item()
        rows.append((*map(Cell, (shown, other, printed)), Cell(f"{distance:.2g}", distance)))
    return gathered.result(
        header=("MPELU", "is", "paper", "largest difference on [-4, 0]"),
        rows=tuple(rows),
        figures=plots.save(figure(), gathered.folder),
    )


STUDY = Study(
    name="figure1",
    title="Shapes of activation functions, and special cases of MPELU",
    needs="nothing",
    summarize=summarize,
)
