"""`mpelu doctor`: why a network doesn't train."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mpelu.lab.commands.options import add_config, add_model, given
from mpelu.lab.errors import UserError

EXAMPLES = """\
examples:
  mpelu doctor mine:net --input 3x224x224 --model-options num_classes=10
  mpelu doctor torchvision.models:resnet18 --input 3x224x224 --out doctor
  mpelu doctor mine:net --data cifar10 --data-dir ~/data --json

The exit code is 1 if something is wrong."""
_FIELDS = ("data_dir", "activation", "init", "seed")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say in a sentence why a network doesn't train.\n\n"
        "It is measured on one batch: where the signal dies or explodes, whether the\n"
        "gradient arrives, which units are dead, and what each initialization would give."
    )
    add_model(parser)
    parser.add_argument(
        "--input", nargs="+", metavar="SHAPE",
        help="shape of each input without the batch, such as 3x224x224; the values are random",
    )  # fmt: skip
    add_config(parser, ["model_options"])
    parser.add_argument(
        "--samples", type=int, metavar="N", help="size of the batch (default: 16 to 32)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="also write the figure and a page to this directory"
    )
    with_data = parser.add_argument_group("on data, instead of --input")
    add_config(with_data, ("data", *_FIELDS))


def run(arguments: argparse.Namespace) -> int:
    fields = given(arguments)
    del fields["model"]  # an argument, which isn't the option of a run
    has_data = "data" in fields
    if has_data == (arguments.input is not None):
        raise UserError(
            f"doctor: expected --input or --data, got {'both' if has_data else 'neither'}"
        )
    with_data = [name for name in fields if name != "model_options"]
    if not has_data and with_data:
        raise UserError("needs --data", field=with_data[0])

    from mpelu.lab import doctor
    from mpelu.lab.tables import print_table

    def say(text: str) -> None:
        if sys.stderr.isatty() and not arguments.json:
            print(f"{text} ...", file=sys.stderr, flush=True)

    name, samples = arguments.model, arguments.samples
    if has_data:
        from mpelu.lab.config import Config

        found, inputs = doctor.diagnose_config(Config(model=name, **fields), samples, say)
    else:
        shapes = [doctor.parse_shape(each) for each in arguments.input]
        options = fields.get("model_options", {})
        found, inputs = doctor.diagnose_model(name, shapes, samples, say, options)
    title = f"{name}, {inputs}"
    page = None if arguments.out is None else doctor.write_page(found, title, arguments.out)
    if arguments.json:
        print(doctor.to_json(found), end="")
    else:
        print(found.sentence)
        for finding in found.others:
            print(f"- {finding.text}")
        print(f"\n{title}")
        for header, rows, right in doctor.tables_of(found):
            if rows:
                print_table(header, rows, right)
                print()
        if page is not None:
            print(page)
    return 0 if found.is_healthy else 1
