"""`mpelu predict`: what a trained network sees in an image."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpelu.lab.commands.eval import add_run, restored
from mpelu.lab.errors import UserError


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("predict", help="name what a trained network sees in images")
    add_run(parser)
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="an image file")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="classes to show [5]")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    if arguments.top < 1:
        raise UserError(f"--top: expected a number >= 1, got {arguments.top}")
    import torch

    from mpelu.lab import data

    network = restored(arguments)
    device = next(network.model.parameters()).device
    pictures = [
        data.read_image(path, network.config, channels=network.channels).to(device)
        for path in arguments.images
    ]
    for path, picture in zip(arguments.images, pictures, strict=True):
        with torch.inference_mode():
            shares = network.model(network.preprocess(picture)).softmax(1)[0]
        print(path)
        for share, index in zip(*shares.topk(min(arguments.top, len(shares))), strict=True):
            print(f"  {100 * share:5.1f} %  {network.classes[int(index)]}")
