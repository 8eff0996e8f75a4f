"""`mpelu eval`: the test error of a trained network."""

from __future__ import annotations

import argparse
from typing import Any

from mpelu.lab.commands.options import add_data_dir, add_trained, given, load_trained

_EXAMPLES = """\
examples:
  mpelu eval runs/first
  mpelu eval runs/first --weights best --data-dir /mnt/data"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("eval", epilog=_EXAMPLES)
    add_trained(parser)
    add_data_dir(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from dataclasses import replace

    from mpelu.lab import data
    from mpelu.lab.errors import plural
    from mpelu.lab.training.evaluation import evaluate
    from mpelu.lab.training.trained import check_data

    trained = load_trained(arguments)
    config = replace(trained.config, **given(arguments))
    dataset = data.load(config, trained.device)
    check_data(arguments.folder, dataset)
    loss, error = evaluate(trained.model, dataset, config)
    print(
        f"{arguments.folder}: test error {error:.2f} %, loss {loss:.4f}, "
        f"{plural(dataset.test_count, 'image')} of {dataset.name}"
    )
