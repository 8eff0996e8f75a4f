"""`mpelu eval`: test error of a trained network."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpelu.lab.training.trained import TrainedNetwork

WHICH = ("final", "best", "last")


def add_run(parser: argparse.ArgumentParser) -> None:
    """The options of every command that uses a trained network."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--which",
        choices=WHICH,
        default="final",
        help="weights at the end, of the lowest test error, or of the last checkpoint [final]",
    )


def restored(arguments: argparse.Namespace) -> TrainedNetwork:
    """The network those options name; says so if it isn't that of the end."""
    from mpelu.lab.training.trained import load_network

    found = load_network(arguments.folder, arguments.which)
    if arguments.which == "final" and found.source.parent != arguments.folder:
        print(
            f"{arguments.folder}: no final weights yet, so those of {found.source}", file=sys.stderr
        )
    return found


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("eval", help="test a trained network")
    add_run(parser)
    parser.add_argument("--data-dir", metavar="DIR", help="where the data lies now [as in the run]")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from dataclasses import replace

    from mpelu.lab import data
    from mpelu.lab.training.evaluation import evaluate
    from mpelu.lab.training.trained import check_data

    network = restored(arguments)
    config = network.config
    if arguments.data_dir is not None:
        config = replace(config, data_dir=arguments.data_dir)
    dataset = data.load(config, next(network.model.parameters()).device)
    check_data(arguments.folder, dataset)
    loss, error = evaluate(network.model, dataset, config)
    print(
        f"{arguments.folder}: test error {error:.2f} %, loss {loss:.4f}, "
        f"{dataset.test_count} images of {dataset.name}"
    )
