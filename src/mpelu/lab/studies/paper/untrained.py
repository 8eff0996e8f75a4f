"""The untrained 30-layer network on images, for tables 7 and 8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.studies import scale, solvers
from mpelu.lab.studies.recipe import Options

if TYPE_CHECKING:
    from torch import Tensor, nn

LAYERS = (1, 7, 14, 20, 27)
"""The convolutions that the paper shows."""
DEEPEST = 27
IMAGES = {"full": 64, "small": 32, "smoke": 16}
BATCH = 8
MOMENT = (
    "untrained networks: the paper doesn't say when it measured, but a ReLU network that keeps its "
    "variance is one before training, and its section 4.4 speaks of the initialization"
)


def config(activation: str, init: str, options: Options, seed: int) -> Config:
    """The network at a scale, with the data to look at it with.

    `init` is "own" for the published rule, the same factor in every convolution.
    """
    full = replace(
        solvers.plain(30, activation, solvers.OURS, "code", batch_norm=False),
        init=init,
        linear_std=None,
        seed=seed,
        data_dir=options.data_dir,
    )
    if options.scale == "smoke":
        return replace(scale.plain(full, "smoke"), data_dir=None)
    if options.data_dir is None:
        raise UserError(
            "data-dir: expected a folder of images with train/CLASS/ and val/CLASS/, got none"
        )
    return full


def looks_at(options: Options) -> tuple[Config, ...]:
    return (config("mpelu", "own", options, 0),)


def images(chosen: Config, options: Options) -> list[Tensor]:
    """Test images as the network sees them, [b, channels, size, size] each, drawn at random."""
    import torch

    from mpelu.lab import data

    dataset = data.load(chosen, torch.device("cpu"))
    count = min(IMAGES[options.scale], dataset.test_count)
    generator = torch.Generator().manual_seed(0)
    picked = torch.randperm(dataset.test_count, generator=generator)[:count]
    return [batch for batch, _ in dataset.test(picked.split(BATCH))]


def build(chosen: Config, batch: Tensor) -> nn.Module:
    """The network with initial weights, in evaluation mode."""
    from mpelu.lab.data.registry import find
    from mpelu.lab.training import network

    classes = find(chosen.data).num_classes
    return network.build(chosen, classes, batch.shape[1], batch.shape[2]).eval()


def after_convolutions(model: nn.Module) -> dict[int, str]:
    """Name of the activation after each convolution, by the convolution's number from 1."""
    return dict(enumerate(_activations(model), 1))


def _activations(model: nn.Module) -> Iterator[str]:
    from torch import nn

    children: list[tuple[str, Any]] = list(model.named_children())
    for (_, module), (name, _) in pairwise(children):
        if isinstance(module, nn.Conv2d):
            yield name
