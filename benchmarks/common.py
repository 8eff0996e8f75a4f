"""What the benchmark scripts share: the machine's description, result files."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import torch

import mpelu
from mpelu.lab.environment import describe_machine

RESULTS = Path(__file__).parent / "results"

# glibc gives tensors of 32 MB and more back to the system at once, and every call then pays for
# fresh zeroed pages: a cost of the allocator, the same for all activations, that hides the kernels.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


def keep_memory() -> None:
    """Start the script again with an allocator that keeps freed memory (glibc reads it once)."""
    if any(os.environ.get(name) != value for name, value in KEEP_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})


def machine() -> dict[str, Any]:
    """CPU, versions and settings that a figure depends on."""
    return {
        **describe_machine(),
        "kernel": str(mpelu.kernels.backend()),
        "allocator": "keeps memory" if "MALLOC_MMAP_THRESHOLD_" in os.environ else "default",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 20th and 80th percentile."""
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {"p50": statistics.median(values), "p20": tenths[1], "p80": tenths[7]}


class Ratio(NamedTuple):
    """Median of same-round ratios, with its 95 % interval."""

    median: float
    low: float
    high: float


def ratio(own: list[float], other: list[float]) -> Ratio:
    """How much longer one took than another that it took turns with.

    The interval has the ranks between which the median of a sample lies with 95 % probability,
    whatever the distribution.
    """
    values = sorted(a / b for a, b in zip(own, other, strict=True))
    count = len(values)
    reach = 0.98 * math.sqrt(count)
    low, high = math.floor((count - 1) / 2 - reach), math.ceil((count - 1) / 2 + reach)
    return Ratio(statistics.median(values), values[max(low, 0)], values[min(high, count - 1)])


def saved_bytes(run: Callable[[], Any], excluded: Iterable[torch.Tensor]) -> int:
    """Bytes that autograd keeps for backward, each storage once, without the excluded tensors."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()  # alive while counting, so that no address is used twice
    for tensor in excluded:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    del result
    return sum(storages.values())


def write(name: str, data: dict[str, Any]) -> Path:
    """Results with the machine they are from, as benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **data}, indent=1) + "\n")
    return path
