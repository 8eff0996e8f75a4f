"""`mpelu verify`: finds damaged files in run folders."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpelu.lab.errors import UserError, plural

EXAMPLES = """\
examples:
  mpelu verify runs/first
  mpelu verify runs out/reproduce"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read every file of run folders and compare it with its checksum.\n\n"
        "The exit code is 1 if a file is damaged, and 0 otherwise."
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="RUN",
        help="run folder, or directory with run folders in it",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from mpelu.lab.run.folder import find
    from mpelu.lab.run.verification import verify

    for each in arguments.folders:
        if not find([each]):
            raise UserError(f"{each}: expected a run folder or a directory with some, got none")
    damaged = 0
    runs = find(arguments.folders)
    for each in runs:
        found = verify(each)
        damaged += bool(found.damage)
        for line in found.lines():
            print(line, flush=True)
    if len(runs) > 1:
        print(f"{damaged} of {plural(len(runs), 'run')} damaged")
    return 1 if damaged else 0
