"""`mpelu models`: the networks and their sizes, and what the paper says about them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

EXAMPLES = """\
Other depths work too, where the family has them: for example resnet-14.

examples:
  mpelu models
  mpelu train --model nopre-resnet-164 --data cifar10 --data-dir ~/data"""
_FIG_4B = (
    "the block as described gives 1.73M; 1.74M needs shortcut B, BN_end and MPELU_end (1,735,034)"
)
_QUOTED = "the paper quotes it from elsewhere"

PAPER: dict[str, tuple[str, str]] = {
    "plain-52": ("", "the paper trained it with ELU: 121,665,256"),
    "resnet-110": ("1.73M", ""),
    "resnet-1202": ("19.4M", ""),
    "elu-resnet-110": ("1.73M", ""),
    "mpelu-resnet-a-110": ("1.74M", ""),
    "mpelu-resnet-b-110": ("1.74M", ""),
    "mpelu-resnet-110": ("1.74M", _FIG_4B),
    "preresnet-164": ("1.703M", ""),
    "preresnet-1001": ("10.2M", f"{_QUOTED}; the network it describes has 10.33M"),
    "mpelu-preresnet-164": ("1.728M", ""),
    "mpelu-only-preresnet-bn-164": (
        "1.727M",
        "1.727M needs BN_end, BN_1 and MPELU_1 left out (1,727,450)",
    ),
    "mpelu-only-preresnet-164": ("1.712M", ""),
    "nopre-bn-resnet-164": ("1.713M", "1.713M needs BN after the three shortcuts (1,713,274)"),
    "nopre-resnet-164": ("1.696M", ""),
    "nopre-resnet-1001": ("10.28M", ""),
    "nopre-nobn-resnet-164": ("1.688M", ""),
    "nopre-nobn1-resnet-164": ("1.696M", ""),
    "nopre-nobn1-nobnend-resnet-164": ("1.696M", ""),
    "highway-32": ("", "widths are this package's, chosen to come near 1.25M; see docs/models.md"),
    "dsn": ("", "2,580,510 of them in companions used in training only"),
    "stochastic-resnet-110": ("1.7M", ""),
    "stochastic-resnet-1202": ("10.2M", f"{_QUOTED}; it has the weights of resnet-1202, 19.4M"),
    "wide-resnet-16-8": ("11.0M", ""),
    "wide-resnet-28-10": ("36.5M", ""),
}
"""The count the paper prints, where it prints one, and a remark: why ours is another."""


class NetworkSize(NamedTuple):
    """The size of a network, with its own activation, number of classes and input size."""

    name: str
    layers: int
    parameters: int
    multiply_adds: int
    """Of one image, in convolutions and linear layers."""
    input_size: int
    paper: str
    remark: str


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(_: argparse.Namespace) -> None:
    from rich import box
    from rich.table import Table

    from mpelu.lab.tables import console

    screen = console()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    table.add_column("network", overflow="fold")
    for heading in ("layers", "parameters", "multiply-adds", "input", "paper"):
        table.add_column(heading, justify="right", no_wrap=True)
    notes = Table.grid(padding=(0, 2))
    with screen.status("Building the networks to count their parameters"):
        for row in rows():
            size = (row.layers, row.parameters, row.multiply_adds, row.input_size)
            table.add_row(row.name, *(f"{number:,}" for number in size), row.paper)
            if row.remark:
                notes.add_row(row.name, row.remark)
    screen.print(table)
    screen.print("\nnotes:")
    screen.print(notes)


def rows() -> Iterator[NetworkSize]:
    """Yields the size of each network of `mpelu.models.names()`."""
    import torch

    from mpelu.models import create, names
    from mpelu.models.registry import find

    for name in names():
        family, numbers = find(name)
        with torch.device("meta"):
            network = create(name)
            images = torch.empty(1, 3, family.input_size, family.input_size)
        paper, remark = PAPER.get(name, ("", ""))
        parameters = sum(parameter.numel() for parameter in network.parameters())
        layers = numbers[0] if numbers else family.layers
        size = (layers, parameters, _multiply_adds(network, images), family.input_size)
        yield NetworkSize(name, *size, paper, remark)


def _multiply_adds(network: nn.Module, images: Tensor) -> int:
    """Of one image; the network is good for nothing else afterwards."""
    import torch
    from torch import nn

    from mpelu.activations import find_activation

    total = 0

    def add(layer: Any, _: object, output: Tensor) -> None:
        nonlocal total
        total += output[0, 0].numel() * layer.weight.numel()

    for module in list(network.modules()):
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(add)
        for name, child in module.named_children():
            # They keep the shape, and on the meta device take ten times as long as convolutions.
            if isinstance(child, nn.BatchNorm2d) or find_activation(child) is not None:
                setattr(module, name, nn.Identity())
    with torch.no_grad():
        network.eval()(images)
    return total
