"""`mpelu predict`: the classes a trained network finds in images."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from mpelu.lab.commands.options import add_config, add_trained, load_trained
from mpelu.lab.errors import UserError

EXAMPLES = """\
examples:
  mpelu predict runs/first cat.png
  mpelu predict runs/first photos/*.jpg --top 1"""


def add(parser: argparse.ArgumentParser) -> None:
    add_trained(parser)
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="an image file")
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="classes to show per image (default: 5)"
    )
    add_config(parser, ["max_pixels"])


def run(arguments: argparse.Namespace) -> None:
    if arguments.top < 1:
        raise UserError(f"expected a number >= 1, got {arguments.top}", field="top")

    import torch

    from mpelu.lab import data

    trained = load_trained(arguments)
    config = trained.config
    if "max_pixels" in arguments:
        config = replace(config, max_pixels=arguments.max_pixels)
    images = [
        data.read_image(path, config, channels=trained.channels).to(trained.device)
        for path in arguments.images
    ]
    for path, image in zip(arguments.images, images, strict=True):
        with torch.inference_mode():
            probabilities = trained.model(trained.preprocess(image)).softmax(1)[0]
        print(path)
        top = probabilities.topk(min(arguments.top, len(probabilities)))
        for probability, index in zip(*top, strict=True):
            print(f"  {100 * probability:5.1f} %  {trained.classes[int(index)]}")
