"""A result as a table in the terminal, in Markdown and in CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from mpelu.lab.studies.result import SHRUNK, Result

_FILE_WIDTH = 200
"""Of a table that doesn't go to a terminal, which would say how wide it is."""


def heading(result: Result) -> str:
    """Title, scale and what was shrunk, in one line."""
    shrunk = f"; shrunk: {', '.join(result.shrunk)}" if result.shrunk else ""
    return f"{result.recipe}, {result.scale}: {result.title}{shrunk}"


def markdown(result: Result) -> str:
    """As result.md holds it.

    A bar inside a cell would end it and is escaped.
    """

    def line(texts: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    lines = [f"# {result.recipe}: {result.title}", ""]
    lines.append(f"Scale {result.scale}, {result.seeds} seed{'s' * (result.seeds != 1)} each.")
    if result.shrunk:
        lines.append(f"Shrunk: {', '.join(result.shrunk)}.")
    lines += ["", line(list(result.header)), line(["---"] * len(result.header))]
    lines += [line([cell.text for cell in row]) for row in result.rows]
    if result.notes:
        lines += ["", *[f"- {note}" for note in result.notes]]
    for figure in result.figures:
        if figure.endswith(".png"):
            lines += ["", f"![{result.title}]({figure})"]
    return "\n".join(lines) + "\n"


def comma_separated(result: Result) -> str:
    """As result.csv holds it: the table alone, texts as they read."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.header)
    writer.writerows([cell.text for cell in row] for row in result.rows)
    return out.getvalue()


def show(result: Result) -> None:
    """Prints the table and its notes."""
    from rich import box
    from rich.console import Console, JustifyMethod
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH

    def made(columns: int) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for index, name in enumerate(result.header[:columns]):
            numeric = all(
                row[index].value is not None or not row[index].text for row in result.rows
            )
            justify: JustifyMethod = "right" if numeric and result.rows else "left"
            # Folded where there is no room, never cut off.
            table.add_column(name, justify=justify, overflow="fold")
        for row in result.rows:
            table.add_row(*[escape(cell.text) for cell in row[:columns]])
        return table

    table, notes = made(len(result.header)), list(result.notes)
    boundless = console.options.update(max_width=10**6)
    wide = console.measure(table, options=boundless).maximum > console.width
    if wide and result.header[-1] == SHRUNK:
        table = made(len(result.header) - 1)
        notes = [*_shrunk_notes(result), *notes]
    console.print(f"\n{heading(result)}", markup=False)
    console.print(table)
    for note in notes:
        console.print(f"- {note}", markup=False)


def _shrunk_notes(result: Result) -> list[str]:
    """The column of what single rows shrank, as lines below a table that is too wide for it."""
    rows: dict[str, list[str]] = {}
    for number, row in enumerate(result.rows, 1):
        if row[-1].text:
            rows.setdefault(row[-1].text, []).append(str(number))
    return [
        f"shrunk in row{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {text}"
        for text, numbers in rows.items()
    ]


def write(result: Result, folder: Path) -> None:
    """result.json, result.md and result.csv, each whole or not at all."""
    texts = {
        "result.json": result.to_json(),
        "result.md": markdown(result),
        "result.csv": comma_separated(result),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        part = folder / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / name)
