"""What memory traffic allows on a GPU: a calculation, and where there is a GPU the measurement too.

    python benchmarks/roofline.py [--inductor] [--dry]

Counts the bytes that forward and backward read and write per element, and divides by the memory
bandwidth in the vendor's data sheet: the shortest time that the traffic allows, not a measurement.
Launches, caches and arithmetic are left out. torch's operations are counted as they are dispatched,
on tensors without memory. With --inductor it also reads how many bytes Inductor counts for the
formula that it fuses, alone and behind batch norm (needs a C++ compiler).

The layers of the paper's authors were counted by reading their kernels
(https://github.com/Coldmooon/Code-for-MPELU, pytorch/mpelu_kernel.cu and m2pelu_layer.cu).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common import write
from mpelu.kernels import eager, measure
from mpelu.kernels.layout import tiling

# Bytes per second, from NVIDIA's data sheets: A100 80GB SXM, H100 SXM5.
BANDWIDTH = {"A100": 2.039e12, "H100": 3.35e12}
SHAPE = (128, 64, 32, 32)
SIZE, CHANNELS = 128 * 64 * 32 * 32, 64


class Traffic(NamedTuple):
    """Passes over a tensor of the size of the input, and launches of a kernel."""

    name: str
    forward: float
    backward: float
    launches: int
    note: str = ""

    @property
    def total(self) -> float:
        return self.forward + self.backward


class Count(TorchDispatchMode):
    """Adds up the elements that operations read and write, in units of the input."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.launches = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.name() and "detach" not in func.name():
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if is_large(leaf)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.launches += bool(tensors)
        return result


def is_large(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() == SIZE


def counted(
    name: str, run: Callable[[Tensor], Tensor], dtype: torch.dtype, note: str = ""
) -> Traffic:
    """What torch dispatches for an activation and its derivative."""
    x = torch.empty(SHAPE, device="meta", dtype=dtype, requires_grad=True)
    with Count() as forward:
        y = run(x)
    with Count() as backward:
        y.backward(torch.empty_like(x))
    unit = SIZE * x.element_size()
    launches = forward.launches + backward.launches
    return Traffic(name, forward.bytes / unit, backward.bytes / unit, launches, note)


class WithOwnDerivative(torch.autograd.Function):
    """The formula as it serves a device without a kernel."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(input, alpha, beta)
        return eager.forward(input, alpha, beta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        input, alpha, beta = ctx.saved_tensors
        return eager.backward(grad, input, alpha, beta, 1, False)


def kernel(dtype: torch.dtype) -> Traffic:
    """The fused kernels, with the partial sums that backward writes and its second kernel reads."""
    plan = tiling(SIZE, CHANNELS, 32 * 32, sums=True)
    sums = plan.programs * (1 if plan.planes else plan.block_columns)
    partial = sums * 4 * 2 * 2 / (SIZE * torch.empty((), dtype=dtype).element_size())
    return Traffic("mpelu, Triton kernel", 2, 3 + partial, 3, "no atomics")


def rows(dtype: torch.dtype) -> Iterator[Traffic]:
    alpha = torch.empty(CHANNELS, device="meta", requires_grad=True)
    beta = torch.empty(CHANNELS, device="meta", requires_grad=True)
    own: Any = WithOwnDerivative.apply
    yield kernel(dtype)
    yield counted("nn.ReLU", nn.ReLU(), dtype)
    yield counted("nn.ELU", nn.ELU(), dtype)
    yield counted("nn.PReLU", nn.PReLU(CHANNELS, device="meta", dtype=dtype), dtype)
    yield counted("the formula, our derivative", lambda x: own(x, alpha, beta), dtype)
    yield counted("the formula, torch's autograd", lambda x: eager.forward(x, alpha, beta), dtype)
    # zeros_like + kernel; twice zeros + kernel that reads input, output and gradient
    yield Traffic("authors' CUDA layer, PyTorch", 3, 6, 9, "2 atomic additions per element")
    if dtype == torch.float32:
        # sums per column are read and written again for each sample; they may stay in the cache
        yield Traffic("authors' CUDA layer, Caffe", 2, 4, 4, "and 16 bytes through the cache")


def microseconds(traffic: Traffic, dtype: torch.dtype, bandwidth: float) -> float:
    size = torch.empty((), dtype=dtype).element_size()
    return traffic.total * SIZE * size / bandwidth * 1e6


def calculate(console: Console) -> list[dict[str, Any]]:
    data = []
    for dtype in (torch.float32, torch.float16):
        size = torch.empty((), dtype=dtype).element_size()
        found = list(rows(dtype))
        name = str(dtype).removeprefix("torch.")
        table = Table(title=f"CALCULATED, not measured: {name}, {'x'.join(map(str, SHAPE))}")
        columns = ("", "bytes per element", "forward", "backward", "kernels", "/ ours")
        for column in (*columns, *(f"{gpu}, µs at least" for gpu in BANDWIDTH), ""):
            table.add_column(column, justify="left" if not column else "right")
        for row in found:
            times = {gpu: microseconds(row, dtype, rate) for gpu, rate in BANDWIDTH.items()}
            table.add_row(
                row.name,
                f"{row.total * size:.1f}",
                f"{row.forward * size:.1f}",
                f"{row.backward * size:.1f}",
                str(row.launches),
                f"{row.total / found[0].total:.1f}",
                *(f"{time:.0f}" for time in times.values()),
                row.note,
            )
            data.append({"dtype": name, **row._asdict(), "microseconds": times})
        console.print(table)
    return data


def inductor(console: Console) -> dict[str, float]:
    """Passes over the tensor that Inductor counts for batch norm, the formula, and both.

    Compiled for the CPU, with the GPU's rule for what is computed again rather than stored. Which
    loops are joined is still decided for the CPU.
    """
    from torch._inductor import config, ir, metrics

    config.force_disable_caches = True
    ir.is_cpu = lambda node: False  # type: ignore[assignment]
    eager._expm1 = torch.expm1  # type: ignore[assignment]  # as on a GPU
    torch._logging._internal.set_logs(inductor_metrics=True)  # it counts only while it logs
    alpha = torch.full((CHANNELS,), 0.25, requires_grad=True)
    beta = torch.ones(CHANNELS, requires_grad=True)
    norm = nn.BatchNorm2d(CHANNELS)
    runs: dict[str, Callable[[Tensor], Tensor]] = {
        "formula": lambda x: eager.forward(x, alpha, beta),
        "batch norm": lambda x: norm(x),
        "both": lambda x: eager.forward(norm(x), alpha, beta),
    }
    found = {}
    for training in (True, False):
        norm.train(training)
        for name, run in runs.items():
            torch._dynamo.reset()
            metrics.reset()
            x = torch.randn(8, *SHAPE[1:], requires_grad=training)
            with torch.set_grad_enabled(training):
                y = torch.compile(run)(x)
            if training:
                y.backward(torch.randn_like(x))
            label = f"{name}, {'training' if training else 'inference'}"
            found[label] = metrics.num_bytes_accessed / (x.numel() * x.element_size())
    for mode, own in (("training", kernel(torch.float32).total), ("inference", 2.0)):
        added = found[f"both, {mode}"] - found[f"batch norm, {mode}"]
        console.print(
            f"{mode}, COUNTED by Inductor: the formula alone makes {found[f'formula, {mode}']:.1f} "
            f"passes over the tensor, behind batch norm it adds {added:.1f}; the kernel, which "
            f"Inductor can't fuse, makes {own:.1f}"
        )
    return found


def measured(console: Console) -> list[dict[str, Any]]:
    device = torch.device("cuda", torch.cuda.current_device())
    data = []
    for dtype in (torch.float32, torch.bfloat16):
        for shape in measure.SHAPES:
            times = measure.milliseconds(shape, device, dtype)
            name = str(dtype).removeprefix("torch.")
            console.print(f"MEASURED, ms, {name}, {shape}:", times)
            data.append({"dtype": name, "shape": str(shape), "milliseconds": times})
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inductor", action="store_true", help="count Inductor's traffic")
    parser.add_argument("--dry", action="store_true", help="write no files")
    options = parser.parse_args()
    console = Console(width=150)
    data: dict[str, Any] = {"calculated": calculate(console)}
    if options.inductor:
        data["inductor"] = inductor(console)
    if torch.cuda.is_available():
        data["measured"] = measured(console)
    else:
        console.print("No GPU was found: nothing was measured.")
    if not options.dry:
        write("roofline", data)


if __name__ == "__main__":
    main()
