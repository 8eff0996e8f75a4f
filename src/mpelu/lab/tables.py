"""Tables for the terminal: never wider than it, and never cut off."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table

_GAP = 2
"""Spaces between columns."""


def make_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Collection[int] = (),
) -> Table:
    """A table that folds its cells to a width, between words where there is room.

    Args:
        header: headings of the columns.
        rows: the text of each cell; markup in it is shown as it is.
        width: characters per line.
        right: columns to align right, for numbers.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for index, (name, size) in enumerate(zip(header, _widths(header, rows, width), strict=True)):
        justify: JustifyMethod = "right" if index in right else "left"
        table.add_column(escape(name), width=size, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def fits(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
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
