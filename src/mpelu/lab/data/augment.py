"""Random crops and flips of whole batches, as tensor operations on their device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

PAD = {"none": 0, "pad-crop-flip": 4, "crop-flip": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """What happens to each sample of the training set in one epoch."""

    top: Tensor
    """First row of the crop in the padded image, int64 [n]."""
    left: Tensor
    flip: Tensor
    """Whether the crop is mirrored, bool [n]."""


def draw(seed: int, count: int, room: int, device: torch.device) -> Draws:
    """Draws for all samples at once, so that sample i's depend on (seed, i) alone.

    Args:
        seed: of the epoch.
        count: samples in the training set.
        room: positions a crop can start at, in each direction.
        device: where the draws are used; they are made on the CPU, the same for every device.
    """
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(room, (2, count), generator=generator).to(device)
    flip = torch.randint(2, (count,), generator=generator).to(device, torch.bool)
    return Draws(top=place[0], left=place[1], flip=flip)


def crop_flip(
    images: Tensor, top: Tensor, left: Tensor, flip: Tensor, *, size: int, pad: int
) -> Tensor:
    """Each image padded with zeros, cropped at its own place and mirrored if so drawn.

    Args:
        images: [b, channels, height, width] of any type.
        top, left: int64 [b], where the crop begins in the padded image.
        flip: bool [b].
        size: side of the crop.
        pad: zeros added on every side.

    Returns:
        [b, channels, size, size]
    """
    if pad:
        images = functional.pad(images, (pad, pad, pad, pad))
    count, channels, _, width = images.shape
    steps = torch.arange(size, device=images.device)
    rows = top[:, None] + steps
    columns = left[:, None] + torch.where(flip[:, None], size - 1 - steps, steps)
    places = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1)
    pixels = images.flatten(2).gather(2, places.expand(-1, channels, -1))
    return pixels.view(count, channels, size, size)


def centre_crop(images: Tensor, size: int) -> Tensor:
    """The middle of each image, [..., size, size]; a view."""
    height, width = images.shape[-2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]
