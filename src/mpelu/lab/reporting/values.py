"""Values from files anyone may have written: taken for what they are, or not at all."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

LONGEST_TEXT = 400
LARGEST = 1e300
"""Numbers beyond leave a plot no room to calculate; they count as not finite."""


def number(value: Any, digits: int = 6) -> float | None:
    """A finite number to so many significant digits, or None.

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
    """A whole number below 2^53, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**53:
        return None
    return value


def text(value: Any, default: str = "") -> str:
    """A string, cut where it is longer than any name or message should be."""
    if not isinstance(value, str):
        return default
    return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "…"


def texts(value: Any) -> list[str]:
    """The strings of a list."""
    return [text(each) for each in items(value) if isinstance(each, str)]


def items(value: Any) -> list[Any]:
    """The list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [each for each in items(value) if isinstance(each, dict)]


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names by the numbers in them: table2 before table10."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d{1,12})", name)
    ]


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: in one line, if there is none.
    """
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} can't be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected an object, got {type(value).__name__}")
    return value
