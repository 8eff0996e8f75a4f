"""How long does an activation take, alone? Forward, backward and both, against torch's own.

    python benchmarks/activation.py [--quick] [--threads 1 2] [--dtypes float32 bfloat16]

Prints a table per shape and writes results/activation.json and a figure beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import mpelu
from common import keep_memory, machine, quantiles, saved_bytes, write
from mpelu.lab.timing import interleaved

SHAPES = [(128, 16, 32, 32), (128, 64, 32, 32), (128, 64, 8, 8), (64, 256, 18, 18), (8192, 512)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
QUICK_SHAPES = [(128, 64, 32, 32)]


class Naive(nn.Module):
    """MPELU as one writes it first, twice: `where` on expm1, and the sum of two clamps."""

    def __init__(self, channels: int, form: str) -> None:
        super().__init__()
        self.alpha, self.beta = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.ones(channels)),
        )
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        a, b = self.alpha.reshape(shape), self.beta.reshape(shape)
        if self.form == "where":
            return torch.where(x > 0, x, a * torch.expm1(b * x.clamp(max=0)))
        return x.clamp(min=0) + a * torch.expm1(b * x.clamp(max=0))


def activations(channels: int, dtype: torch.dtype, with_compiled: bool) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {
        "ReLU": nn.ReLU(),
        "LeakyReLU": nn.LeakyReLU(),
        "ELU": nn.ELU(),
        "PReLU": nn.PReLU(channels),
        "SiLU": nn.SiLU(),
        "GELU": nn.GELU(),
        "naive where": Naive(channels, "where"),
        "naive clamp": Naive(channels, "clamp"),
        "MPELU": mpelu.MPELU(channels),
    }
    if with_compiled:
        torch._dynamo.reset()  # else it gives up after eight shapes
        found["compiled naive"] = Naive(channels, "clamp")
        found["compiled naive"].compile(dynamic=False)
    return {name: module.to(dtype) for name, module in found.items()}


def measure(
    shape: tuple[int, ...], layout: str, dtype: torch.dtype, rounds: int, with_compiled: bool
) -> dict[str, dict]:
    """name -> forward, backward, both (seconds: p50, p20, p80), saved bytes per element."""
    format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype).contiguous(memory_format=format)
    grad = torch.randn(shape, generator=generator).to(dtype).contiguous(memory_format=format)
    target = torch.empty_like(x)
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    modules = activations(shape[1], dtype, with_compiled)
    outputs: dict[str, Tensor] = {}

    def forward(name: str) -> Callable[[], None]:
        def run() -> None:
            outputs.clear()
            outputs[name] = modules[name](leaf)

        return run

    def backward(name: str) -> Callable[[], None]:
        def run() -> None:
            leaf.grad = None
            outputs[name].backward(grad, retain_graph=True)

        return run

    def both(name: str) -> Callable[[], None]:
        def run() -> None:
            leaf.grad = None
            modules[name](leaf).backward(grad)

        return run

    copy, add = (lambda: target.copy_(x)), (lambda: torch.add(x, grad, out=target))
    times = {
        "forward": interleaved({"copy": copy} | {n: forward(n) for n in modules}, rounds),
        "both": interleaved({n: both(n) for n in modules}, rounds),
    }
    outputs.update({name: module(leaf) for name, module in modules.items()})
    times["backward"] = interleaved({"add": add} | {n: backward(n) for n in modules}, rounds)
    outputs.clear()
    result: dict[str, dict] = {name: {} for name in ["copy", "add", *modules]}
    for kind, table in times.items():
        for name, values in table.items():
            result[name][kind] = quantiles(values)
    for name, module in modules.items():
        kept = saved_bytes(partial(module, leaf), module.parameters())
        result[name]["saved_bytes_per_element"] = kept / x.numel()
    return result


def show(console: Console, title: str, result: dict[str, dict], element: int) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("activation")
    for heading in (
        "forward ms",
        "/ copy",
        "backward ms",
        "both ms",
        "/ ReLU",
        "p20",
        "p80",
        "kept",
    ):
        table.add_column(heading, justify="right")
    copy, relu = result["copy"]["forward"]["p50"], result["ReLU"]["both"]["p50"]

    def milliseconds(row: dict, kind: str, key: str = "p50") -> str:
        return f"{row[kind][key] * 1e3:.2f}" if kind in row else "-"

    def ratio(row: dict, kind: str, to: float) -> str:
        return f"{row[kind]['p50'] / to:.2f}" if kind in row else "-"

    for name, row in result.items():
        kept = row.get("saved_bytes_per_element")
        table.add_row(
            name,
            milliseconds(row, "forward"),
            ratio(row, "forward", copy),
            milliseconds(row, "backward"),
            milliseconds(row, "both"),
            ratio(row, "both", relu),
            *(milliseconds(row, "both", key) for key in ("p20", "p80")),
            "-" if kept is None else f"{kept / element:.1f}x",
            style="bold" if name == "MPELU" else None,
        )
    console.print(table)


def draw(cells: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    threads = max(cell["threads"] for cell in cells)
    cells = [cell for cell in cells if cell["threads"] == threads]
    names = ["ReLU", "ELU", "PReLU", "naive clamp", "MPELU"]
    names += ["compiled naive"] if "compiled naive" in cells[0]["times"] else []
    colors = ["#4C78A8", "#72B7B2", "#B279A2", "#9D9D9D", "#E45756", "#EECA3B"]
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(cells) + 1.6), layout="constrained")
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        ratio = [c["times"][name]["both"]["p50"] / c["times"]["ReLU"]["both"]["p50"] for c in cells]
        at = np.arange(len(cells)) + i * height
        bars = axes.barh(at, ratio, height * 0.9, label=name, color=colors[i])
        axes.bar_label(bars, [f"{r:.2g}" for r in ratio], padding=2, fontsize=7)
    labels = [f"{'x'.join(map(str, c['shape']))}\n{c['layout']}" for c in cells]
    axes.set_yticks(np.arange(len(cells)) + 0.4 - height / 2, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("forward + backward time, multiples of nn.ReLU (log scale)")
    axes.set_title(f"Activations alone, {cells[0]['dtype']}, {threads} thread(s), medians")
    axes.legend(fontsize=8, ncols=3, loc="lower right")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one shape, no torch.compile")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=25, help="samples per cell (default 25)")
    parser.add_argument("--default-malloc", action="store_true", help="leave glibc's malloc as is")
    options = parser.parse_args()
    if not options.default_malloc:
        keep_memory()
    console = Console(width=110)
    console.print(f"kernel: {mpelu.kernels.backend()}\nmachine: {machine()['cpu']}")
    cases = [
        (threads, shape, layout, dtype)
        for threads in options.threads
        for shape in (QUICK_SHAPES if options.quick else SHAPES)
        for layout in (["contiguous", "channels_last"] if len(shape) == 4 else ["contiguous"])
        for dtype in (["float32"] if options.quick else options.dtypes)
    ]
    cells = []
    for threads, shape, layout, name in track(cases, "measuring", console=console, transient=True):
        torch.set_num_threads(threads)
        dtype = DTYPES[name]
        times = measure(shape, layout, dtype, options.rounds, with_compiled=not options.quick)
        cell = {"shape": shape, "layout": layout, "threads": threads, "dtype": name}
        cells.append(cell | {"times": times})
        title = f"{'x'.join(map(str, shape))} {layout} {name}, {threads} thread(s)"
        show(console, title, times, dtype.itemsize)
    if options.quick:
        return
    path = write("activation", {"cells": cells})
    draw(
        [cell for cell in cells if cell["dtype"] == options.dtypes[0]],
        str(path.with_suffix(".png")),
    )
    console.print(f"wrote {path} and {path.with_suffix('.png').name}")


if __name__ == "__main__":
    main()
