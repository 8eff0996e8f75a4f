"""`mpelu eval`: the test or validation error of a trained network."""

from __future__ import annotations

import argparse

from mpelu.lab.commands.options import add_data_dir, add_trained, load_trained

EXAMPLES = """\
examples:
  mpelu eval runs/first
  mpelu eval runs/first --weights best --data-dir /mnt/data"""


def add(parser: argparse.ArgumentParser) -> None:
    add_trained(parser)
    add_data_dir(parser)
    parser.add_argument(
        "--split", choices=("test", "validation"), default="test",
        help="images to use: the test images, or those that were kept out of training to choose "
        "by (default: test)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    from dataclasses import replace

    from mpelu.lab import data
    from mpelu.lab.errors import UserError, plural
    from mpelu.lab.references import check_trusted
    from mpelu.lab.run.folder import read_config
    from mpelu.lab.training.step import evaluate
    from mpelu.lab.training.trained import check_data

    named = read_config(arguments.folder).references
    check_trusted(
        arguments.folder, named, arguments.trust, ("model", "activation", "convert", "data")
    )
    trained = load_trained(arguments)
    config = trained.config
    if "data_dir" in arguments:
        config = replace(config, data_dir=arguments.data_dir)
    dataset = data.load(config, trained.device)
    check_data(arguments.folder, dataset)
    split = arguments.split
    count = dataset.test_count if split == "test" else dataset.validation_count
    if not count:
        raise UserError("the run has no validation images", field="split")
    loss, error = evaluate(trained.model, dataset, config, split=split)
    print(
        f"{arguments.folder}: {split} error {error:.2f} %, loss {loss:.4f}, "
        f"{plural(count, 'image')} of {dataset.name}"
    )
