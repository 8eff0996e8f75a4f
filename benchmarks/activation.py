"""How long does an activation take, alone? Forward, and forward + backward, against torch's own.

    python benchmarks/activation.py [--threads 1 2] [--instructions avx512 avx2] [--rounds 60]

Activations take turns in each round; a ratio is the median of same-round ratios, with its 95 %
interval. Prints a table per instruction set and number of threads, then the lines of the project's
goals with what was measured, and writes results/activation.json and a figure beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import mpelu
from common import Ratio, keep_memory, machine, quantiles, ratio, saved_bytes, write
from mpelu.kernels import native
from mpelu.lab.sweep.estimate import interleaved

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


class Case(NamedTuple):
    """A tensor, and how long MPELU may take on it at most, in multiples of the other's time."""

    shape: tuple[int, ...]
    layout: str = "contiguous"
    both_to_relu: float | None = None
    both_to_prelu: float | None = None
    forward_to_prelu: float | None = None

    def __str__(self) -> str:
        suffix = " channels_last" if self.layout == "channels_last" else ""
        return "x".join(map(str, self.shape)) + suffix


CASES = [
    Case((4, 4), both_to_prelu=1.3, forward_to_prelu=1.6),
    Case((32, 256), both_to_relu=2.0, both_to_prelu=1.2),
    Case((8, 64, 16, 16), both_to_relu=1.9),
    Case((128, 64, 8, 8), both_to_relu=1.7),
    Case((128, 64, 8, 8), "channels_last"),
    Case((128, 16, 32, 32), both_to_relu=1.25),
    Case((128, 16, 32, 32), "channels_last"),
    Case((128, 64, 32, 32), both_to_relu=1.1),
    Case((128, 64, 32, 32), "channels_last", both_to_relu=1.3),
]


class Formula(nn.Module):
    """MPELU as one writes it first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        a, b = self.alpha.reshape(shape), self.beta.reshape(shape)
        return x.clamp(min=0) + a * torch.expm1(b * x.clamp(max=0))


def activations(channels: int, dtype: torch.dtype) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {
        "ReLU": nn.ReLU(),
        "ELU": nn.ELU(),
        "PReLU": nn.PReLU(channels),
        "SiLU": nn.SiLU(),
        "formula": Formula(channels),
        "MPELU": mpelu.MPELU(channels),
    }
    return {name: module.to(dtype) for name, module in found.items()}


def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call()

    return run


def measure(case: Case, dtype: torch.dtype, rounds: int) -> dict[str, dict[str, Any]]:
    """name -> seconds of forward and both, their ratios to ReLU and PReLU, saved bytes."""
    format = torch.channels_last if case.layout == "channels_last" else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)
    x, grad = (
        torch.randn(case.shape, generator=generator).to(dtype).contiguous(memory_format=format)
        for _ in range(2)
    )
    x.requires_grad_()
    modules = activations(case.shape[1], dtype)
    times = max(1, 20_000 // x.numel())  # small calls: many in one sample

    def both(module: nn.Module) -> None:
        x.grad = None
        module(x).backward(grad)

    samples = {
        "forward": {n: repeated(partial(m, x), times) for n, m in modules.items()},
        "both": {n: repeated(partial(both, m), times) for n, m in modules.items()},
    }
    result: dict[str, dict[str, Any]] = {name: {} for name in modules}
    for kind, calls in samples.items():
        taken = interleaved(calls, rounds, warmup=max(2, rounds // 10))
        for name, values in taken.items():
            result[name][kind] = quantiles([value / times for value in values])
            for other in ("ReLU", "PReLU"):
                result[name][f"{kind}_to_{other.lower()}"] = ratio(values, taken[other])._asdict()
    for name, module in modules.items():
        kept = saved_bytes(partial(module, x), module.parameters())
        result[name]["saved_bytes_per_element"] = kept / x.numel()
    return result


def show(console: Console, title: str, cells: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("forward + backward")
    for heading in ("ReLU us", "MPELU us", "/ ReLU", "95 %", "/ PReLU", "/ ELU", "/ formula"):
        table.add_column(heading, justify="right")
    for cell in cells:
        times = cell["times"]
        own, to_relu = times["MPELU"]["both"]["p50"], Ratio(**times["MPELU"]["both_to_relu"])
        table.add_row(
            cell["case"],
            f"{times['ReLU']['both']['p50'] * 1e6:.1f}",
            f"{own * 1e6:.1f}",
            f"{to_relu.median:.2f}",
            f"{to_relu.low:.2f}-{to_relu.high:.2f}",
            *(f"{own / times[n]['both']['p50']:.2f}" for n in ("PReLU", "ELU", "formula")),
        )
    console.print(table)


def goals(console: Console, cells: list[dict[str, Any]]) -> None:
    """Each line of the goals with the measurements that it is about."""
    table = Table(title="Goals (float32, per channel)", title_justify="left")
    for heading in ("MPELU", "set", "threads", "at most", "measured", "95 %", ""):
        table.add_column(heading, justify="left" if heading in ("MPELU", "set") else "right")
    for case in CASES:
        for kind in ("both_to_relu", "both_to_prelu", "forward_to_prelu"):
            limit = getattr(case, kind)
            if limit is None:
                continue
            for cell in cells:
                if cell["case"] != str(case) or cell["dtype"] != "float32":
                    continue
                found = Ratio(**cell["times"]["MPELU"][kind])
                what, other = kind.split("_to_")
                table.add_row(
                    f"{case} {what} / {other}",
                    cell["instructions"],
                    str(cell["threads"]),
                    f"{limit:.2f}",
                    f"{found.median:.2f}",
                    f"{found.low:.2f}-{found.high:.2f}",
                    "reached" if found.median <= limit else "missed",
                )
    console.print(table)


SIZES = {  # of the README's table
    "4x4": "64 B",
    "32x256": "32 KB",
    "8x64x16x16": "0.5 MB",
    "128x64x8x8": "2 MB",
    "128x16x32x32": "8 MB",
    "128x64x32x32": "32 MB",
    "128x64x32x32 channels_last": "32 MB",
}


def markdown(cells: list[dict[str, Any]]) -> str:
    """The README's table: float32, multiples of ReLU's and PReLU's time."""
    cells = [cell for cell in cells if cell["dtype"] == "float32"]
    columns = list(dict.fromkeys((c["instructions"], c["threads"]) for c in cells))
    found = {(c["case"], c["instructions"], c["threads"]): c["times"]["MPELU"] for c in cells}
    heads = [f"{name}, {count} thread{'s' * (count > 1)}" for name, count in columns]
    lines = ["| forward + backward | size | " + " | ".join(heads) + " |"]
    lines.append("|---|---|" + "---|" * len(columns))
    for case, size in SIZES.items():
        values = []
        for column in columns:
            times = found.get((case, *column))
            if times is None:
                continue
            relu, prelu = Ratio(**times["both_to_relu"]), Ratio(**times["both_to_prelu"])
            values.append(f"{relu.median:.2f} ({relu.low:.2f}-{relu.high:.2f}), {prelu.median:.2f}")
        if values:
            lines.append(f"| {case} | {size} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def draw(cells: list[dict[str, Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    names = ["ReLU", "ELU", "PReLU", "formula", "MPELU"]
    colors = ["#4C78A8", "#72B7B2", "#B279A2", "#9D9D9D", "#E45756"]
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(cells) + 1.6), layout="constrained")
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        values = [c["times"][name]["both_to_relu"]["median"] for c in cells]
        bars = axes.barh(
            np.arange(len(cells)) + i * height, values, height * 0.9, label=name, color=colors[i]
        )
        axes.bar_label(bars, [f"{value:.2g}" for value in values], padding=2, fontsize=7)
    places = np.arange(len(cells)) + 0.4 - height / 2
    axes.set_yticks(places, [cell["case"] for cell in cells], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("forward + backward time, multiples of nn.ReLU (log scale)")
    first = cells[0]
    axes.set_title(f"float32, {first['instructions']}, {first['threads']} thread(s), medians")
    axes.legend(fontsize=8, ncols=3, loc="lower right")
    figure.savefig(path, dpi=130)


def main() -> None:
    own = mpelu.kernels.backend().instructions
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    sets = [own, "avx2"] if own == "avx512" else [own]
    parser.add_argument("--instructions", nargs="+", default=sets, help=f"default: {sets}")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=60, help="samples per cell (default 60)")
    parser.add_argument("--cases", nargs="+", help="only those that begin so, as in 4x4 128x64")
    parser.add_argument("--default-malloc", action="store_true", help="leave glibc's malloc as is")
    parser.add_argument("--dry", action="store_true", help="write no files")
    options = parser.parse_args()
    if native.library is None:
        parser.error(f"expected the compiled kernel: {native.reason}")
    if not options.default_malloc:
        keep_memory()
    console = Console(width=110)
    console.print(f"machine: {machine()['cpu']}, torch {torch.__version__}")
    wanted = tuple(options.cases or [""])
    plan = [
        (instructions, threads, dtype, case)
        for instructions in options.instructions
        for threads in options.threads
        for dtype in options.dtypes
        for case in CASES
        if str(case).startswith(wanted)
    ]
    cells: list[dict[str, Any]] = []
    for instructions, threads, dtype, case in track(
        plan, "measuring", console=console, transient=True
    ):
        if not native.library.mpelu_select(instructions.encode()):
            parser.error(f"--instructions: this CPU has no {instructions}")
        torch.set_num_threads(threads)
        times = measure(case, DTYPES[dtype], options.rounds)
        cell = {"case": str(case), "instructions": instructions, "threads": threads}
        cells.append(cell | {"dtype": dtype, "times": times})
    for key in dict.fromkeys((c["instructions"], c["threads"], c["dtype"]) for c in cells):
        group = [c for c in cells if (c["instructions"], c["threads"], c["dtype"]) == key]
        show(console, f"{key[0]}, {key[1]} thread(s), {key[2]}", group)
    goals(console, cells)
    print(markdown(cells))
    if options.dry:
        return
    path = write("activation", {"cells": cells})
    draw(
        [c for c in cells if (c["instructions"], c["threads"], c["dtype"]) == (*plan[0][:3],)],
        str(path.with_suffix(".png")),
    )
    console.print(f"wrote {path} and {path.with_suffix('.png').name}")


if __name__ == "__main__":
    main()
