"""The tables of an inspection, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

_SHARES = {
    "positive": "inputs > 0",
    "saturated": "saturated",
    "linear": "linear",
    "dead": "dead",
    "never_positive": "never > 0",
}
_NUMBERS = ("mean", "variance", "signal", "gradient")


def inspection_tables(found: dict[str, Any]) -> list[Table]:
    """A table of all layers and, if there are activations, two tables of them.

    Args:
        found: the contents of inspect.json.
    """
    tables = [_signal(found["layers"])]
    residual = found["residual"]
    if residual is not None:
        activations = [row for row in found["layers"] if row["kind"] == "activation"]
        tables.append(_shares(activations))
        tables.append(_residuals(residual, found["activations"]))
    return tables


def _signal(rows: Sequence[dict[str, Any]]) -> Table:
    return _table(
        "Layers: their outputs, and the mean square of the gradient there",
        ("layer", "kind"),
        _NUMBERS,
        (
            (
                _label(row),
                row["type"] if row["kind"] == "other" else row["kind"],
                *(_number(row[key]) for key in _NUMBERS),
            )
            for row in rows
        ),
    )


def _shares(rows: Sequence[dict[str, Any]]) -> Table:
    return _table(
        "Activations: share of inputs above zero, and of units, in %",
        ("activation", "type"),
        tuple(_SHARES.values()),
        ((_label(row), row["type"], *(_percent(row[key]) for key in _SHARES)) for row in rows),
    )


def _residuals(residual: dict[str, Any], learned: dict[str, Any]) -> Table:
    by_name = {layer["name"]: layer for layer in learned["layers"]}
    parameters: dict[str, str] = learned["labels"]
    bounds = residual["residuals"]
    unknown = [None] * len(bounds)
    rows = [
        (
            _label(row),
            *(_range(by_name.get(row["name"], {}).get(each)) for each in parameters),
            *map(_percent, row["bounded"] or unknown),
        )
        for row in residual["layers"]
    ]
    rows.append(("all", *[""] * len(parameters), *map(_percent, residual["bounded"] or unknown)))
    return _table(
        "Activations: share of inputs with a Taylor residual below each bound, in %",
        ("activation",),
        (
            *(label.partition(" of ")[0] for label in parameters.values()),
            *(f"< {bound:g}" for bound in bounds),
        ),
        rows,
    )


def _table(
    title: str, texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]
) -> Table:
    """A table whose text is wrapped, never cut off, where the terminal is too narrow."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _label(row: dict[str, Any]) -> str:
    """The layer's name, with the number of the call from the second call on."""
    name = row["name"] or "(model)"
    return name if row["call"] == 1 else f"{name} #{row['call']}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _range(values: Sequence[float] | None) -> str:
    """One number if all are equal, otherwise minimum and maximum.

    Example:
        >>> _range([0.25, 0.25]), _range([0.12345, 1.5])
        ('0.25', '0.123 to 1.5')
    """
    if not values or any(value is None for value in values):
        return "-"
    least, greatest = min(values), max(values)
    return f"{least:.4g}" if least == greatest else f"{least:.3g} to {greatest:.3g}"
