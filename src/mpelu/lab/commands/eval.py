"""`mpelu eval`: test error of a trained network."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("eval", help="test a trained network")
    add_run(parser)
    parser.add_argument("--data-dir", metavar="DIR", help="where the data lies now [as in the run]")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from dataclasses import replace

    from mpelu.lab import data
    from mpelu.lab.train.restore import evaluate, load_network

    restored = load_network(arguments.folder, arguments.which)
    config = restored.config
    if arguments.data_dir is not None:
        config = replace(config, data_dir=arguments.data_dir)
    dataset = data.load(config, next(restored.model.parameters()).device)
    loss, error = evaluate(restored.model, dataset, config)
    print(
        f"{arguments.folder}: test error {error:.2f} %, loss {loss:.4f}, "
        f"{dataset.test_count} images of {dataset.name}"
    )
