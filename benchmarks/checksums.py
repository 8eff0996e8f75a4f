"""What checksums of run folders cost: a share of a training run, and seconds per use of weights.

    python benchmarks/checksums.py

Time spent in hashing is measured inside a run, so that noise of the training doesn't hide it.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from mpelu.lab import files
from mpelu.lab.config import Config
from mpelu.lab.run import checkpoint
from mpelu.lab.training.launch import train

ROUNDS = 15


class Stopwatch:
    """Sums the time of calls; of calls inside others, only the outer one counts."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            self._depth += 1
            try:
                return function(*arguments, **options)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - began

        return timed


class TimedHashlib:
    """hashlib with its constructor and `update` timed."""

    def __init__(self, watch: Stopwatch) -> None:
        class Hash:
            def __init__(self, data: Any = b"") -> None:
                self._hash = watch.around(hashlib.sha256)(data)
                self.update = watch.around(self._hash.update)
                self.hexdigest = watch.around(self._hash.hexdigest)

        self.sha256 = Hash


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        of_a_run(Path(folder) / "run")
        of_weights(Path(folder))


def of_a_run(run: Path) -> None:
    """A short run that logs every step and saves every ten, more than any run of the paper."""
    watch = Stopwatch()
    config = Config(
        model="resnet-20", activation="mpelu", iterations=100, batch_size=64, log_every=1,
        checkpoint_every=10, test_every=50, threads=1,
    )  # fmt: skip
    setattr(files, "hashlib", TimedHashlib(watch))  # noqa: B010 (mypy)
    began = time.perf_counter()
    train(config, run)
    total = time.perf_counter() - began
    share = watch.seconds / total
    print(f"a run of 100 steps: {total:.1f} s, hashing {1000 * watch.seconds:.1f} ms, {share:.3%}")
    setattr(files, "hashlib", hashlib)  # noqa: B010 (mypy)


def of_weights(folder: Path) -> None:
    """Reading weights of 10 MB with and without comparing their checksum, interleaved medians."""
    path = folder / "model.safetensors"
    weights = {f"layer{index}": torch.randn(262_144) for index in range(10)}
    path.write_bytes(checkpoint.to_bytes(weights))
    plain: list[float] = []
    checked: list[float] = []
    for _ in range(ROUNDS):
        for times, read in ((plain, load_file), (checked, files.read_tensors)):
            began = time.perf_counter()
            read(path)
            times.append(time.perf_counter() - began)
    one, other = statistics.median(plain), statistics.median(checked)
    size = path.stat().st_size / 1e6
    print(
        f"weights of {size:.1f} MB: {1000 * one:.1f} ms without, {1000 * other:.1f} ms with their "
        f"checksum, {other - one:.4f} s more per use"
    )


if __name__ == "__main__":
    main()
