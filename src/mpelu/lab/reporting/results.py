"""result.json of a reproduced table or figure, checked cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpelu.lab import files
from mpelu.lab.plots import color_name
from mpelu.lab.reporting.values import curve, integer, items, number, objects, text, texts

RESULT = "result.json"
FORMAT = 1
SMOKE = "smoke"
"""The scale whose numbers aren't measurements, unless the result says otherwise."""


def read_result(path: Path) -> dict[str, Any]:
    """The table next to the paper's, with its plots.

    Raises:
        ValueError: in one line, if the file can't be read or isn't such a result.
    """
    found = files.read_json(path)
    if found.get("format") != FORMAT:
        raise ValueError(f"{path.name}: expected format {FORMAT}, got {found.get('format')!r:.40}")
    header = texts(found.get("header"))
    rows = found.get("rows")
    if not isinstance(rows, list) or any(len(items(row)) != len(header) for row in rows):
        raise ValueError(f"{path.name}: expected rows of {len(header)} cells, as in the header")
    scale, is_smoke = text(found.get("scale"), "unknown"), found.get("smoke")
    return {
        "recipe": text(found.get("recipe"), path.parent.name),
        "title": text(found.get("title")),
        "scale": scale,
        "smoke": is_smoke if isinstance(is_smoke, bool) else scale == SMOKE,
        "shrunk": texts(found.get("shrunk")),
        "seeds": integer(found.get("seeds")),
        "data": text(found.get("data")),
        "header": header,
        "rows": [[_cell(cell) for cell in row] for row in rows],
        "compare": _pairs(found.get("compare"), len(header)),
        "headline": text(found.get("headline")),
        "notes": texts(found.get("notes")),
        "plots": [plot for each in objects(found.get("plots")) if (plot := _plot(each))["series"]],
    }


def _cell(cell: Any) -> dict[str, Any]:
    if isinstance(cell, str):
        return {"text": text(cell), "value": None}
    if not isinstance(cell, dict):
        return {"text": "", "value": number(cell)}
    return {"text": text(cell.get("text")), "value": number(cell.get("value"))}


def _pairs(value: Any, columns: int) -> list[list[int]]:
    return [
        pair
        for pair in items(value)
        if len(items(pair)) == 2
        and all(integer(column) is not None and 0 <= column < columns for column in pair)
    ]


def _plot(plot: dict[str, Any]) -> dict[str, Any]:
    series = [_series(each) for each in objects(plot.get("series"))]
    return {
        "title": text(plot.get("title")),
        "x_label": text(plot.get("x_label")),
        "y_label": text(plot.get("y_label")),
        "log_x": plot.get("log_x") is True,
        "log_y": plot.get("log_y") is True,
        "y_range": _range(plot.get("y_range")),
        "series": [each for each in series if each["x"]],
    }


def _series(series: dict[str, Any]) -> dict[str, Any]:
    pairs = zip(items(series.get("x")), items(series.get("y")), strict=False)
    return {
        "name": text(series.get("name"), "?"),
        "color": color_name(series.get("activation")),
        **curve((number(x), number(y)) for x, y in pairs),
    }


def _range(value: Any) -> list[float] | None:
    found = [number(each) for each in items(value)]
    numbers = [each for each in found if each is not None]
    return numbers if len(found) == len(numbers) == 2 and numbers[0] < numbers[1] else None
