"""What do slope and rate cost, and slopes below zero? Forward + backward, against alpha and beta.

    python benchmarks/coordinates.py [--threads 1] [--instructions avx512 avx2] [--rounds 40]

The parameters take turns in each round; a ratio is the median of same-round ratios, with its 95 %
interval. Prints a table for each instruction set and writes results/coordinates.json.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mpelu
from common import Ratio, keep_memory, machine, ratio, saved_bytes, write
from mpelu import MPELU
from mpelu.kernels import native
from mpelu.lab.sweep.estimate import interleaved

SHAPES = [(32, 256), (8, 64, 16, 16), (128, 64, 8, 8), (128, 16, 32, 32), (128, 64, 32, 32)]
BASE = "alpha, beta"
STARTS: dict[str, dict[str, float]] = {
    BASE: {"alpha": 1.0, "beta": 1.0},
    "alpha < 0": {"alpha": -0.5, "beta": 1.0},
    "slope, rate": {"slope": 1.0, "rate": 1.0},
    "slope < 0": {"slope": -0.5, "rate": 1.0},
    "rate 0": {"slope": 0.25, "rate": 0.0},
}


def measure(shape: tuple[int, ...], rounds: int) -> dict[str, dict[str, Any]]:
    """By start: the ratio to alpha and beta, and the bytes kept for backward per element."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(shape, generator=generator) for _ in range(2))
    x.requires_grad_()
    modules = {name: MPELU(shape[1], **start) for name, start in STARTS.items()}  # type: ignore[arg-type]
    times = max(1, 20_000 // x.numel())  # small calls: many in one sample

    def both(module: MPELU, x: Tensor) -> None:
        for _ in range(times):
            x.grad = None
            module(x).backward(grad)

    taken = interleaved({n: partial(both, m, x) for n, m in modules.items()}, rounds, warmup=4)
    return {
        name: {
            "seconds": sorted(taken[name])[len(taken[name]) // 2] / times,
            "ratio": ratio(taken[name], taken[BASE])._asdict(),
            "bytes": saved_bytes(partial(module, x), module.parameters()) / x.numel(),
        }
        for name, module in modules.items()
    }


def main() -> None:
    own = mpelu.kernels.backend().instructions
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    sets = [own, "avx2"] if own == "avx512" else [own]
    parser.add_argument("--instructions", nargs="+", default=sets, help=f"default: {sets}")
    parser.add_argument("--rounds", type=int, default=40, help="samples per cell (default 40)")
    options = parser.parse_args()
    if native.library is None:
        parser.error(f"expected the compiled kernel: {native.reason}")
    keep_memory()
    torch.set_num_threads(options.threads)
    console = Console(width=110)
    console.print(f"machine: {machine()['cpu']}, torch {torch.__version__}")
    cells = []
    for instructions in options.instructions:
        if not native.library.mpelu_select(instructions.encode()):
            parser.error(f"--instructions: this CPU has no {instructions}")
        table = Table(title=f"{instructions}, {options.threads} thread: time / alpha, beta")
        for heading in ("float32", *STARTS):
            table.add_column(heading, justify="left" if heading == "float32" else "right")
        for shape in SHAPES:
            found = measure(shape, options.rounds)
            cell = {"shape": shape, "instructions": instructions, "threads": options.threads}
            cells.append(cell | {"starts": found})
            ratios = [Ratio(**each["ratio"]) for each in found.values()]
            words = [f"{each.median:.2f} ({each.low:.2f}-{each.high:.2f})" for each in ratios]
            table.add_row("x".join(map(str, shape)), *words)
        console.print(table)
    console.print(f"wrote {write('coordinates', {'cells': cells})}")


if __name__ == "__main__":
    main()
