"""A recipe's result as one value: what result.json holds and every table is made from."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
SHRUNK = "shrunk"
"""Heading of the last column where rows shrank in ways of their own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of a table: how it reads, and the numbers behind it."""

    text: str
    value: float | None = None
    values: tuple[float, ...] = ()
    """Of all seeds."""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"text": self.text}
        if self.value is not None:
            found["value"] = self.value
        if self.values:
            found["values"] = list(self.values)
        return found


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Lines over a common axis."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_y: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "log_y": self.log_y,
            "series": [
                {"name": each.name, "x": list(each.x), "y": list(each.y)} for each in self.series
            ],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Paper and measurement side by side."""

    recipe: str
    title: str
    scale: str
    shrunk: tuple[str, ...]
    """What was shrunk in every row; a row's own stand in its last column."""
    seeds: int
    data: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    compare: tuple[tuple[int, int], ...] = ()
    """Columns of the paper's value and of ours."""
    notes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    figures: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return (
            json.dumps(
                {
                    "format": FORMAT,
                    "recipe": self.recipe,
                    "title": self.title,
                    "scale": self.scale,
                    "shrunk": list(self.shrunk),
                    "seeds": self.seeds,
                    "data": self.data,
                    "environment": self.environment,
                    "header": list(self.header),
                    "rows": [[cell.to_json() for cell in row] for row in self.rows],
                    "compare": [list(pair) for pair in self.compare],
                    "notes": list(self.notes),
                    "plots": [plot.to_json() for plot in self.plots],
                    "figures": list(self.figures),
                    "runs": list(self.runs),
                },
                indent=1,
                allow_nan=False,
            )
            + "\n"
        )


def environment() -> dict[str, Any]:
    """Machine and versions a figure depends on."""
    import torch

    import mpelu

    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mpelu": mpelu.__version__,
    }
