"""Labeled images as they are read: in memory, or as files that are still to be decoded.

One data set comes with the package, in digits.npz: 1797 handwritten digits, gray images of 8x8
pixels. digits.txt beside it names their source and licence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from mpelu.lab.errors import UserError
from mpelu.lab.files import digest

if TYPE_CHECKING:
    from mpelu.lab.data.registry import DataSetInfo

CHUNK = 1000
"""Images that are converted to floating point at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabeledImages:
    """The images of a split in memory: uint8 [n, channels, height, width] and int64 [n]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """1 for gray images, 3 for RGB."""
        return self.images.shape[1]

    def take(self, index: Tensor) -> LabeledImages:
        """Returns the images of these indices, int64 [m], in their order."""
        return LabeledImages(images=self.images[index], labels=self.labels[index])

    def to(self, device: torch.device) -> LabeledImages:
        """Returns the same split on a device."""
        return LabeledImages(images=self.images.to(device), labels=self.labels.to(device))

    def resized(self, size: int) -> LabeledImages:
        """Returns the same split with images of size x size."""
        return replace(self, images=resize(self.images, size))

    def fingerprint(self) -> str:
        """Returns the SHA-256 of shape, pixels and labels."""
        arrays = (self.images.contiguous().numpy(), self.labels.contiguous().numpy())
        return digest(repr(tuple(self.images.shape)).encode(), *arrays)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFiles:
    """The image files of a split.

    They take turns by class (the first file of each class, then the second of each, ...), so that
    the first n files cover the classes evenly.
    """

    folder: Path
    names: list[str]
    """Paths relative to `folder`, with forward slashes."""
    sizes: list[int]
    """File sizes in bytes."""
    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> ImageFiles:
        """Returns the files of these indices, int64 [m], in their order."""
        chosen = index.tolist()
        return ImageFiles(
            folder=self.folder,
            names=[self.names[each] for each in chosen],
            sizes=[self.sizes[each] for each in chosen],
            labels=[self.labels[each] for each in chosen],
        )

    def fingerprint(self) -> str:
        """Returns the SHA-256 of names, sizes and labels: reading all of ImageNet takes hours."""
        rows = zip(self.names, self.sizes, self.labels, strict=True)
        return digest("\n".join(f"{name}\t{size}\t{label}" for name, size, label in rows))


Split = LabeledImages | ImageFiles


class Splits(NamedTuple):
    """A data set as it is read. All splits are in memory, or all are files."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    """Class names by label."""
    validation: Split | None = None
    """Images to choose by, if the data set comes with some."""
    note: str = ""
    """Which images are the test set, in words, where that isn't obvious."""


def first(split: Split, limit: int | None) -> Split:
    """Returns the first `limit` images of a split, or all of them if None."""
    return split if limit is None else split.take(torch.arange(min(limit, len(split))))


def hold_out(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Draws validation images from training images, the same share of each class.

    Args:
        labels: classes of the training images, int64 [n].
        share: share of the images to hold out, above 0 and below 1.
        seed: seed of the draw.

    Returns:
        Indices of the images that are left for training and of those that are held out, both
        increasing. Each class gives its share of images, rounded up or down.

    Raises:
        UserError: if nothing would be held out, or nothing left.

    Example:
        >>> kept, held = hold_out(torch.tensor([0, 1] * 4), 0.25, seed=0)
        >>> len(kept), sorted((held % 2).tolist())
        (6, [0, 1])
    """
    count = len(labels)
    number = round(share * count)
    if not 0 < number < count:
        raise UserError(
            f"expected a share that leaves images on both sides, got {share:g} of {count}",
            field="validation",
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    # The images of a class stand together in random order; evenly spaced ones are held out.
    place = torch.arange(count)
    is_held = torch.zeros(count, dtype=torch.bool)
    is_held[order] = (place + 1) * number // count > place * number // count
    return place[~is_held], place[is_held]


def resize(images: Tensor, size: int) -> Tensor:
    """Scales images to size x size with bilinear interpolation, antialiased when they shrink.

    Args:
        images: uint8 [n, channels, height, width].
        size: the new height and width.

    Returns:
        uint8 [n, channels, size, size].

    Example:
        >>> resize(torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8)[None, None], 4)[0, 0, 0]
        tensor([  0,  25,  75, 100], dtype=torch.uint8)
    """
    if images.shape[-2:] == (size, size):
        return images
    result = torch.empty(*images.shape[:2], size, size, dtype=torch.uint8)
    for start in range(0, len(images), CHUNK):
        part = functional.interpolate(
            images[start : start + CHUNK].float(),
            (size, size),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )
        result[start : start + CHUNK] = part.round_().clamp_(0, 255)
    return result


DIGITS = Path(__file__).with_name("digits.npz")


def read_digits(info: DataSetInfo, data_dir: Path | None) -> Splits:
    """Reads the 1437 training and 360 test images; the split is always the same.

    With the images sorted by class, every fifth goes to the test set, so each class contributes a
    fifth of its images. Both splits then keep the original order. Pixel values from 0 to 16 become
    0 to 255.
    """
    with numpy.load(DIGITS) as arrays:
        images = torch.from_numpy(arrays["images"]).double().mul(255 / 16).round().byte()[:, None]
        labels = torch.from_numpy(arrays["labels"]).long()
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    in_test[labels.argsort(stable=True)[::5]] = True
    train = LabeledImages(images=images[~in_test], labels=labels[~in_test])
    test = LabeledImages(images=images[in_test], labels=labels[in_test])
    return Splits(train, test, tuple("0123456789"))
