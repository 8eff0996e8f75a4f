"""`mpelu models`: the networks and their sizes."""

from __future__ import annotations

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("models", help="list the networks with their sizes")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> None:
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
