"""The untrained 30-layer network, for tables 7 and 8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.data import registry
from mpelu.lab.errors import UserError
from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import OURS, plain
from mpelu.lab.sweep.study import Options

if TYPE_CHECKING:
    from torch import Tensor, nn

LAYERS = (1, 7, 14, 20, 27)
"""The convolutions that the paper reports."""
IMAGES = {"full": 64, "small": 32, "smoke": 16}
BATCH = 8
MOMENT = (
    "measured before training: the paper doesn't say when it measured, but its ReLU network keeps "
    "the variance of an untrained one, and its section 4.4 is about initialization"
)


def config(activation: str, init: str, options: Options, seed: int) -> Config:
    """The network at a scale, with the data it is shown.

    Args:
        activation: name of the activation.
        init: "own" for the published rule, which has the same factor in every convolution.
        options: scale and data.
        seed: random seed.
    """
    full = replace(
        plain(30, activation, OURS, "code", batch_norm=False),
        init=init,
        linear_std=None,
        seed=seed,
        data_dir=options.data_dir,
    )
    if options.is_smoke:
        return replace(scale.plain(full, "smoke"), data_dir=None)
    if options.data_dir is None:
        raise UserError(
            "required here: a directory with images in train/CLASS/ and val/CLASS/",
            field="data_dir",
        )
    return full


def inspects(options: Options) -> tuple[Config, ...]:
    """The config whose data is needed."""
    return (config("mpelu", "own", options, 0),)


def images(chosen: Config, options: Options) -> list[Tensor]:
    """Batches of random test images as the network sees them, [b, channels, size, size] each."""
    import torch

    from mpelu.lab import data

    dataset = data.load(chosen, torch.device("cpu"))
    count = min(IMAGES[options.scale], dataset.test_count)
    generator = torch.Generator().manual_seed(0)
    picked = torch.randperm(dataset.test_count, generator=generator)[:count]
    return [batch for batch, _ in dataset.test(picked.split(BATCH))]


def build(chosen: Config, batch: Tensor) -> nn.Module:
    """The network with initial weights, in evaluation mode."""
    from mpelu.lab.training import network

    classes = registry.find(chosen.data).num_classes
    return network.build(chosen, classes, batch.shape[1], batch.shape[2]).eval()


def shrunk(options: Options) -> tuple[str, ...]:
    """What is scaled down, in phrases."""
    count = f"{IMAGES[options.scale]} images (the paper doesn't say how many)"
    if not options.is_smoke:
        return (count,)
    return (count, "digits instead of ImageNet", "1/16 of the width", "19x19 images")


def after_convolutions(model: nn.Module) -> dict[int, str]:
    """The name of the activation after each convolution, by the convolution's number from 1."""
    return dict(enumerate(_activations(model), 1))


def _activations(model: nn.Module) -> Iterator[str]:
    from torch import nn

    children: list[tuple[str, Any]] = list(model.named_children())
    for (_, module), (name, _) in pairwise(children):
        if isinstance(module, nn.Conv2d):
            yield name
