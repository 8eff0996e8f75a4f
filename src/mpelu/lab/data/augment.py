"""Random crops and flips of training images, the same for a seed, an epoch and an image."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

PADDING = {"pad-crop-flip": 4, "crop-flip": 0}
"""Pixels of padding on each side, by Config's `augment`."""
RESIZED = "resized-crop-flip"
AREAS = (0.08, 1.0)
"""Smallest and largest share of an image's area in a resized crop."""
RATIOS = (3 / 4, 4 / 3)
"""Smallest and largest ratio of width to height of a resized crop."""
_TRIES = 10

Region = Callable[[int, int], list[int]]
"""Function from the height and width of an image to top, left, height and width of a part of it,
and 1 if the part is to be mirrored, else 0."""


def make_crop(
    augment: str, image_size: int, size: int, device: torch.device
) -> RandomCrop | RandomResizedCrop:
    """Returns the crop that Config's `augment` names."""
    if augment == RESIZED:
        return RandomResizedCrop(image_size=image_size, size=size, device=device)
    padding = PADDING[augment]
    return RandomCrop(image_size=image_size, size=size, padding=padding, device=device)


class RandomCrop:
    """Crops `size` x `size` out of images padded with zeros, and mirrors half of them.

    Args:
        image_size: height and width of the images.
        size: height and width of the crops.
        padding: zeros added on each side of an image.
        device: device of the images.
    """

    interpolates = False

    def __init__(self, *, image_size: int, size: int, padding: int, device: torch.device) -> None:
        self._image_size = image_size
        self._size = size
        self._padding = padding
        self._device = device
        self.positions = image_size + 2 * padding - size + 1
        self.code_count = 2 * self.positions**2

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
        count, channels, last = len(images), images.shape[1], self._image_size - 1
        steps = torch.arange(self._size, device=codes.device)
        flip = (codes % 2 == 1)[:, None]
        left = (codes // 2 % self.positions)[:, None] - self._padding
        top = (codes // 2 // self.positions)[:, None] - self._padding
        rows, columns = top + steps, left + torch.where(flip, self._size - 1 - steps, steps)
        lines = rows.clamp(0, last)[:, :, None] * self._image_size
        pixels = (lines + columns.clamp(0, last)[:, None, :]).view(count, 1, self._size**2)
        crops = images.flatten(2).gather(2, pixels.expand(-1, channels, -1))
        crops = crops.view(count, channels, self._size, self._size)
        if not self._padding:
            return crops, None
        rows_inside, columns_inside = ((each >= 0) & (each <= last) for each in (rows, columns))
        return crops, (rows_inside[:, :, None] & columns_inside[:, None, :])[:, None].float()


class RandomResizedCrop:
    """Scales a random part of each image to `size` x `size`, and mirrors half of them.

    Share of the area and logarithm of the aspect ratio are uniform within `AREAS` and `RATIOS`. Of
    ten draws, the first that fits into the image counts. If none does, which takes a very long
    image, the part is the largest in the center whose ratio is within `RATIOS`.

    Args:
        image_size: height and width of images in memory.
        size: height and width of the crops.
        device: device of images in memory.
    """

    interpolates = True

    def __init__(self, *, image_size: int, size: int, device: torch.device) -> None:
        self.size = size
        self._image_size = image_size
        self._device = device

    def numbers(self, seed: int, count: int) -> Tensor:
        """Draws the numbers that decide each crop of an epoch; row i depends on (seed, i) alone.

        Returns:
            float32 [count, 3 + 2 * tries] from 0 to 1, on the CPU.
        """
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(count, 3 + 2 * _TRIES, generator=generator)

    def draw(self, seed: int, count: int) -> Tensor:
        """Draws the codes of all samples of an epoch; that of sample i depends on (seed, i) alone.

        Returns:
            int64 [count, 5] on the device: what `boxes` returns for images of `image_size`.
        """
        numbers = self.numbers(seed, count)
        return self.boxes(numbers, self._image_size, self._image_size).to(self._device)

    def boxes(self, numbers: Tensor, height: int, width: int) -> Tensor:
        """Returns the parts of images of one size.

        Args:
            numbers: rows of what `numbers` returned, [b, 3 + 2 * tries].
            height: height of the images.
            width: width of the images.

        Returns:
            int64 [b, 5]: top, left, height, width, and 1 if the crop is mirrored, else 0.
        """
        place, areas, ratios = numbers.double().split([3, _TRIES, _TRIES], dim=1)
        area = (AREAS[0] + (AREAS[1] - AREAS[0]) * areas) * height * width
        low, high = map(math.log, RATIOS)
        ratio = (low + (high - low) * ratios).exp()
        heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
        fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
        # A last column, for where no draw fits.
        highest = min(height, max(1, round(width / RATIOS[0])))
        widest = min(width, max(1, round(height * RATIOS[1])))
        first = torch.cat([fits, fits.new_ones(len(fits), 1)], 1).int().argmax(1, keepdim=True)
        chosen = [
            torch.cat([each, each.new_full((len(each), 1), last)], 1).gather(1, first)
            for each, last in ((heights, highest), (widths, widest))
        ]
        sizes = torch.cat(chosen, 1)
        room = torch.tensor([height, width]) - sizes
        corners = (place[:, :2] * (room + 1)).floor()
        corners = torch.where(first < _TRIES, corners, (room / 2).floor())
        return torch.cat([corners, sizes, (place[:, 2:] < 0.5).double()], 1).long()

    def region(self, numbers: Tensor) -> Region:
        """Returns the part of an image whose size is still to be read, from its row of numbers."""
        return lambda height, width: self.boxes(numbers[None], height, width)[0].tolist()

    def __call__(self, images: Tensor, boxes: Tensor) -> tuple[Tensor, None]:
        """Crops and scales each image, with bilinear interpolation, antialiased where it shrinks.

        Every crop is computed on its own, in the same order whatever else is in the batch.

        Args:
            images: float32 [b, channels, height, width].
            boxes: int64 [b, 5], as `boxes` returns them.

        Returns:
            The crops, float32 [b, channels, size, size], and None, because they need no mask.
        """
        count, channels, height, width = images.shape
        top, left, heights, widths, mirrored = boxes[:, :, None].unbind(1)
        narrow = images.new_zeros(count, channels, self.size, width)
        for place, weight in self._taps(top, heights, height):
            index = place[:, None, :, None].expand(-1, channels, -1, width)
            narrow += images.gather(2, index) * weight[:, None, :, None]
        crops = images.new_zeros(count, channels, self.size, self.size)
        for place, weight in self._taps(left, widths, width):
            place, weight = (
                torch.where(mirrored == 1, each.flip(1), each) for each in (place, weight)
            )
            index = place[:, None, None, :].expand(-1, channels, self.size, -1)
            crops += narrow.gather(3, index) * weight[:, None, None, :]
        return crops, None

    def _taps(self, start: Tensor, length: Tensor, whole: int) -> list[tuple[Tensor, Tensor]]:
        """The pixels of a line that the pixels of its crop are made of, and their weights.

        Args:
            start: first pixel of each part, int64 [b, 1].
            length: pixels of each part, int64 [b, 1].
            whole: pixels of the line.

        Returns:
            Pairs of int64 and float32 [b, size], to be summed.
        """
        scale = length.float() / self.size
        reach = scale.clamp(min=1)  # of the triangle around the center of a crop's pixel
        center = start + scale * (torch.arange(self.size, device=start.device) + 0.5)
        first = (center - reach + 0.5).floor()
        places, weights = [], []
        for step in range(math.ceil(2 * max(1, whole / self.size))):
            place = first + step
            weight = (1 - (place + 0.5 - center).abs() / reach).clamp(min=0)
            weights.append(weight * ((place >= start) & (place < start + length)))
            places.append(place.clamp(0, whole - 1).long())
        total = torch.zeros_like(center)
        for weight in weights:
            total += weight
        return [(place, weight / total) for place, weight in zip(places, weights, strict=True)]
