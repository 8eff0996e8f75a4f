"""A data set as training sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from mpelu.lab.data.augment import PAD, Cropper
from mpelu.lab.data.preprocess import Preprocess


class Source(Protocol):
    """Where the images of one half come from."""

    def __len__(self) -> int: ...

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Index, images and labels of each batch, on the device.

        The images are whole, [b, channels, side, side]: uint8, or float32 if already normalised.
        """
        ...


class Dataset:
    """Training and test images as batches for a network. `load` makes them.

    Attributes:
        name: of Config's `data`.
        classes: their names, by label.
        channels: of the images.
        size: side of the images the network sees.
        train_count, test_count: number of images.
        fingerprint: SHA-256 over the data used.
        preprocess: what was fitted on the training set.
    """

    def __init__(
        self,
        *,
        name: str,
        classes: tuple[str, ...],
        channels: int,
        whole: int,
        fingerprint: str,
        preprocess: Preprocess,
        train: Source,
        test: Source,
        augment: str,
        device: torch.device,
    ) -> None:
        self.name = name
        self.classes = classes
        self.channels = channels
        self.size = preprocess.size
        self.train_count = len(train)
        self.test_count = len(test)
        self.fingerprint = fingerprint
        self.preprocess = preprocess
        self._train = train
        self._test = test
        self._cropper = (
            None
            if augment == "none"
            else Cropper(whole=whole, size=self.size, pad=PAD[augment], device=device)
        )

    def describe(self) -> dict[str, Any]:
        """Name, classes, shape, counts and fingerprint, as data.json holds them."""
        names = ("name", "classes", "channels", "size", "train_count", "test_count", "fingerprint")
        described = {name: getattr(self, name) for name in names}
        return {**described, "classes": list(self.classes)}

    def train(self, batches: Iterable[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented training batches.

        Args:
            batches: int64 index tensors into the training set, on the CPU.
            seed: of the epoch. Crop and flip of sample i depend on (seed, i) alone.

        Yields:
            float32 [b, channels, size, size] and int64 [b], on the device.
        """
        if self._cropper is None:
            yield from self._middle(self._train, batches)
            return
        codes = self._cropper.draw(seed, self.train_count)
        for index, images, labels in self._train.read(batches):
            if not self.preprocess.pointwise:
                images = self.preprocess.normalise(images)
            crops, mask = self._cropper.crop(images, codes.index_select(0, index))
            crops = self.preprocess.normalise(crops)
            # The padding is the mean: 0 after normalising.
            yield crops if mask is None else crops.mul_(mask), labels

    def test(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Test batches, not augmented: the middle of each image.

        Args:
            batches: int64 index tensors into the test set, on the CPU.

        Yields:
            float32 [b, channels, size, size] and int64 [b], on the device.
        """
        yield from self._middle(self._test, batches)

    def _middle(self, source: Source, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for _, images, labels in source.read(batches):
            yield self.preprocess(images), labels
