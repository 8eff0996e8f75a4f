"""Checked values from files that anyone may have written: of the expected type, or left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST_TEXT = 400
LARGEST = 1e300
"""Larger numbers would overflow when a plot is drawn; they count as not finite."""
MOST_POINTS = 300
RULE = (
    f"Curves of more than {MOST_POINTS} points are downsampled: the first and the last point are "
    f"kept, the rest is divided into {MOST_POINTS // 2 - 1} equal parts, and the lowest and the "
    "highest point of each part are kept. Values that aren't finite are left out."
)

Curve = dict[str, list[float]]
"""Coordinates under "x" and "y"."""


def number(value: Any, digits: int = 6) -> float | None:
    """A finite number rounded to significant digits; None for anything else.

    Example:
        >>> number(1.23456789), number("1"), number(float("nan")), number(True)
        (1.23457, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        finite = math.isfinite(value) and abs(value) < LARGEST
    except OverflowError:  # an integer beyond the largest float
        return None
    if not finite:
        return None
    if abs(value) < 1 / LARGEST:
        return 0
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def integer(value: Any) -> int | None:
    """An integer below 2^53 in size; None for anything else.

    Example:
        >>> integer(3), integer(3.0), integer(True)
        (3, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**53:
        return None
    return value


def text(value: Any, default: str = "") -> str:
    """A string, cut to a reasonable length; the default for anything else.

    Example:
        >>> text("ReLU"), text(1, "?")
        ('ReLU', '?')
    """
    if not isinstance(value, str):
        return default
    return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "…"


def texts(value: Any) -> list[str]:
    """The strings of a list."""
    return [text(each) for each in items(value) if isinstance(each, str)]


def items(value: Any) -> list[Any]:
    """A list; [] for anything else."""
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [each for each in items(value) if isinstance(each, dict)]


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key that compares numbers in names by value.

    Example:
        >>> sorted(["table10", "table2"], key=natural)
        ['table2', 'table10']
    """
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d{1,12})", name)
    ]


def curve(points: Iterable[tuple[float | None, float | None]]) -> Curve:
    """The points that have both coordinates, downsampled."""
    kept = [(x, y) for x, y in points if x is not None and y is not None]
    x, y = downsample([x for x, _ in kept], [y for _, y in kept])
    return {"x": x, "y": y}


def downsample(
    x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float]]:
    """The points that RULE keeps, in order.

    Args:
        x: as long as y.
        y: finite numbers.
        most: largest number of points, at least 4.

    Example:
        >>> downsample(range(8), [0, 1, 9, 1, 1, -9, 1, 0], most=4)
        ([0, 2, 5, 7], [0, 9, -9, 0])
    """
    if len(y) <= most:
        return list(x), list(y)
    kept = {0, len(y) - 1}
    inner = len(y) - 2
    parts = most // 2 - 1
    for part in range(parts):
        indices = range(1 + inner * part // parts, 1 + inner * (part + 1) // parts)
        kept.add(min(indices, key=y.__getitem__))
        kept.add(max(indices, key=y.__getitem__))
    order = sorted(kept)
    return [x[index] for index in order], [y[index] for index in order]
