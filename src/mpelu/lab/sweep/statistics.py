"""Statistics over seeds: best (mean ± std), and pairs of runs with the same seed."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpelu.lab.errors import plural

LEVEL = 0.95
POWER = 0.8
"""Probability with which a difference would be shown, where the smallest such is stated."""
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


def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution for a whole number of degrees of freedom.

    Example:
        >>> round(student_quantile(0.975, 9), 4)
        2.2622
    """
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError(
            "student_quantile: expected a probability between 0 and 1 and at least 1 degree of "
            f"freedom, got {probability} and {degrees}"
        )
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):
        inside = _within(middle, degrees)
        low, high = (middle, high) if inside < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan(angle)), a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0 if degrees == 1 else term
    for k in range(3 if is_odd else 2, degrees - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


class Pairing(NamedTuple):
    """Two settings over the seeds that both have: the mean difference, with a paired t interval.

    A pair is two runs with the same seed. What the seed decides for both, such as the order of the
    images, cancels. Lower values are better, and a run without a value, because it diverged, loses
    its pair. Such a run has no place in a mean, and a mean of the others would hide it. Where there
    is one, the pairs are counted instead, and an exact sign test decides.
    """

    pairs: int
    wins: int
    """Pairs in which the first setting is better."""
    losses: int
    lacking: tuple[int, int]
    """Runs of each setting without a value, also those without a partner."""
    chance: float
    """Probability of wins so unequal if neither setting were better, times the number of
    differences that are reported together (Bonferroni)."""
    difference: float | None = None
    """Mean of first - second; None if a run of a pair has no value, or there is no pair."""
    low: float = -math.inf
    high: float = math.inf
    """The confidence interval of the difference; infinite for a single pair."""
    detectable: float = math.inf
    """The smallest true difference that so many pairs would have shown with probability `POWER`,
    given the spread that was found."""

    @property
    def excludes_zero(self) -> bool:
        """Whether there is a difference as far as the interval tells."""
        return self.low > 0 or self.high < 0

    @property
    def found(self) -> int:
        """-1 if the first setting is better, 1 if the second is, and 0 if nothing was found.

        Nothing is better that has more runs without a value than the other.
        """
        if self.difference is not None:
            sign = int(self.excludes_zero) * (-1 if self.difference < 0 else 1)
        else:
            sign = (self.losses > self.wins) - (self.losses < self.wins)
            sign *= self.chance < 1 - LEVEL
        first, second = self.lacking
        return 0 if sign * (second - first) > 0 else sign

    def text(self) -> str:
        """In words, for a line of notes.

        Example:
            >>> pair_seeds({0: 2.0, 1: 3.0, 2: 4.0}, {0: 1.0, 1: 2.2, 2: 2.8}).text()
            '+1.00 [+0.50, +1.50] (3 pairs, enough to show 0.62)'
        """
        if not self.pairs:
            return "no pair of runs to compare"
        if self.difference is None:
            verdict = "" if self.found else ", no difference found"
            return (
                f"better in {self.wins} and worse in {self.losses} of "
                f"{plural(self.pairs, 'pair')}{verdict} (sign test, p = {self.chance:.2g})"
            )
        if self.pairs < 2:
            return f"{self.difference:+.2f} (1 pair: no interval)"
        verdict = "" if self.excludes_zero else ", no difference found"
        return f"{self.short()}{verdict} ({self.pairs} pairs, enough to show {self.detectable:.2f})"

    def short(self) -> str:
        """The difference and its interval; only the difference for a single pair."""
        shown = f"{self.difference:+.2f}"
        return f"{shown} [{self.low:+.2f}, {self.high:+.2f}]" if self.pairs > 1 else shown


def pair_seeds(
    first: Mapping[int, float | None],
    second: Mapping[int, float | None],
    *,
    comparisons: int = 1,
) -> Pairing:
    """Compares two settings over the seeds that both have.

    Where several differences are reported, each interval is widened so that all of them hold
    together with probability `LEVEL` (Bonferroni).

    Args:
        first: the value of each seed, of which a lower one is better; None if the run diverged.
        second: as the first.
        comparisons: number of differences that are reported together.

    Example:
        >>> found = pair_seeds({0: 5.0, 1: None, 2: 5.5}, {0: 6.0, 1: 6.1, 2: 6.2})
        >>> found.wins, found.losses, found.difference
        (2, 1, None)
        >>> pair_seeds({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.5}).difference
        0.75
    """
    pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    # What has no value is worse than any.
    ranked = [[math.inf if each is None else each for each in pair] for pair in pairs]
    wins = sum(one < other for one, other in ranked)
    losses = sum(one > other for one, other in ranked)
    count = wins + losses
    # The two-sided probability of a fair coin falling so unequally, or more so.
    tail = sum(math.comb(count, k) for k in range(min(wins, losses) + 1))
    ones, others = ([value is None for value in each.values()] for each in (first, second))
    found = Pairing(
        pairs=len(pairs),
        wins=wins,
        losses=losses,
        lacking=(sum(ones), sum(others)),
        chance=min(1.0, comparisons * min(1.0, tail / 2.0 ** (count - 1))),
    )
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    if not pairs or len(differences) < len(pairs):
        return found
    mean, std = mean_std(differences)
    if len(pairs) < 2:
        return found._replace(difference=mean)
    error = std / math.sqrt(len(pairs))
    t = student_quantile(1 - (1 - LEVEL) / (2 * comparisons), len(pairs) - 1)
    detectable = (t + student_quantile(POWER, len(pairs) - 1)) * error
    return found._replace(
        difference=mean, low=mean - t * error, high=mean + t * error, detectable=detectable
    )
