"""`mpelu models`: the networks and their sizes."""

from __future__ import annotations

import argparse
from typing import Any

_EPILOG = """\
Other depths work too, where the family has them: for example resnet-14.

examples:
  mpelu models
  mpelu train --model nopre-resnet-164 --data cifar10 --data-dir ~/data"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("models", epilog=_EPILOG)
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> None:
    from rich import box
    from rich.table import Table

    from mpelu.lab.commands.output import console
    from mpelu.lab.counts import rows

    screen = console()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    table.add_column("network", overflow="fold")
    for heading in ("layers", "parameters", "multiply-adds", "input", "paper"):
        table.add_column(heading, justify="right", no_wrap=True)
    notes = Table.grid(padding=(0, 2))
    with screen.status("Building the networks to count their parameters"):
        for row in rows():
            size = (row.layers, row.parameters, row.multiply_adds, row.input_size)
            table.add_row(row.name, *(f"{number:,}" for number in size), row.paper)
            if row.remark:
                notes.add_row(row.name, row.remark)
    screen.print(table)
    screen.print("\nnotes:")
    screen.print(notes)
