"""Random crops and flips of whole batches, as tensor operations on the device.

A crop is encoded as a number, (top * positions + left) * 2 + flip, where `positions` is the number
of places a crop can start at in each direction. Small images have few codes, so the source pixel of
every target pixel is looked up in a table instead of computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

PADDING = {"pad-crop-flip": 4, "crop-flip": 0}
"""Pixels of padding on each side, by Config's `augment`."""
_LARGEST_TABLE = 1 << 22


class RandomCrop:
    """Crops `size` x `size` out of images padded with zeros, and mirrors half of them.

    Args:
        image_size: height and width of the images.
        size: height and width of the crops.
        padding: zeros added on each side of an image.
        device: device of the images.
    """

    def __init__(self, *, image_size: int, size: int, padding: int, device: torch.device) -> None:
        self._image_size = image_size
        self._size = size
        self._padding = padding
        self._device = device
        self.positions = image_size + 2 * padding - size + 1
        self.code_count = 2 * self.positions**2
        self._table: tuple[Tensor, Tensor] | None = None
        if self.code_count * size**2 <= _LARGEST_TABLE:
            self._table = self._source_pixels(torch.arange(self.code_count, device=device))

    def draw(self, seed: int, count: int) -> Tensor:
        """Draws the codes of all samples of an epoch; that of sample i depends on (seed, i) alone.

        The codes are drawn on the CPU, so they are the same on every device.

        Returns:
            int64 [count].
        """
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.code_count, (count,), generator=generator).to(self._device)

    def __call__(self, images: Tensor, codes: Tensor) -> tuple[Tensor, Tensor | None]:
        """Crops each image.

        Args:
            images: [b, channels, image_size, image_size] of any dtype.
            codes: int64 [b].

        Returns:
            The crops [b, channels, size, size], with arbitrary values in the padding, and a float
            mask [b, 1, size, size] that is 0 in the padding and 1 elsewhere, or None without
            padding.
        """
        if self._table is None:
            pixels, inside = self._source_pixels(codes)
        else:
            pixels, inside = (each.index_select(0, codes) for each in self._table)
        count, channels = images.shape[:2]
        crops = images.flatten(2).gather(2, pixels[:, None].expand(-1, channels, -1))
        mask = inside.view(count, 1, self._size, self._size) if self._padding else None
        return crops.view(count, channels, self._size, self._size), mask

    def _source_pixels(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Index of each crop pixel in the flattened image, and 1 inside the image, 0 in padding."""
        steps = torch.arange(self._size, device=codes.device)
        flip = (codes % 2 == 1)[:, None]
        left = (codes // 2 % self.positions)[:, None] - self._padding
        top = (codes // 2 // self.positions)[:, None] - self._padding
        rows = top + steps
        columns = left + torch.where(flip, self._size - 1 - steps, steps)
        last = self._image_size - 1
        pixels = (
            rows.clamp(0, last)[:, :, None] * self._image_size + columns.clamp(0, last)[:, None, :]
        )
        rows_inside, columns_inside = ((each >= 0) & (each <= last) for each in (rows, columns))
        inside = rows_inside[:, :, None] & columns_inside[:, None, :]
        return pixels.flatten(1), inside.flatten(1).float()


def center_crop(images: Tensor, size: int) -> Tensor:
    """Returns a view of the center of each image, [..., size, size].

    Example:
        >>> center_crop(torch.arange(16).view(4, 4), 2)
        tensor([[ 5,  6],
                [ 9, 10]])
    """
    height, width = images.shape[-2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]
