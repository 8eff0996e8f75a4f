"""Figure 1 of the paper: shapes of activations, and those that MPELU contains.

python tools/figure1.py docs/figure1.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import nn

from mpelu import MPELU

Y = torch.linspace(-4, 3, 701)
Curves = list[tuple[str, nn.Module, str, str]]  # label, function, colour, line style

# Colours that remain apart for colour-blind readers (Okabe and Ito), and styles besides.
SHAPES: Curves = [
    ("ReLU", nn.ReLU(), "#000000", "-"),
    ("PReLU, a = 0.25", nn.PReLU(init=0.25), "#0072B2", "--"),
    ("ELU, α = 1", nn.ELU(), "#009E73", "-."),
    ("MPELU, α = 3, β = 1", MPELU(alpha=3.0), "#D55E00", "-"),
]
SPECIAL_CASES: Curves = [
    ("α = 0: ReLU", MPELU(alpha=0.0), "#000000", "-"),
    (
        "α = 25.6302, β = 0.01: close to PReLU 0.25",
        MPELU(alpha=25.6302, beta=0.01),
        "#0072B2",
        "--",
    ),
    ("α = 1, β = 1: ELU", MPELU(), "#009E73", "-."),
    ("α = 98, β = 0.01: close to the identity", MPELU.identity(), "#CC79A7", ":"),
]


def panel(axes: Axes, title: str, curves: Curves) -> None:
    for label, function, color, style in curves:
        values = function(Y).detach()
        axes.plot(Y.numpy(), values.numpy(), style, color=color, label=label, linewidth=2)
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set(title=title, xlabel="input y", ylabel="output f(y)", xlim=(-4, 3), ylim=(-4, 3))
    axes.legend(fontsize=8, loc="upper left")


def draw(path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.4), layout="constrained")
    panel(left, "Shapes of activation functions", SHAPES)
    panel(right, "Special cases of MPELU", SPECIAL_CASES)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the PNG, PDF or SVG to write")
    draw(parser.parse_args().path)
