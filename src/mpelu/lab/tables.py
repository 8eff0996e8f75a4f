"""The result of a study as one value, and tables: in the terminal, Markdown, CSV and JSON.

A table in the terminal is never wider than it, and never cut off.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab import files
from mpelu.lab.errors import plural
from mpelu.lab.plots import Plot

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table

FORMAT = 1
SHRUNK = "scaled down"
"""Heading of the last column, where rows were scaled down in ways of their own."""
SMOKE = (
    "SMOKE TEST: these numbers come from a few steps of tiny networks on toy data. They show that "
    "the study runs. As measurements, they mean nothing."
)
FILE_WIDTH = 80
"""Columns where the output doesn't go to a terminal and COLUMNS isn't set."""
_GAP = 2
"""Spaces between columns."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, and the numbers behind it."""

    text: str
    value: float | None = None
    values: tuple[float, ...] = ()
    """One per seed."""


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
            "smoke": self.is_smoke,
            **asdict(self),
            # What a cell lacks is left out.
            "rows": [
                [{k: v for k, v in asdict(cell).items() if v not in (None, ())} for cell in row]
                for row in self.rows
            ],
        }
        del values["study"]
        return json.dumps(values, indent=1, allow_nan=False) + "\n"


def write(result: Result, folder: Path) -> None:
    """Writes result.json, result.md and result.csv, each complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"json": result.to_json(), "md": markdown(result), "csv": comma_separated(result)}
    for kind, text in texts.items():
        files.write(folder / f"result.{kind}", text, durable=False)


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


def show(result: Result) -> None:
    """Prints the table with its notes, folded to the terminal's width."""
    screen = console()
    header, notes = result.header, list(result.notes)
    rows = [[cell.text for cell in row] for row in result.rows]
    if header[-1] == SHRUNK and not _fits(header, rows, screen.width):
        # The last column as notes, for a table that is too wide to have it.
        header, rows = header[:-1], [row[:-1] for row in rows]
        numbered: dict[str, list[str]] = {}
        for number, row in enumerate(result.rows, 1):
            numbered.setdefault(row[-1].text, []).append(str(number))
        numbered.pop("", None)
        shrunk = [
            f"scaled down in row{'s' * (len(found) > 1)} {', '.join(found)}: {text}"
            for text, found in numbered.items()
        ]
        notes = [*shrunk, *notes]
    name = result.study if result.headline else f"{result.study}, {result.scale}"
    screen.print(f"\n{name}: {result.title}", markup=False)
    if result.headline:
        screen.print(result.headline, style="bold", markup=False)
    if result.is_smoke:
        screen.print(SMOKE, style="bold", markup=False)
    if result.shrunk:
        screen.print(f"scaled down: {', '.join(result.shrunk)}", markup=False)
    columns = enumerate(zip(*result.rows, strict=True))
    numbers = [
        index
        for index, cells in columns
        if all(cell.value is not None or not cell.text for cell in cells)
    ]
    screen.print(make_table(header, rows, screen.width, right=numbers))
    for note in notes:
        screen.print(f"- {note}", markup=False)


def console() -> Console:
    """A console as wide as the terminal, or 80 columns if there is none."""
    from rich.console import Console

    is_file = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=FILE_WIDTH if is_file else None)


def make_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Collection[int] = (),
    title: str | None = None,
) -> Table:
    """A table that folds its cells to a width, between words where there is room.

    Args:
        header: headings of the columns.
        rows: the text of each cell; markup in it is shown as it is.
        width: characters per line.
        right: columns of numbers, to align right.
        title: a line above it.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False,
        pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for index, (name, size) in enumerate(zip(header, _widths(header, rows, width), strict=True)):
        justify: JustifyMethod = "right" if index in right else "left"
        table.add_column(escape(name), width=size, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> None:
    """Prints a table as wide as the terminal has room for."""
    screen = console()
    screen.print(make_table(header, rows, screen.width, right=right))


def _fits(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether every cell of a table fits on one line."""
    return sum(_longest(header, rows)) + _GAP * (len(header) - 1) <= width


def _longest(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Widths of the columns. Words are broken, the longest first, only where there is no room."""
    from rich.cells import cell_len

    room = width - _GAP * (len(header) - 1)
    longest = _longest(header, rows)
    found = [
        max((cell_len(word) for text in column for word in text.split()), default=1)
        for column in zip(header, *rows, strict=True)
    ]
    while sum(found) > room and max(found) > 1:
        found[found.index(max(found))] -= 1
    while sum(found) < min(room, sum(longest)):
        narrowest = min(
            (index for index in range(len(found)) if found[index] < longest[index]),
            key=found.__getitem__,
        )
        found[narrowest] += 1
    return found
