"""The learning rate over a run. To add a schedule, add a function to `SCHEDULES`.

Importing this module doesn't import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

ScheduleFunction = Callable[[float, int, Sequence[int], float], float]
"""From progress, units done, milestones and gamma to the factor of the learning rate. Progress runs
from 0 at the first step after warm-up to just below 1 at the last. A unit is an epoch, or an
iteration where `iterations` gives the length."""


def _steps(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    factor: float = gamma ** sum(done >= milestone for milestone in milestones)
    return factor


def _cosine(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _linear(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    return 1 - progress


def _one_cycle(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    """Rises by a cosine from 1/25 to 1 in the first 30 %, then falls to 1/250000."""
    rise, start, end = 0.3, 1 / 25, 1 / 250_000
    if progress < rise:
        return start + (1 - start) * 0.5 * (1 - math.cos(math.pi * progress / rise))
    fall = (progress - rise) / (1 - rise)
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * fall))


def _constant(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    return 1.0


SCHEDULES: dict[str, ScheduleFunction] = {
    "steps": _steps,
    "cosine": _cosine,
    "linear": _linear,
    "one-cycle": _one_cycle,
    "constant": _constant,
}
LENGTH_FREE = ("steps", "constant")
"""Schedules that give a step the same learning rate whatever the length of the run."""
