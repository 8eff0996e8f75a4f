"""Statistics over seeds: best (mean ± std), and paired differences with a bootstrap interval."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.95
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(k?)")


def paper_value(text: str) -> float | None:
    """The number to compare with: the mean in "best (mean ± std)", otherwise the first number.

    Example:
        >>> paper_value("4.87 (5.04 ± 0.14)"), paper_value("25k"), paper_value("diverged")
        (5.04, 25000.0, None)
    """
    found = _NUMBER.findall(text)
    if not found:
        return None
    number, thousands = found[1] if "±" in text else found[0]
    return float(number) * (1000 if thousands else 1)


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, which is nan for a single value."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.fmean(values), spread


def text_of(values: Sequence[float], diverged: int = 0, digits: int = 2) -> str:
    """Best (mean ± std), as the paper writes it, with diverged runs counted.

    Args:
        values: one per run that finished.
        diverged: number of runs that diverged.
        digits: digits after the decimal point.

    Example:
        >>> text_of([9.0, 9.2]), text_of([9.0], diverged=2), text_of([], diverged=5)
        ('9.00 (9.10 ± 0.14)', '9.00, 2 of 3 diverged', 'diverged')
    """
    if not values:
        return "diverged" if diverged else "no run"
    text = f"{min(values):.{digits}f}"
    if len(values) > 1:
        mean, std = mean_std(values)
        text += f" ({mean:.{digits}f} ± {std:.{digits}f})"
    if diverged:
        text += f", {diverged} of {len(values) + diverged} diverged"
    return text


class Interval(NamedTuple):
    """A mean difference over pairs, with a bootstrap interval."""

    difference: float
    low: float
    high: float
    pairs: int

    def text(self) -> str:
        shown = f"{self.difference:+.2f}"
        if self.pairs < 2:
            return f"{shown} (1 pair: no interval)"
        return f"{shown} [{self.low:+.2f}, {self.high:+.2f}] ({self.pairs} pairs)"


def paired_bootstrap(
    first: Sequence[float],
    second: Sequence[float],
    *,
    samples: int = 10_000,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of the mean of first - second.

    A pair is two runs with the same seed. What the seed decides for both, such as the order of the
    images, cancels.

    Args:
        first: one value per pair.
        second: one value per pair.
        samples: number of bootstrap samples.
        level: share of the samples inside the interval.
        seed: random seed of the samples.

    Example:
        >>> paired_bootstrap([2.0, 3.0], [1.0, 2.0])
        Interval(difference=1.0, low=1.0, high=1.0, pairs=2)
    """
    if len(first) != len(second) or not first:
        raise ValueError(
            "paired_bootstrap: expected two sequences of the same length, at least 1, "
            f"got lengths {len(first)} and {len(second)}"
        )
    import numpy as np

    pairs = np.asarray(first, float) - np.asarray(second, float)
    draws = np.random.default_rng(seed).integers(len(pairs), size=(samples, len(pairs)))
    means = pairs[draws].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(pairs.mean()), float(low), float(high), len(pairs))
