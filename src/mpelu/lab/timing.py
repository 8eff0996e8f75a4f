"""Times that can be compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds a call, taken in turns.

    The order is shuffled each round: what ran before leaves the caches in its own state, and a
    candidate that always follows the same other would be charged or paid for that.

    Example:
        >>> times = interleaved({"sum": lambda: sum(range(1000))}, rounds=3)
        >>> len(times["sum"])
        3
    """
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for turn in range(-warmup, rounds):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            candidates[name]()
            elapsed = time.perf_counter() - start
            if turn >= 0:
                times[name].append(elapsed)
    return times
