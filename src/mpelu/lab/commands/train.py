"""`mpelu train`: starts a run, resumes it or extends it."""

from __future__ import annotations

import argparse
import hashlib
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpelu.lab.commands.options import add_config, add_trust, given
from mpelu.lab.config import FIELDS, GROUPS, Config, differing
from mpelu.lab.errors import UserError
from mpelu.lab.paper.settings import PRESETS, preset
from mpelu.lab.references import check_trusted, is_reference

EXAMPLES = """\
examples:
  mpelu train --model resnet-20 --activation mpelu --epochs 5 --out runs/first
  mpelu train --resume runs/first --epochs 10
  mpelu train --preset resnet-cifar --model mpelu-resnet-a-110 --data-dir ~/data
  mpelu train --model resnet-20 --validation 0.1

presets (all training images, the last epoch's test error, as in the paper):
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train a network, resume a run that was stopped, or extend a finished one."
    parser.usage = "mpelu train [options]\n       mpelu train --resume RUN [options]"
    parser.epilog = EXAMPLES + "\n".join(map(_preset_line, PRESETS))
    parser.add_argument(
        "--preset", metavar="NAME", help="start from settings of the paper, listed below"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="start from the config.json of a run"
    )
    parser.add_argument(
        "--out", type=Path, metavar="RUN",
        help="run folder to create (default: runs/NAME, where NAME is made from the settings)",
    )  # fmt: skip
    parser.add_argument(
        "--resume", type=Path, metavar="RUN",
        help="resume the run in this folder; with a higher --epochs or --iterations, extend it",
    )  # fmt: skip
    parser.add_argument(
        "--mirror", metavar="URL", help="where to download CIFAR from (default: the official site)"
    )
    add_trust(parser)
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard events")
    parser.add_argument(
        "--logger", nargs="+", default=[], metavar="NAME",
        help="hand metrics to loggers of your own, package.module:factory, for example to W&B",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print only errors")
    for group in GROUPS:
        names = [name for name, info in FIELDS.items() if info.group == group]
        add_config(parser.add_argument_group(group), names)


def run(arguments: argparse.Namespace) -> int:
    values = given(arguments)
    if arguments.resume is not None:
        for name in ("preset", "config", "out"):
            if getattr(arguments, name) is not None:
                raise UserError(
                    "can't be combined with --resume, which continues with the settings and in "
                    "the folder of the run",
                    field=name,
                )
        config = None
    else:
        config = _config(arguments, values)

    from mpelu.lab.training.display import for_terminal
    from mpelu.lab.training.launch import resume, train

    how: dict[str, Any] = {
        "mirror": arguments.mirror,
        "display": None if arguments.quiet else for_terminal(),
        "tensorboard": arguments.tensorboard,
        "loggers": arguments.logger,
    }
    if config is None:
        outcome = resume(arguments.resume, changes=values, trust=arguments.trust, **how)
    else:
        outcome = train(config, arguments.out or default_directory(config), **how)
    if arguments.quiet and outcome.state == "diverged":
        print(outcome.message, file=sys.stderr)
    return outcome.exit_code


def default_directory(config: Config) -> Path:
    """Where a run goes by default. Runs of different settings go to different directories.

    The name has the data set, network, activation, initialization and seed. A single other setting
    that isn't the default is added by name, several as a hash.

    Example:
        >>> default_directory(Config(activation="mpelu", lr=0.2)).name
        'digits-resnet-20-mpelu-lr0.2-seed0'
        >>> default_directory(Config(activation="mpelu", lr=0.2, epochs=5)).name
        'digits-resnet-20-mpelu-47a766fb-seed0'
    """
    source = config.data
    if config.data == "folder" and config.data_dir:
        source = Path(config.data_dir).expanduser().resolve().name or source
    named = ("data", "model", "activation", "init", "seed")
    others = [
        name
        for name in differing(config, Config(), deciding=True)
        if name not in named and getattr(config, name) is not None
    ]
    detail = _in_words(config, others[0]) if len(others) == 1 else None
    if others and detail is None:
        length = f"{config.epochs} epochs, {config.iterations} iterations"
        text = f"{replace(config, seed=0).fingerprint()}, {length}"
        detail = hashlib.sha256(text.encode()).hexdigest()[:8]
    init = None if config.init == "own" else config.init
    parts = (source, config.model, config.activation, init, detail, f"seed{config.seed}")
    name = "-".join(part for part in parts if part)
    return Path("runs") / name.replace(":", ".")  # of references; Windows has no such file names


def _preset_line(name: str) -> str:
    return textwrap.fill(
        PRESETS[name].help, 78, initial_indent=f"  {name:<21}", subsequent_indent=23 * " "
    )


def _in_words(config: Config, name: str) -> str | None:
    """A setting as part of a file name, if it is short."""
    value, words = getattr(config, name), name.replace("_", "-")
    if isinstance(value, bool):
        return words
    if isinstance(value, (int, float)):
        return f"{words}{value}"
    return f"{words}-{value}" if FIELDS[name].choices else None


def _config(arguments: argparse.Namespace, values: Mapping[str, Any]) -> Config:
    """The config of a new run: a preset or a file, changed by the options that were given."""
    if arguments.preset is not None and arguments.config is not None:
        raise UserError("can't be combined with --config", field="preset")
    base = {}
    if arguments.preset is not None:
        base = preset(arguments.preset)
    elif arguments.config is not None:
        base = _read(arguments.config)
        read = {name: base[name] for name in FIELDS if is_reference(base.get(name))}
        named = {name: value for name, value in read.items() if name not in values}
        check_trusted(arguments.config, named, arguments.trust)
    try:
        return Config.from_values({**_rescaled(base, values), **values})
    except UserError as error:
        if arguments.config is None or error.field in values:
            raise
        raise UserError(f"{arguments.config}: {error}", field="config") from None


def _read(path: Path) -> dict[str, Any]:
    from mpelu.lab.files import read_json
    from mpelu.lab.run.folder import SCHEMA, migrate_config

    try:
        # What users write has no schema.
        return migrate_config({"schema": SCHEMA, **read_json(path, compare=False)})
    except ValueError as error:
        raise UserError(str(error), field="config") from None


def _rescaled(base: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The base, with its schedule scaled to the given length if that has the other unit.

    Milestones and warm-up keep their fractions of the run; tests are as frequent as by default.
    A length in the base's own unit leaves the schedule as it is.
    """
    schedule = ("epochs", "iterations", "milestones", "warmup")
    before = Config.from_values({name: base[name] for name in schedule if name in base})
    unit, other = "epochs", "iterations"
    if before.length_unit == "iteration":
        unit, other = other, unit
    if not base or other not in values or unit in values:
        return base
    factor = values[other] / getattr(before, unit)
    return {
        **base,
        unit: None,
        "milestones": tuple(sorted({max(1, round(each * factor)) for each in before.milestones})),
        "warmup": max(1, round(before.warmup * factor)) if before.warmup else 0,
        "test_every": None,
    }
