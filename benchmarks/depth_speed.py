"""How long do the rules for depth take, against the exact rule?

    python benchmarks/depth_speed.py

Interleaved medians. Caches of correlation maps are emptied before every call, so that each one is
a first call. "exact, orthogonal" shows what the orthogonal draws alone cost.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import mpelu
from common import write
from mpelu import elementwise, models
from mpelu.theory import shaping

ROUNDS = 5
RULES: dict[str, dict[str, Any]] = {
    "exact": {"method": "exact"},
    "critical": {"method": "critical"},
    "critical, depth shape": {"method": "critical", "activation_shape": "depth"},
    "exact, orthogonal": {"method": "exact", "distribution": "orthogonal"},
    "deep": {"method": "deep"},
}


def mlp() -> nn.Module:
    layers = [each for _ in range(100) for each in (nn.Linear(512, 512), mpelu.MPELU(512))]
    return nn.Sequential(*layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "MLP of 100 layers, width 512": (mlp, {}),
    "plain-100, traced": (lambda: _plain(100), {}),
    "plain-100, by shape": (lambda: _plain(100), {"input_shape": (3, 16, 16)}),
    "nopre-resnet-164, traced": (lambda: models.create("nopre-resnet-164"), {}),
}


def _plain(depth: int) -> nn.Module:
    return models.create(f"plain-{depth}", small_maps=True, width=24, input_size=16, num_classes=10)


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for network, (build, options) in NETWORKS.items():
        times: dict[str, list[float]] = {rule: [] for rule in RULES}
        for _ in range(ROUNDS):
            for rule, choices in RULES.items():
                model = build()  # a new one, since shapes that fit would stay
                elementwise._remembered.clear()
                shaping.exponential_map.cache_clear()
                start = time.perf_counter()
                mpelu.init.initialize_(model, **choices, **options)
                times[rule].append(time.perf_counter() - start)
        found[network] = {rule: statistics.median(each) for rule, each in times.items()}
        base = found[network]["exact"]
        print(network, flush=True)
        for rule, seconds in found[network].items():
            print(f"  {rule:24} {1000 * seconds:8.1f} ms  x {seconds / base:.2f}", flush=True)
    write("depth-speed", {"seconds": found})


if __name__ == "__main__":
    main()
