"""Learning curves of a run, thinned."""

from __future__ import annotations

from typing import Any

from mpelu.lab.reporting.thin import thin
from mpelu.lab.reporting.values import integer, number
from mpelu.lab.run.folder import Run

Curve = dict[str, list[float]]


def learning_curves(run: Run) -> dict[str, Any]:
    """Test error and training loss over steps.

    The training loss is the mean since the test before; of a run with fewer than two tests, that
    of the logged steps.

    Returns:
        test_error and train_loss, each {"x": steps, "y": values}; epoch_length, in steps, None for
        a run counted in iterations; rows, how many rows the curves were made of.
    """
    tested = _curve(run.tests, "train_loss")
    loss = tested if len(tested["x"]) >= 2 else _curve(run.steps, "loss")
    return {
        "test_error": _thinned(_curve(run.tests, "test_error")),
        "train_loss": _thinned(loss),
        "epoch_length": _epoch_length(run),
        "rows": len(run.tests) + len(run.steps),
    }


def _curve(rows: list[dict[str, Any]], name: str) -> Curve:
    x: list[float] = []
    y: list[float] = []
    for row in rows:
        step, value = integer(row.get("step")), number(row.get(name))
        if step is not None and value is not None:
            x.append(step)
            y.append(value)
    return {"x": x, "y": y}


def _thinned(curve: Curve) -> Curve:
    x, y = thin(curve["x"], curve["y"])
    return {"x": x, "y": y}


def _epoch_length(run: Run) -> float | None:
    """A test comes at the end of an epoch, so its step over its epoch is the epoch's length."""
    if integer(run.config.get("epochs")) is None:
        return None
    for row in run.tests:
        step, epoch = integer(row.get("step")), integer(row.get("epoch"))
        if step and epoch and step > 0 and epoch > 0:
            return number(step / epoch)
    return None
