"""What was found, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(found: dict[str, Any]) -> str:
    """One line a layer, then one an activation; the whole of every number, however wide.

    Args:
        found: as `collect` gives it.
    """
    parts = [_layers(found["layers"])]
    if found["residual"] is not None:
        parts.append(_activations(found["residual"], found["activations"]["layers"]))
    return "\n\n".join(parts)


def label(row: dict[str, Any]) -> str:
    """The layer's name, with the number of the call from the second on."""
    name = row["name"] or "(model)"
    return name if row["call"] == 1 else f"{name} #{row['call']}"


def _layers(rows: Sequence[dict[str, Any]]) -> str:
    header = [
        "layer", "kind", "mean", "variance", "gradient", "linear %", "saturated %", "dead %",
        "never > 0 %",
    ]  # fmt: skip
    shares = ("linear_share", "saturated_share", "dead_share", "never_positive_share")
    return _aligned(
        header,
        [
            [
                label(row),
                row["type"] if row["kind"] == "other" else row["kind"],
                *(_number(row[key]) for key in ("mean", "variance", "gradient_norm")),
                *(_percent(row[key]) for key in shares),
            ]
            for row in rows
        ],
    )


def _activations(residual: dict[str, Any], learned: Sequence[dict[str, Any]]) -> str:
    by_name = {layer["name"]: layer for layer in learned}
    has_slopes = any("weight" in layer for layer in learned)
    parameters = ["alpha", "beta"] if any("alpha" in layer for layer in learned) else []
    parameters += ["weight"] if has_slopes else []
    bounds = [f"< {bound:g} %" for bound in residual["residuals"]]
    rows = [
        [
            label(row),
            row["type"],
            *(_spread(by_name.get(row["name"], {}).get(each)) for each in parameters),
            *(_percent(share) for share in row["bounded"] or [None] * len(bounds)),
        ]
        for row in residual["layers"]
    ]
    total = residual["bounded"] or [None] * len(bounds)
    rows.append(["all", "", *[""] * len(parameters), *map(_percent, total)])
    header = ["residual of", "type", *parameters, *bounds]
    return _aligned(header, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _spread(values: Sequence[float] | None) -> str:
    """One number where all are equal, otherwise least, mean and greatest."""
    if not values or any(value is None for value in values):
        return "-"
    least, greatest = min(values), max(values)
    if least == greatest:
        return f"{least:.4g}"
    return f"{least:.3g} .. {sum(values) / len(values):.3g} .. {greatest:.3g}"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
