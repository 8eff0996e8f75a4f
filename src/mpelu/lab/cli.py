"""The `mpelu` command. A subcommand imports what it needs when it runs, so help is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from mpelu.lab.commands import (
    eval,
    explore,
    inspect,
    list,
    models,
    predict,
    report,
    reproduce,
    train,
)
from mpelu.lab.errors import UserError

COMMANDS = (train, eval, predict, inspect, list, reproduce, report, explore, models)


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
    except BrokenPipeError:  # `mpelu models | head`: nobody reads on, and nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:  # before training catches it, or in another command
        parser.exit(130, "mpelu: interrupted\n")
    except UserError as error:
        parser.exit(2, f"mpelu: error: {error}\n")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        parser.exit(2, f"mpelu: error: {where}{error.strerror or error}\n")
    except RuntimeError as error:
        if "to allocate" not in str(error):  # what torch says on any device
            raise
        parser.exit(2, f"mpelu: error: out of memory: {str(error).splitlines()[0]}\n")
