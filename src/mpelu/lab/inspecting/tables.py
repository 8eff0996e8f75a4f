"""Makes the tables of an inspection for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpelu.lab.tables import make_table

if TYPE_CHECKING:
    from rich.table import Table

_SHARES = {
    "positive": "inputs > 0",
    "saturated": "saturated",
    "linear": "linear",
    "dead": "dead",
    "never_positive": "never > 0",
}
_NUMBERS = ("mean", "variance", "signal", "gradient")


def inspection_tables(found: dict[str, Any], width: int) -> list[Table]:
    """Returns a table of all layers and, if there are activations, two tables of them.

    Args:
        found: the contents of inspect.json.
        width: characters per line.
    """
    layers, residual = found["layers"], found["residual"]
    rows = [
        (
            _label(row),
            row["type"] if row["kind"] == "other" else row["kind"],
            *(_number(row[key]) for key in _NUMBERS),
        )
        for row in layers
    ]
    title = "Layers: their outputs, and the mean square of the gradient there"
    tables = [_table(title, ("layer", "kind", *_NUMBERS), rows, width, texts=2)]
    if residual is None:
        return tables
    rows = [
        (_label(row), row["type"], *(_percent(row[key]) for key in _SHARES))
        for row in layers
        if row["kind"] == "activation"
    ]
    title = "Activations: share of inputs above zero, and of units, in %"
    header = ("activation", "type", *_SHARES.values())
    tables.append(_table(title, header, rows, width, texts=2))
    by_name = {layer["name"]: layer for layer in found["activations"]["layers"]}
    parameters: dict[str, str] = found["activations"]["labels"]
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
    title = "Activations: share of inputs with a Taylor residual below each bound, in %"
    labels = [label.partition(" of ")[0] for label in parameters.values()]
    header = ("activation", *labels, *(f"< {bound:g}" for bound in bounds))
    return [*tables, _table(title, header, rows, width, texts=1)]


def _table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, texts: int
) -> Table:
    """Makes a table with a title. Its first columns are texts, the others numbers."""
    return make_table(header, rows, width, right=range(texts, len(header)), title=title)


def _label(row: dict[str, Any]) -> str:
    """Returns the layer's name, with the number of the call from the second call on."""
    name = row["name"] or "(model)"
    return name if row["call"] == 1 else f"{name} #{row['call']}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _range(values: Sequence[float] | None) -> str:
    """Formats one number if all are equal, otherwise minimum and maximum.

    Example:
        >>> _range([0.25, 0.25]), _range([0.12345, 1.5])
        ('0.25', '0.123 to 1.5')
    """
    if not values or any(value is None for value in values):
        return "-"
    least, greatest = min(values), max(values)
    return f"{least:.4g}" if least == greatest else f"{least:.3g} to {greatest:.3g}"
