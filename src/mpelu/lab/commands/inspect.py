"""`mpelu inspect`: signal, gradients, alpha and beta of a network, layer by layer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.commands.eval import WHICH
from mpelu.lab.commands.options import add_config, given
from mpelu.lab.errors import UserError

if TYPE_CHECKING:
    from mpelu.lab.inspecting.subject import Subject

_DATA = ("data_dir",)
_UNTRAINED = (
    "model", "model_options", "activation", "alpha", "beta", "init", "init_mode", "data", "seed",
)  # fmt: skip


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "inspect", help="look inside a network: activations, gradients, alpha and beta"
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--which",
        choices=WHICH,
        help="weights at the end, of the lowest test error, or of the last checkpoint [final]",
    )
    parser.add_argument(
        "--images", type=int, default=256, metavar="N", help="test images to look at [256]"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where inspect.json and inspect.png go [the run folder; nowhere with --model]",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only [no]")
    add_config(parser, _DATA)
    untrained = parser.add_argument_group("a network before training, in place of RUN")
    add_config(untrained, _UNTRAINED)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    if arguments.images < 1:
        raise UserError(f"images: expected a number >= 1, got {arguments.images}")
    fields = given(arguments)
    out = arguments.out or arguments.folder
    if arguments.folder is not None:
        _check_run(arguments.folder, fields)
    elif "model" not in fields:
        raise UserError("inspect: expected RUN or --model, got neither")
    elif arguments.which is not None:
        raise UserError("which: expected RUN, since a network before training has no checkpoints")
    subject = _subject(arguments, fields)
    _show(subject, arguments.folder, out, quiet=arguments.quiet)


def _check_run(folder: Path, fields: dict[str, Any]) -> None:
    from mpelu.lab.run import folder as runs

    others = [name for name in fields if name not in _DATA]
    if others:
        raise UserError(f"{others[0]}: expected RUN or --model and its options, got both")
    runs.read(folder)


def _subject(arguments: argparse.Namespace, fields: dict[str, Any]) -> Subject:
    from mpelu.lab.config import Config
    from mpelu.lab.inspecting import subject

    if arguments.folder is None:
        return subject.of_config(Config(**fields), arguments.images)
    which = arguments.which or "final"
    return subject.of_run(arguments.folder, which, arguments.images, fields.get("data_dir"))


def _show(subject: Subject, folder: Path | None, out: Path | None, *, quiet: bool) -> None:
    from mpelu.lab.inspecting.collect import collect
    from mpelu.lab.inspecting.table import table
    from mpelu.lab.inspecting.write import make, write

    if out is not None:
        make(out)
    name = subject.config.model
    with subject.mode():
        found = collect(
            subject.model,
            subject.batches,
            which=subject.which,
            network=name,
            history=subject.history,
        )
    origin = "" if folder is None else f" of {folder.resolve().name}"
    images = f"{found['images']} images of {subject.config.data}"
    title = f"{name}, {subject.which} weights{origin}, {images}"
    written = [] if out is None else write(found, title, out)
    if not quiet:
        print(f"{title}\n\n{table(found)}\n")
        for path in written:
            print(path)
