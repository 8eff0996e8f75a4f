"""`mpelu inspect`: signal, gradients, alpha and beta of a network, layer by layer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpelu.lab.commands.options import (
    add_config,
    add_data_dir,
    add_trust,
    add_weights,
    given,
)
from mpelu.lab.errors import UserError, flag

_UNTRAINED = (
    "model_options", "activation", "alpha", "beta", "coordinates", "init", "init_mode", "data",
    "image_size", "crop", "seed",
)  # fmt: skip
EXAMPLES = """\
examples:
  mpelu inspect runs/first --weights best
  mpelu inspect --model resnet-20 --activation mpelu --init exact --data digits"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", metavar="RUN", help="run folder")
    add_weights(parser)
    parser.add_argument(
        "--images", type=int, default=256, metavar="N", help="number of test images (default: 256)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="directory for the results as JSON and PNG (default: the run folder; none with "
        "--model)",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print only errors")
    add_data_dir(parser)
    add_trust(parser)
    untrained = parser.add_argument_group("a network before training, instead of RUN")
    untrained.add_argument(
        "--model", metavar="NAME", default=argparse.SUPPRESS,
        help="the network; `mpelu models` lists them",
    )  # fmt: skip
    add_config(untrained, _UNTRAINED)


def run(arguments: argparse.Namespace) -> None:
    fields = given(arguments)
    _check(arguments, fields)

    from mpelu.lab.config import Config
    from mpelu.lab.inspecting import inspect_config, inspect_run
    from mpelu.lab.inspecting.tables import inspection_tables
    from mpelu.lab.tables import console

    if arguments.folder is None:
        found = inspect_config(Config(**fields), arguments.images, arguments.out)
    else:
        found = inspect_run(
            arguments.folder,
            arguments.weights or "final",
            arguments.images,
            fields.get("data_dir"),
            arguments.out or arguments.folder,
            trust=arguments.trust,
        )
    if arguments.quiet:
        return
    print(f"{found.title}\n")
    screen = console()
    for table in inspection_tables(found.values, screen.width):
        screen.print(table)
        print()
    for path in found.files:
        print(path)


def _check(arguments: argparse.Namespace, fields: dict[str, Any]) -> None:
    if arguments.folder is None and "model" not in fields:
        raise UserError("inspect: expected RUN or --model, got neither")
    if arguments.folder is None and arguments.weights is not None:
        raise UserError("needs RUN: a network before training has no checkpoints", field="weights")
    others = [name for name in fields if name != "data_dir"]
    if arguments.folder is not None and others:
        raise UserError(f"inspect: expected RUN or {flag(others[0])}, got both")
