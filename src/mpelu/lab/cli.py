"""The `mpelu` command. A subcommand imports what it needs when it runs, so help is quick."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from mpelu.lab.commands import eval, list, models, predict, reproduce, train
from mpelu.lab.errors import UserError

COMMANDS = (train, eval, predict, list, reproduce, models)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: those of the command line if None.

    Returns:
        The exit code.
    """
    parser = _Parser(
        prog="mpelu", description="Train, inspect and reproduce the networks of the MPELU paper."
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="command")
    for command in COMMANDS:
        command.add(subparsers)
    chosen = parser.parse_args(arguments)
    try:
        return chosen.run(chosen) or 0
    except UserError as error:
        parser.exit(2, f"mpelu: error: {error}\n")
