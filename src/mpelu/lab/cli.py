"""The `mpelu` command. A subcommand imports what it needs when it runs, so help is quick."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command.

    Args:
        arguments: those of the command line if None.
    """
    parser = argparse.ArgumentParser(prog="mpelu", description="MPELU networks, from the paper.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    models = commands.add_parser("models", help="list the networks with their sizes")
    models.set_defaults(run=_models)
    chosen = parser.parse_args(arguments)
    chosen.run(chosen)


def _models(_: argparse.Namespace) -> None:
    from mpelu.models.table import rows

    print(
        f"{'network':<32}{'layers':>7}{'parameters':>13}{'multiply-adds':>16}"
        f"{'input':>7}{'paper':>9}  remark"
    )
    for row in rows():
        print(
            f"{row.name:<32}{row.layers:>7}{row.parameters:>13,}{row.multiply_adds:>16,}"
            f"{row.input_size:>7}{row.paper:>9}  {row.remark}".rstrip()
        )
