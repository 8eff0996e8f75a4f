"""What does the activation cost in a network? One training step of ResNet-20, batch 128.

    python benchmarks/network.py [--rounds 15] [--compiled]

ReLU, PReLU, ELU and MPELU networks take turns; ratios are medians of same-round ratios. Prints the
paper's ratios beside ours and writes results/network.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import mpelu
from common import machine, quantiles, saved_bytes, write
from mpelu.lab.timing import interleaved

ACTIVATIONS = ["relu", "prelu", "elu", "mpelu"]
# Table 4 of the paper: seconds per iteration, Caffe on a Titan X
PAPER = {"relu": 0.2310, "prelu": 0.2417, "elu": 0.2299, "mpelu": 0.2441}


def network(activation: str, layout: str) -> nn.Module:
    torch.manual_seed(0)
    model = mpelu.models.create("resnet-20", activation=activation)
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def measure(layout: str, rounds: int, compiled: bool) -> dict[str, dict]:
    generator = torch.Generator().manual_seed(0)
    format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    images = torch.randn(128, 3, 32, 32, generator=generator).contiguous(memory_format=format)
    labels = torch.randint(0, 10, (128,), generator=generator)
    models: dict[str, nn.Module] = {name: network(name, layout) for name in ACTIVATIONS}
    kept = {
        name: saved_bytes(partial(model, images), [images, *model.parameters()])
        for name, model in models.items()
    }
    if compiled:
        for model in models.values():
            model.compile()
    steps = {name: training_step(model, images, labels) for name, model in models.items()}
    times = interleaved(steps, rounds)
    return {
        name: {
            "seconds": quantiles(times[name]),
            "to_relu": statistics.median(
                own / relu for own, relu in zip(times[name], times["relu"], strict=True)
            ),
            "saved_megabytes": kept[name] / 1e6,
        }
        for name in ACTIVATIONS
    }


def show(console: Console, title: str, result: dict[str, dict]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("network")
    for heading in ("s/step", "p20-p80", "/ ReLU", "paper", "kept MB", "/ ReLU"):
        table.add_column(heading, justify="right")
    for name, row in result.items():
        seconds = row["seconds"]
        table.add_row(
            name,
            f"{seconds['p50']:.3f}",
            f"{seconds['p20']:.3f}-{seconds['p80']:.3f}",
            f"{row['to_relu']:.3f}",
            f"{PAPER[name] / PAPER['relu']:.3f}",
            f"{row['saved_megabytes']:.1f}",
            f"{row['saved_megabytes'] / result['relu']['saved_megabytes']:.3f}",
            style="bold" if name == "mpelu" else None,
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="steps of each (default 15)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--compiled", action="store_true", help="through torch.compile")
    options = parser.parse_args()
    console = Console(width=110)
    console.print(f"kernel: {mpelu.kernels.backend()}\nmachine: {machine()['cpu']}")
    cells = []
    cases = [(t, layout) for t in options.threads for layout in ("contiguous", "channels_last")]
    start = time.perf_counter()
    for threads, layout in track(cases, "measuring", console=console, transient=True):
        torch.set_num_threads(threads)
        result = measure(layout, options.rounds, options.compiled)
        cells.append({"threads": threads, "layout": layout, "networks": result})
        compiled = ", compiled" if options.compiled else ""
        show(console, f"ResNet-20, batch 128, {layout}, {threads} thread(s){compiled}", result)
    path = write("network-compiled" if options.compiled else "network", {"cells": cells})
    console.print(f"wrote {path} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
