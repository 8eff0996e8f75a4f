"""Fewer points for a curve, none of its peaks lost."""

from __future__ import annotations

from collections.abc import Sequence

MOST_POINTS = 300
RULE = (
    f"Curves of more than {MOST_POINTS} points are thinned: the first and the last point stay, the "
    f"rest is cut into {MOST_POINTS // 2 - 1} equal parts, and of each part its lowest and its "
    "highest point stay. Points that are not finite numbers are left out."
)


def thin(
    x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float]]:
    """The points that RULE keeps, in their order.

    Args:
        x: as long as y.
        y: finite numbers.
        most: how many points may remain, at least 4.

    Example:
        >>> thin(range(8), [0, 1, 9, 1, 1, -9, 1, 0], most=4)
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
