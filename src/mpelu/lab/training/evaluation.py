"""Loss and error of a network on test or validation images."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpelu.lab.config import Config
from mpelu.lab.training.distributed import World

if TYPE_CHECKING:
    from mpelu.lab.data import Dataset

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    config: Config,
    world: World | None = None,
    split: str = "test",
) -> tuple[float, float]:
    """Mean loss and error in % over the test or validation images, without damaged files.

    Args:
        model: the network; its mode is restored.
        dataset: data set whose images are used, each once.
        config: batch size, precision and memory format.
        world: the processes that share the work; None for this one alone.
        split: "test", or "validation" for a data set that has validation images.
    """
    device = next(model.parameters()).device
    world = World(device=device) if world is None else world
    read, images_in_split = dataset.test, dataset.test_count
    if split == "validation":
        read, images_in_split = dataset.validation, dataset.validation_count
    mine = world.share(torch.arange(images_in_split))
    was_training = model.training
    model.eval()
    # Apple's GPUs have no double precision.
    wide = torch.float32 if device.type == "mps" else torch.float64
    loss = torch.zeros((), dtype=wide, device=device)
    wrong = torch.zeros((), dtype=wide, device=device)
    count = 0
    with torch.no_grad(), autocast(config, device):
        for images, labels in read(mine.split(config.batch_size) if len(mine) else []):
            logits = model(to_memory_format(images, config)).float()
            loss += F.cross_entropy(logits, labels, reduction="sum")
            wrong += (logits.argmax(1) != labels).sum()
            count += len(labels)
    model.train(was_training)
    total_loss, total_wrong, total = world.sum([loss.item(), wrong.item(), float(count)])
    return total_loss / total, 100 * total_wrong / total


def autocast(config: Config, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast to the precision of the config, if it isn't fp32."""
    if config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, _DTYPES[config.precision])


def to_memory_format(images: Tensor, config: Config) -> Tensor:
    """Images in the memory format of the config."""
    return images.to(memory_format=torch.channels_last) if config.channels_last else images
