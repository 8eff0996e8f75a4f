"""The network and images that `mpelu inspect` looks at."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from mpelu.init.graph import evaluating
from mpelu.lab import data
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.inspecting.learned import Learned, learned_parameters
from mpelu.lab.training import network
from mpelu.lab.training.trained import load_network
from mpelu.lab.training.trainer import example_images

_MOST_IMAGES = 64
_MOST_PIXELS = 2**19
"""Of a batch, so that a gradient takes about as much memory as in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is looked at."""

    config: Config
    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    """Images and labels of the test set."""
    which: str
    """"final", "best", "last" or "initial"."""
    history: Learned | None = None

    def mode(self) -> contextlib.AbstractContextManager[None]:
        """A trained network as it is; a new one with batch norm over each batch, no dropout."""
        if self.which == "initial":
            return evaluating(self.model.modules())
        return contextlib.nullcontext()


def of_run(run: Path, which: str, images: int, data_dir: str | None) -> Subject:
    """The network of a run folder, on images of its own test set.

    Raises:
        UserError: if run, weights or data can't be read.
    """
    restored = load_network(run, which)
    config = restored.config
    if data_dir is not None:
        config = replace(config, data_dir=data_dir)
    history = learned_parameters(run)
    device = _device(config)
    dataset = data.load(config, device)
    if (dataset.channels, dataset.size, len(dataset.classes)) != (
        restored.channels,
        restored.size,
        len(restored.classes),
    ):
        raise UserError(f"{run}: expected the data of the run, got other images or classes")
    return Subject(
        config=config,
        model=restored.model.to(device),
        batches=_batches(dataset, images),
        which=which,
        history=history,
    )


def of_config(config: Config, images: int) -> Subject:
    """The network a run of this config would start with.

    Raises:
        UserError: if network, initialization and data don't fit together.
    """
    network.check_name(config)
    device = _device(config)
    dataset = data.load(config, device)
    example = example_images(config, dataset) if config.init == "lsuv" else None
    channels, size = dataset.channels, dataset.size
    model = network.build(config, len(dataset.classes), channels, size, example)
    batches = _batches(dataset, images)
    network.check_size(model, channels, size, min(len(batch) for batch, _ in batches))
    return Subject(config=config, model=model.to(device), batches=batches, which="initial")


def _device(config: Config) -> torch.device:
    use_gpu = config.device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if use_gpu else "cpu")


def _batches(dataset: data.Dataset, images: int) -> list[tuple[Tensor, Tensor]]:
    """Spread over the test set, since folders come sorted by class."""
    count = min(images, dataset.test_count)
    index = torch.arange(count) * dataset.test_count // count
    size = max(1, min(_MOST_IMAGES, _MOST_PIXELS // dataset.size**2))
    parts = -(-count // size)
    # Of about equal sizes, so that batch norm never sees a small rest.
    return list(dataset.test(index.tensor_split(parts)))
