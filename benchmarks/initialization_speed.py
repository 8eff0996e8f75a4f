"""How long does it take to initialize a network, against LSUV and AnyInit?

    python benchmarks/initialization_speed.py [--rounds 7] [--batch 16] [--threads 1]

nopre-resnet-1001 by the analytic rules (which need no data) and by LSUV; 100 linear layers of width
512 with ELU by the analytic rules and by AnyInit's analytic mode; and growth with depth. The times
include the random numbers. Prints the tables and writes results/initialization-speed.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import anyinit
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import mpelu
from common import quantiles, write
from mpelu.lab.sweep.estimate import interleaved


def plain(depth: int, width: int = 512) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range(depth - 1):
        layers += [nn.ELU(), nn.Linear(width, width)]
    return nn.Sequential(*layers)


def compare(
    console: Console, title: str, candidates: dict[str, Callable[[], Any]], rounds: int, base: str
) -> dict[str, Any]:
    """Seconds of each, and how many times the base takes them."""
    times = interleaved(candidates, rounds, warmup=1)
    found = {name: quantiles(seconds) for name, seconds in times.items()}
    table = Table(title=title, title_justify="left")
    for heading in ("", "seconds", "p20", "p80", f"times faster than {base}"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, seconds in found.items():
        ratio = found[base]["p50"] / seconds["p50"]
        numbers = (f"{seconds[key]:.3f}" for key in ("p50", "p20", "p80"))
        table.add_row(name, *numbers, f"{ratio:.1f}")
    console.print(table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=110)
    initialize = mpelu.init.initialize_

    deep = mpelu.models.create("nopre-resnet-1001")
    images = torch.randn(options.batch, 3, 32, 32)
    residual = compare(
        console,
        f"nopre-resnet-1001, batch {options.batch} for what needs one",
        {
            "taylor": partial(initialize, deep, method="taylor"),
            "exact": partial(initialize, deep, method="exact"),
            "exact, measured on the batch": partial(initialize, deep, images, "exact"),
            "lsuv": partial(initialize, deep, images, "lsuv"),
        },
        options.rounds,
        "lsuv",
    )
    linear = plain(100)
    against = compare(
        console,
        "100 linear layers of width 512 with ELU",
        {
            "taylor": partial(initialize, linear, method="taylor"),
            "exact": partial(initialize, linear, method="exact"),
            "anyinit": partial(anyinit.initialize, linear, "analytic", (1, 512)),
        },
        options.rounds,
        "anyinit",
    )
    # Narrow, so that the walk and not the random numbers counts.
    networks = {depth: plain(depth, width=16) for depth in (125, 250, 500, 1000, 2000)}
    growth = interleaved(
        {
            str(depth): partial(initialize, model, method="exact")
            for depth, model in networks.items()
        },
        options.rounds,
        warmup=1,
    )
    per_layer = {depth: quantiles(seconds)["p50"] / int(depth) for depth, seconds in growth.items()}
    console.print("exact, width 16, microseconds per layer by depth:")
    console.print({depth: round(1e6 * seconds, 1) for depth, seconds in per_layer.items()})
    write(
        "initialization-speed",
        {
            "settings": vars(options),
            "residual": residual,
            "linear": against,
            "seconds_per_layer": per_layer,
        },
    )


if __name__ == "__main__":
    main()
