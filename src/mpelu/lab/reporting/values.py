"""Checked values from files that anyone may have written: of the expected type, or left out."""

from __future__ import annotations

import math
import re
from typing import Any

LONGEST_TEXT = 400
LARGEST = 1e300
"""Larger numbers would overflow when a plot is drawn; they count as not finite."""


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
