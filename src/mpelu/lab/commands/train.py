"""`mpelu train`: a new run, or one that goes on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpelu.lab.commands.options import add_config, given
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.paper import PRESETS, preset
from mpelu.lab.run.files import read_json
from mpelu.lab.run.folder import migrate_config

EVERYDAY = (
    "model", "data", "data_dir", "activation", "init", "epochs", "batch_size", "lr", "seed",
)  # fmt: skip
GROUPS = {
    "images": (
        "image_size", "crop", "preprocess", "augment", "train_limit", "test_limit",
    ),
    "network": (
        "model_options", "alpha", "beta", "init_mode", "init_std", "linear_std",
    ),
    "learning": (
        "iterations", "accumulate", "milestones", "gamma", "warmup", "warmup_lr", "momentum",
        "nesterov", "weight_decay", "activation_lr_mult", "activation_decay_mult",
        "beta_decay_mult", "bias_lr_mult", "bias_decay_mult", "last_lr_mult",
    ),
    "running": (
        "precision", "channels_last", "compile", "gradient_checkpointing", "threads", "device",
        "log_every", "test_every", "checkpoint_every",
    ),
}  # fmt: skip


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a network; every run can be killed and resumed",
        description="Trains a network. In square brackets: what holds if an option isn't given.",
        epilog="presets:\n"
        + "\n".join(f"  {name:<22}{each.help}" for name, each in PRESETS.items()),
        usage="mpelu train [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    everyday = parser.add_argument_group("everyday")
    everyday.add_argument(
        "--preset", metavar="NAME", help=f"settings of the paper: {', '.join(PRESETS)} [none]"
    )
    add_config(everyday, EVERYDAY)
    everyday.add_argument(
        "--out", type=Path, metavar="RUN", help="folder of the run [runs/DATA-MODEL-...-seedN]"
    )
    everyday.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with the run in this folder [none]"
    )
    everyday.add_argument("--quiet", action="store_true", help="print errors only [no]")
    for title, names in GROUPS.items():
        add_config(parser.add_argument_group(title), names)
    other = parser.add_argument_group("other")
    other.add_argument(
        "--config", type=Path, metavar="FILE", help="config.json of a run to repeat [none]"
    )
    other.add_argument(
        "--mirror", metavar="URL", help="where to download CIFAR from [its official address]"
    )
    other.add_argument("--tensorboard", action="store_true", help="write TensorBoard events [no]")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from mpelu.lab.training.display import for_terminal

    values = given(arguments)
    how = {
        "mirror": arguments.mirror,
        "display": None if arguments.quiet else for_terminal(),
        "tensorboard": arguments.tensorboard,
    }
    if arguments.resume is not None:
        for name in ("preset", "config", "out"):
            if getattr(arguments, name) is not None:
                raise UserError(f"--resume: expected no --{name} beside it, got one")
        from mpelu.lab.training import launch

        return launch.resume(arguments.resume, changes=values, **how).exit_code
    config = Config.from_values({**_base(arguments), **values})
    out = arguments.out or default_out(config)
    from mpelu.lab.training import launch

    return launch.train(config, out, **how).exit_code


def _base(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.preset is not None and arguments.config is not None:
        raise UserError("expected --preset or --config, got both")
    if arguments.preset is not None:
        base = preset(arguments.preset)
        # One length of training in place of the other.
        if "epochs" in arguments and "iterations" in base:
            raise UserError(
                f"--epochs: expected --iterations with preset {arguments.preset}, whose schedule "
                "counts iterations"
            )
        if "iterations" in arguments and "epochs" in base:
            raise UserError(
                f"--iterations: expected --epochs with preset {arguments.preset}, whose schedule "
                "counts epochs"
            )
        return base
    if arguments.config is not None:
        try:
            return migrate_config(read_json(arguments.config))
        except ValueError as error:
            raise UserError(str(error), field="config") from None
    return {}


def default_out(config: Config) -> Path:
    """A folder named after what is most often varied."""
    method = None if config.init == "own" else config.init
    parts = (config.data, config.model, config.activation, method, f"seed{config.seed}")
    return Path("runs") / "-".join(part for part in parts if part)
