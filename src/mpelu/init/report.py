"""What an initialization did to each weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One weight."""

    layer: str
    """Path of the weight in the model."""
    rule: str
    """The method and mode, "frozen", or "left as it was"."""
    feed: str = ""
    """The activation that feeds the layer, several joined by +, or "input"."""
    alpha: float | list[float] | None = None
    """Of the activation: a number, or one for each channel where they differ."""
    beta: float | list[float] | None = None
    fan: float | None = None
    """n in the rule."""
    std: float
    """Of the weights; over all groups where these differ."""
    predicted: float | None = None
    """Variance of the layer's output by propagation of moments."""
    measured: float | None = None
    """The same on the example inputs."""
    note: str = ""
    """What could not be placed, and what was done then."""


@dataclass(frozen=True)
class Report:
    """Rows in the order of the forward pass, then the weights that are not in it.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), mpelu.MPELU(), torch.nn.Linear(8, 2))
        >>> report = mpelu.init.initialize_(model, torch.randn(64, 8))
        >>> [row.feed for row in report.rows]
        ['input', '1 (MPELU)']
    """

    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings and lists."""
        return {"rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        header = ["layer", "rule", "fed by", "alpha", "beta", "fan", "std", "predicted", "measured"]
        cells = [
            [
                row.layer,
                row.rule,
                row.feed,
                _number(row.alpha),
                _number(row.beta),
                _number(row.fan),
                _number(row.std),
                _number(row.predicted),
                _number(row.measured),
            ]
            for row in self.rows
        ]
        notes = [f"{row.layer}: {row.note}" for row in self.rows if row.note]
        return "\n".join([*_aligned([header, *cells]), *notes])


def _number(value: float | list[float] | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"{min(value):.3g}..{max(value):.3g}"
    return f"{value:.4g}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < 3 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
