"""Learning curves, downsampled without losing their peaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpelu.lab.reporting.values import integer, number
from mpelu.lab.run.folder import Run

MOST_POINTS = 300
RULE = (
    f"Curves of more than {MOST_POINTS} points are downsampled: the first and the last point are "
    f"kept, the rest is divided into {MOST_POINTS // 2 - 1} equal parts, and the lowest and the "
    "highest point of each part are kept. Values that aren't finite are left out."
)

Curve = dict[str, list[float]]
"""Coordinates under "x" and "y"."""


def learning_curves(run: Run) -> dict[str, Any]:
    """Test error, or validation error if there is one, and training loss over training steps.

    The training loss is the mean since the previous test. A run with fewer than two tests has the
    losses of the logged steps instead.

    Returns:
        test_error and train_loss, curves over steps; on, which of "test" and "validation" the
        error was measured on; epoch_length, in steps, or None for a run
        counted in iterations; rows, the number of logged rows behind the curves.
    """
    tested = _curve(run.tests, "train_loss")
    validated = _curve(run.tests, "validation_error")
    loss = tested if len(tested["x"]) >= 2 else _curve(run.steps, "loss")
    return {
        "test_error": _downsampled(
            validated if validated["x"] else _curve(run.tests, "test_error")
        ),
        "on": "validation" if validated["x"] else "test",
        "train_loss": _downsampled(loss),
        "epoch_length": _epoch_length(run),
        "rows": len(run.tests) + len(run.steps),
    }


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


def _curve(rows: list[dict[str, Any]], name: str) -> Curve:
    x: list[float] = []
    y: list[float] = []
    for row in rows:
        step, value = integer(row.get("step")), number(row.get(name))
        if step is not None and value is not None:
            x.append(step)
            y.append(value)
    return {"x": x, "y": y}


def _downsampled(curve: Curve) -> Curve:
    x, y = downsample(curve["x"], curve["y"])
    return {"x": x, "y": y}


def _epoch_length(run: Run) -> float | None:
    """Steps per epoch. Tests come at the end of an epoch, so it is step / epoch of a test."""
    if integer(run.config.get("epochs")) is None:
        return None
    for row in run.tests:
        step, epoch = integer(row.get("step")), integer(row.get("epoch"))
        if step and epoch and step > 0 and epoch > 0:
            return number(step / epoch)
    return None
