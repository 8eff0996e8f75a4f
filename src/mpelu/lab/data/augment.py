"""Random crops and flips of whole batches, as tensor operations on their device.

A crop is a number, its code: (top * room + left) * 2 + flip, where room is how many places a crop
can start at in each direction. Few codes are possible for small images, so which pixel goes where
is looked up rather than computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

PAD = {"pad-crop-flip": 4, "crop-flip": 0}
_LARGEST_TABLE = 1 << 22


class Cropper:
    """Crops `size` x `size` out of images padded with zeros, and mirrors half of them.

    Args:
        whole: side of the images.
        size: side of the crops.
        pad: zeros around an image.
        device: of the images.
    """

    def __init__(self, *, whole: int, size: int, pad: int, device: torch.device) -> None:
        self._whole = whole
        self._size = size
        self._pad = pad
        self._device = device
        self.room = whole + 2 * pad - size + 1
        self.codes = 2 * self.room**2
        """How many there are."""
        self._table: tuple[Tensor, Tensor] | None = None
        if self.codes * size**2 <= _LARGEST_TABLE:
            self._table = self._compute(torch.arange(self.codes, device=device))

    def draw(self, seed: int, count: int) -> Tensor:
        """Codes int64 [count], for all samples at once: sample i's depends on (seed, i) alone.

        They are drawn on the CPU, so they are the same whatever the device.
        """
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.codes, (count,), generator=generator).to(self._device)

    def crop(self, images: Tensor, codes: Tensor) -> tuple[Tensor, Tensor | None]:
        """The crop of each image.

        Args:
            images: [b, channels, whole, whole] of any type.
            codes: int64 [b].

        Returns:
            [b, channels, size, size] with arbitrary values in the padding, and a float mask
            [b, 1, size, size] that is 0 there and 1 elsewhere; None without padding.
        """
        if self._table is None:
            places, inside = self._compute(codes)
        else:
            places, inside = (each.index_select(0, codes) for each in self._table)
        count, channels = images.shape[:2]
        pixels = images.flatten(2).gather(2, places[:, None].expand(-1, channels, -1))
        mask = inside.view(count, 1, self._size, self._size) if self._pad else None
        return pixels.view(count, channels, self._size, self._size), mask

    def _compute(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """For each pixel of the crops: its place in the flattened image, and 1 or 0 in padding."""
        steps = torch.arange(self._size, device=codes.device)
        flip = (codes % 2 == 1)[:, None]
        left = (codes // 2 % self.room)[:, None] - self._pad
        top = (codes // 2 // self.room)[:, None] - self._pad
        rows = top + steps
        columns = left + torch.where(flip, self._size - 1 - steps, steps)
        last = self._whole - 1
        places = rows.clamp(0, last)[:, :, None] * self._whole + columns.clamp(0, last)[:, None, :]
        rows_inside, columns_inside = ((each >= 0) & (each <= last) for each in (rows, columns))
        inside = rows_inside[:, :, None] & columns_inside[:, None, :]
        return places.flatten(1), inside.flatten(1).float()


def centre_crop(images: Tensor, size: int) -> Tensor:
    """The middle of each image, [..., size, size]; a view."""
    height, width = images.shape[-2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]
