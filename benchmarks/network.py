"""What does the activation cost in a network? One training step, against the ReLU network's.

    python benchmarks/network.py [--networks resnet-20:128 nopre-resnet-164:8] [--compiled]

ReLU, PReLU, ELU and MPELU networks take turns; ratios are medians of same-round ratios, with their
95 % interval. Prints the paper's ratios beside ours and writes results/network.json. The goal for
nopre-resnet-164 at batch 8, where calls are many and small: at most 1.05.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import mpelu
from common import Ratio, machine, quantiles, ratio, saved_bytes, write
from mpelu.lab.sweep.estimate import interleaved

NETWORKS = ["resnet-20:128", "nopre-resnet-164:8"]
ACTIVATIONS = ["relu", "prelu", "elu", "mpelu"]
# Table 4 of the paper: seconds per iteration, Caffe on a Titan X
PAPER = {"relu": 0.2310, "prelu": 0.2417, "elu": 0.2299, "mpelu": 0.2441}


def network(name: str, activation: str, layout: str) -> nn.Module:
    torch.manual_seed(0)
    model = mpelu.models.create(name, activation=activation)
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


def measure(
    name: str, batch: int, layout: str, rounds: int, compiled: bool
) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    images = torch.randn(batch, 3, 32, 32, generator=generator).contiguous(memory_format=format)
    labels = torch.randint(0, 10, (batch,), generator=generator)
    models: dict[str, nn.Module] = {a: network(name, a, layout) for a in ACTIVATIONS}
    kept = {
        activation: saved_bytes(partial(model, images), [images, *model.parameters()])
        for activation, model in models.items()
    }
    if compiled:
        for model in models.values():
            model.compile()
    steps = {a: training_step(model, images, labels) for a, model in models.items()}
    times = interleaved(steps, rounds)
    return {
        activation: {
            "seconds": quantiles(times[activation]),
            "to_relu": ratio(times[activation], times["relu"])._asdict(),
            "saved_megabytes": kept[activation] / 1e6,
        }
        for activation in ACTIVATIONS
    }


def show(console: Console, title: str, result: dict[str, dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("network")
    for heading in ("s/step", "p20-p80", "/ ReLU", "95 %", "paper", "kept MB", "/ ReLU"):
        table.add_column(heading, justify="right")
    for name, row in result.items():
        seconds, to_relu = row["seconds"], Ratio(**row["to_relu"])
        table.add_row(
            name,
            f"{seconds['p50']:.3f}",
            f"{seconds['p20']:.3f}-{seconds['p80']:.3f}",
            f"{to_relu.median:.3f}",
            f"{to_relu.low:.3f}-{to_relu.high:.3f}",
            f"{PAPER[name] / PAPER['relu']:.3f}",
            f"{row['saved_megabytes']:.1f}",
            f"{row['saved_megabytes'] / result['relu']['saved_megabytes']:.3f}",
            style="bold" if name == "mpelu" else None,
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="steps of each (default 30)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--networks", nargs="+", default=NETWORKS, help="name:batch (default: %(default)s)"
    )
    parser.add_argument("--compiled", action="store_true", help="through torch.compile")
    options = parser.parse_args()
    console = Console(width=110)
    console.print(f"kernel: {mpelu.kernels.backend()}\nmachine: {machine()['cpu']}")
    cells = []
    cases = [
        (name, int(batch), threads, layout)
        for name, _, batch in (text.partition(":") for text in options.networks)
        for threads in options.threads
        for layout in ("contiguous", "channels_last")
    ]
    start = time.perf_counter()
    for name, batch, threads, layout in track(cases, "measuring", console=console, transient=True):
        torch.set_num_threads(threads)
        result = measure(name, batch, layout, options.rounds, options.compiled)
        cell = {"network": name, "batch": batch, "threads": threads, "layout": layout}
        cells.append(cell | {"networks": result})
        compiled = ", compiled" if options.compiled else ""
        show(console, f"{name}, batch {batch}, {layout}, {threads} thread(s){compiled}", result)
    path = write("network-compiled" if options.compiled else "network", {"cells": cells})
    console.print(f"wrote {path} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
