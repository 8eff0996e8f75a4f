"""The result of a study as one value, and its tables: in the terminal, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab import files
from mpelu.lab.errors import plural
from mpelu.lab.tables import fits, make_table

if TYPE_CHECKING:
    from rich.console import Console

FORMAT = 1
SHRUNK = "scaled down"
"""Heading of the last column, where rows were scaled down in ways of their own."""
SMOKE = (
    "SMOKE TEST: these numbers come from a few steps of tiny networks on toy data. They show that "
    "the study runs. As measurements, they mean nothing."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, and the numbers behind it."""

    text: str
    value: float | None = None
    values: tuple[float, ...] = ()
    """One per seed."""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"text": self.text}
        if self.value is not None:
            found["value"] = self.value
        if self.values:
            found["values"] = list(self.values)
        return found


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    activation: str = ""
    """The activation that it shows, whose color it has; empty if it shows something else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Lines over a common axis."""

    title: str
    x_label: str
    y_label: str
    log_y: bool = False
    y_range: tuple[float, float] | None = None
    """Range of the vertical axis; None to fit the lines."""
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A table with the paper's values beside the measured ones.

    Example:
        >>> result = Result(study="table9", title="ResNets", scale="small", seeds=1, data="digits",
        ...     header=("network", "measured"), rows=((Cell("ResNet"), Cell("9.10", 9.1)),))
        >>> print(comma_separated(result), end="")
        network,measured
        ResNet,9.10
    """

    study: str
    title: str
    scale: str
    shrunk: tuple[str, ...] = ()
    """What was scaled down in every row; a row's own differences are in its last column."""
    seeds: int = 1
    data: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    compare: tuple[tuple[int, int], ...] = ()
    """Pairs of columns to compare: the paper's value and the measured one. None in a smoke test."""
    headline: str = ""
    """The result in a sentence, where it is no table of the paper."""
    notes: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    figures: tuple[str, ...] = ()
    """Names of image files beside result.json."""
    runs: tuple[str, ...] = ()
    """Run folders, relative to the study's directory."""
    environment: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.is_smoke:
            object.__setattr__(self, "compare", ())

    @property
    def is_smoke(self) -> bool:
        """Whether the numbers mean nothing. A drawing isn't scaled down, so it is no smoke test."""
        return self.scale == "smoke" and bool(self.shrunk)

    def to_json(self) -> str:
        """The content of result.json, which `mpelu report` reads."""
        values = {
            "format": FORMAT,
            "recipe": self.study,
            "title": self.title,
            "scale": self.scale,
            "smoke": self.is_smoke,
            "shrunk": self.shrunk,
            "seeds": self.seeds,
            "data": self.data,
            "environment": self.environment,
            "header": self.header,
            "rows": [[cell.to_json() for cell in row] for row in self.rows],
            "compare": self.compare,
            "headline": self.headline,
            "notes": self.notes,
            "plots": [asdict(plot) for plot in self.plots],
            "figures": self.figures,
            "runs": self.runs,
        }
        return json.dumps(values, indent=1, allow_nan=False) + "\n"


def write(result: Result, folder: Path) -> None:
    """Writes result.json, result.md and result.csv, each complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / "result.json", result.to_json(), durable=False)
    files.write(folder / "result.md", markdown(result), durable=False)
    files.write(folder / "result.csv", comma_separated(result), durable=False)


def markdown(result: Result) -> str:
    """The table in Markdown, with its notes and figures."""

    def line(texts: Sequence[str]) -> str:
        # A bar inside a cell would end it.
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    lines = [f"# {result.study}: {result.title}", ""]
    if result.is_smoke:
        lines += [f"**{SMOKE}**", ""]
    if result.headline:
        lines.append(f"{result.headline}.")
    else:
        lines.append(f"Scale: {result.scale}, {plural(result.seeds, 'seed')} per setting.")
    if result.shrunk:
        lines.append(f"Scaled down: {', '.join(result.shrunk)}.")
    lines += ["", line(result.header), line(["---"] * len(result.header))]
    lines += [line([cell.text for cell in row]) for row in result.rows]
    if result.notes:
        lines += ["", *[f"- {note}" for note in result.notes]]
    for figure in result.figures:
        if figure.endswith(".png"):
            lines += ["", f"![{result.title}]({figure})"]
    return "\n".join(lines) + "\n"


def comma_separated(result: Result) -> str:
    """The table as CSV, without notes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.header)
    writer.writerows([cell.text for cell in row] for row in result.rows)
    return out.getvalue()


def show(result: Result, console: Console) -> None:
    """Prints the table with its notes, folded to the console's width."""
    header, notes = result.header, list(result.notes)
    rows = [[cell.text for cell in row] for row in result.rows]
    if header[-1] == SHRUNK and not fits(header, rows, console.width):
        header, rows = header[:-1], [row[:-1] for row in rows]
        notes = [*_shrunk_notes(result), *notes]
    name = result.study if result.headline else f"{result.study}, {result.scale}"
    console.print(f"\n{name}: {result.title}", markup=False)
    if result.headline:
        console.print(result.headline, style="bold", markup=False)
    if result.is_smoke:
        console.print(SMOKE, style="bold", markup=False)
    if result.shrunk:
        console.print(f"scaled down: {', '.join(result.shrunk)}", markup=False)
    columns = enumerate(zip(*result.rows, strict=True))
    numbers = [
        index
        for index, cells in columns
        if all(cell.value is not None or not cell.text for cell in cells)
    ]
    console.print(make_table(header, rows, console.width, right=numbers))
    for note in notes:
        console.print(f"- {note}", markup=False)


def _shrunk_notes(result: Result) -> list[str]:
    """The last column as notes, for a table that is too wide to have it."""
    rows: dict[str, list[str]] = {}
    for number, row in enumerate(result.rows, 1):
        if row[-1].text:
            rows.setdefault(row[-1].text, []).append(str(number))
    return [
        f"scaled down in row{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {text}"
        for text, numbers in rows.items()
    ]
