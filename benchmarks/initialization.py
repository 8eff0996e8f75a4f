"""What becomes of the variance in a deep plain network, forward and backward, by each rule?

    python benchmarks/initialization.py [--seeds 8] [--width 512] [--depth 100]

Linear and 3x3 convolutional networks (circular padding, so that borders play no part) with MPELU
between their layers, set by `mpelu.init.initialize_`. A network of 30 layers is the first 30 of one
of 100. Prints the geometric mean over the seeds of the pre-activation variance, and the gradient's
in a network that tapers from 1.5 to 0.5 times the width, where the fan modes differ; writes
results/initialization.json and a figure beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import mpelu
from common import RESULTS, write

matplotlib.use("Agg")

PARAMETERS = [(1.0, 1.0), (0.25, 1.0), (98.0, 0.01), (3.0, 0.5)]
METHODS = ["exact", "taylor", "msra", "xavier"]
MODES = ["fan_in", "fan_out", "average"]
DEPTHS = [1, 30, 52, 100]
BATCH = {"linear": (64,), "conv": (4, 4, 4)}


def network(kind: str, widths: Sequence[int], alpha: float, beta: float) -> nn.Sequential:
    layers = nn.Sequential()
    for before, after in pairwise(widths):
        if len(layers):
            layers.append(mpelu.MPELU(before, alpha, beta))
        layers.append(
            nn.Linear(before, after, bias=False)
            if kind == "linear"
            else nn.Conv2d(before, after, 3, padding=1, padding_mode="circular", bias=False)
        )
    return layers


def profiles(model: nn.Sequential, x: Tensor, with_gradient: bool) -> list[list[float]]:
    """Variance of each pre-activation, and of its gradient if asked for."""
    outputs: list[Tensor] = []
    with torch.set_grad_enabled(with_gradient):
        for layer in model:
            x = layer(x)
            if not isinstance(layer, mpelu.MPELU):
                outputs.append(x)
    found = [[output.double().var(correction=0).item() for output in outputs]]
    if with_gradient:
        grads = torch.autograd.grad(x, outputs, torch.randn_like(x))
        found.append([grad.double().var(correction=0).item() for grad in grads])
    return found


def forward(kind: str, seeds: int, width: int, depth: int) -> dict[str, NDArray[np.float64]]:
    """Variance by layer, [seeds, depth], for each rule and pair of parameters."""
    found: dict[str, list[list[float]]] = {}
    model = network(kind, [width] * (depth + 1), *PARAMETERS[0])
    for seed in track(range(seeds), f"{kind} networks"):
        x = torch.randn(
            BATCH[kind][0], width, *BATCH[kind][1:], generator=torch.Generator().manual_seed(seed)
        )
        for alpha, beta in PARAMETERS:
            for layer in model:
                if isinstance(layer, mpelu.MPELU):
                    nn.init.constant_(layer.alpha, alpha)
                    nn.init.constant_(layer.beta, beta)
            for method in METHODS:
                generator = torch.Generator().manual_seed(1000 + seed)
                mpelu.init.initialize_(model, method=method, generator=generator)
                key = f"{method} {alpha:g} {beta:g}"
                found.setdefault(key, []).append(profiles(model, x, with_gradient=False)[0])
    return {key: np.array(values) for key, values in found.items()}


def backward(seeds: int, width: int, depth: int) -> dict[str, NDArray[np.float64]]:
    """Variance of pre-activations and gradients by layer, [seeds, 2, depth], tapered networks."""
    widths = [round(width * (1.5 - index / depth)) for index in range(depth + 1)]
    found: dict[str, list[list[list[float]]]] = {}
    for seed in track(range(seeds), "tapered networks"):
        torch.manual_seed(seed)
        x = torch.randn(64, widths[0])
        for alpha, beta in PARAMETERS:
            for kind in (mpelu.init.Exact, mpelu.init.Taylor):
                for mode in MODES:
                    model = network("linear", widths, alpha, beta)
                    mpelu.init.initialize_(model, method=kind(mode=mode))
                    key = f"{kind.name} {mode} {alpha:g} {beta:g}"
                    found.setdefault(key, []).append(profiles(model, x, with_gradient=True))
    return {key: np.array(values) for key, values in found.items()}


def geometric(values: NDArray[np.float64]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.exp(np.log(np.maximum(values, 1e-300)).mean(0))
    return mean


def rounded(values: NDArray[np.float64]) -> Any:
    """As lists of numbers with four digits."""
    if values.ndim > 1:
        return [rounded(row) for row in values]
    return [float(f"{value:.4g}") for value in values]


def forward_table(kind: str, found: dict[str, NDArray[np.float64]]) -> Table:
    table = Table(title=f"Pre-activation variance, {kind}", title_justify="left")
    depth = next(iter(found.values())).shape[1]
    at = [layer for layer in DEPTHS if layer <= depth]
    for heading in ("alpha, beta", "rule", *(f"layer {layer}" for layer in at), "min", "max"):
        table.add_column(heading, justify="right")
    for alpha, beta in PARAMETERS:
        for method in METHODS:
            mean = geometric(found[f"{method} {alpha:g} {beta:g}"])
            cells = [*(mean[layer - 1] for layer in at), mean.min(), mean.max()]
            table.add_row(f"{alpha:g}, {beta:g}", method, *(f"{cell:.3g}" for cell in cells))
    return table


def backward_table(found: dict[str, NDArray[np.float64]]) -> Table:
    table = Table(
        title="Tapered network: variance forward, and of the gradient backward",
        title_justify="left",
    )
    headings = ("alpha, beta", "rule", "mode", "forward: last", "min", "max", "gradient: first")
    for heading in (*headings, "min", "max"):
        table.add_column(heading, justify="right")
    for key, values in found.items():
        method, mode, alpha, beta = key.split()
        ahead, back = geometric(values)
        back = back / back[-1]
        cells = [ahead[-1], ahead.min(), ahead.max(), back[0], back.min(), back.max()]
        table.add_row(f"{alpha}, {beta}", method, mode, *(f"{cell:.3g}" for cell in cells))
    return table


# Okabe and Ito's colours, and styles besides: taylor and xavier coincide at alpha = beta = 1.
STYLES = {
    "exact": ("#0072B2", "-"),
    "taylor": ("#D55E00", "-"),
    "msra": ("#009E73", "-."),
    "xavier": ("#000000", ":"),
}
MODE_COLORS = {"fan_in": "#0072B2", "fan_out": "#E69F00", "average": "#CC79A7"}


def draw(results: dict[str, Any]) -> None:
    """The figure from what the data file holds: geometric means over the seeds."""
    figure, axes = plt.subplots(3, 4, figsize=(15, 9.5), sharex=True, layout="constrained")
    layers = range(1, results["settings"]["depth"] + 1)
    for column, (alpha, beta) in enumerate(PARAMETERS):
        pair = f"{alpha:g} {beta:g}"
        for row, (kind, found) in enumerate(results["forward"].items()):
            axis = axes[row, column]
            axis.set_title(f"{kind}: α = {alpha:g}, β = {beta:g}")
            axis.axhspan(0.4, 2, color="0.9")
            for method, (color, style) in STYLES.items():
                axis.plot(layers, found[f"{method} {pair}"], style, color=color, label=method)
        axis = axes[2, column]
        axis.set_title(f"linear, tapered: α = {alpha:g}, β = {beta:g}")
        for mode, color in MODE_COLORS.items():
            for method, style in (("exact", "-"), ("taylor", "--")):
                back = np.array(results["tapered"][f"{method} {mode} {pair}"][1])
                axis.plot(layers, back / back[-1], style, color=color, label=f"{method}, {mode}")
        axis.set_xlabel("layer")
    for axis in axes.flat:
        axis.set_yscale("log")
    for row in axes[:2]:
        row[0].set_ylabel("variance of pre-activations")
    axes[2, 0].set_ylabel("variance of their gradients,\nrelative to the last layer")
    for row in (0, 2):
        axes[row, 3].legend(loc="upper left", bbox_to_anchor=(1.02, 1))
    figure.suptitle("Signal by depth (geometric mean over seeds; grey: 0.4 to 2)")
    figure.savefig(RESULTS / "initialization.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=120)
    found = {
        kind: forward(kind, options.seeds, options.width, options.depth)
        for kind in ("linear", "conv")
    }
    tapered = backward(options.seeds, options.width, options.depth)
    for kind, values in found.items():
        console.print(forward_table(kind, values))
    console.print(backward_table(tapered))
    results: dict[str, Any] = {
        "settings": vars(options),
        "forward": {
            kind: {key: rounded(geometric(value)) for key, value in values.items()}
            for kind, values in found.items()
        },
        "tapered": {key: rounded(geometric(value)) for key, value in tapered.items()},
    }
    write("initialization", results)
    draw(results)


if __name__ == "__main__":
    main()
