"""Where does a call on a 4x4 tensor spend its time, and what does `import mpelu` cost?

    python benchmarks/overhead.py [--rounds 60]

Prints the parts of a call, from the inside to the outside, beside nn.ReLU and nn.PReLU, and writes
results/overhead.json. Small calls cost what Python and autograd cost; this says how much of that is
ours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import mpelu
from common import Ratio, machine, quantiles, ratio, write
from mpelu import functional
from mpelu.kernels import native, registry
from mpelu.lab.sweep.estimate import interleaved

IMPORT = "import time, torch; s = time.perf_counter(); import {}; print(time.perf_counter() - s)"
CALLS = 200  # in one sample


class Empty(torch.autograd.Function):
    """The least that a Python function with a derivative does: allocate, and keep tensors."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        output = torch.empty_like(input)
        ctx.save_for_backward(output, alpha, beta)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="samples (default 60)")
    parser.add_argument("--dry", action="store_true", help="write no files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=110)
    console.print(f"kernel: {mpelu.kernels.backend()}\nmachine: {machine()['cpu']}")
    x, grad = torch.randn(4, 4, requires_grad=True), torch.ones(4, 4)
    module, relu, prelu = mpelu.MPELU(4), nn.ReLU(), nn.PReLU(4)
    alpha, beta = module.alpha, module.beta
    bare: Any = super(torch.autograd.Function, Empty).apply
    saved = module(x).detach()

    def both(call: Callable[[], Tensor]) -> None:
        x.grad = None
        call().backward(grad)

    forwards: dict[str, Callable[[], object]] = {
        "allocate the output": partial(torch.empty_like, x),
        "kernel with its checks, forward": partial(native.forward, x, alpha, beta, 1),
        "kernel with its checks, backward": partial(
            native.backward, grad, saved, alpha, beta, 1, True
        ),
        "choice of the route": partial(registry.route, x, alpha, beta),
        "an empty autograd.Function": partial(bare, x, alpha, beta),
        "mpelu.mpelu": partial(functional.mpelu, x, alpha, beta),
        "mpelu.MPELU": partial(module, x),
        "nn.PReLU": partial(prelu, x),
        "nn.ReLU": partial(relu, x),
    }
    whole = ("an empty autograd.Function", "mpelu.mpelu", "mpelu.MPELU", "nn.PReLU", "nn.ReLU")
    calls: dict[str, Callable[[], object]] = {
        **forwards,
        **{f"{name}, both": partial(both, forwards[name]) for name in whole},  # type: ignore[arg-type]
    }

    def repeated(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(CALLS):
                call()

        return run

    taken = interleaved({n: repeated(c) for n, c in calls.items()}, options.rounds, warmup=5)
    table = Table(title="A call on a 4x4 tensor, microseconds", title_justify="left")
    for heading in ("part", "forward", "forward + backward", "/ PReLU, forward", "/ PReLU, both"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    rows: dict[str, dict[str, Any]] = {}
    for name in forwards:
        row = rows[name] = {"forward": quantiles([t / CALLS for t in taken[name]])}
        cells = ["", "", ""]
        if name in whole:
            row["both"] = quantiles([t / CALLS for t in taken[f"{name}, both"]])
            pairs = ((name, "nn.PReLU"), (f"{name}, both", "nn.PReLU, both"))
            ratios: list[Ratio] = [ratio(taken[own], taken[other]) for own, other in pairs]
            row["to_prelu"] = [found._asdict() for found in ratios]
            cells = [f"{row['both']['p50'] * 1e6:.1f}"]
            cells += [f"{r.median:.2f} ({r.low:.2f}-{r.high:.2f})" for r in ratios]
        table.add_row(name, f"{row['forward']['p50'] * 1e6:.2f}", *cells)
    console.print(table)
    imports = {}
    for name in ("mpelu", "mpelu.functional"):
        command = [sys.executable, "-c", IMPORT.format(name)]
        imports[name] = quantiles(
            [float(subprocess.check_output(command, text=True)) for _ in range(7)]
        )
        console.print(f"import {name} after torch: {imports[name]['p50'] * 1e3:.1f} ms")
    if not options.dry:
        console.print(f"wrote {write('overhead', {'parts': rows, 'import_seconds': imports})}")


if __name__ == "__main__":
    main()
