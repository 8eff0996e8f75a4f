"""A data set as training sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from mpelu.lab.data.augment import PAD, centre_crop, crop_flip, draw
from mpelu.lab.data.preprocess import Preprocess


class Source(Protocol):
    """Where the images of one half come from."""

    def __len__(self) -> int: ...

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Index, normalised whole images and labels of each batch, on the device."""
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
        self._augment = augment
        self._room = whole + 2 * PAD[augment] - preprocess.size + 1
        self._device = device

    def train(self, batches: Iterable[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented training batches.

        Args:
            batches: int64 index tensors into the training set, on the CPU.
            seed: of the epoch. Crop and flip of sample i depend on (seed, i) alone.

        Yields:
            float32 [b, channels, size, size] and int64 [b], on the device.
        """
        if self._augment == "none":
            yield from self._middle(self._train, batches)
            return
        draws = draw(seed, self.train_count, self._room, self._device)
        for index, images, labels in self._train.read(batches):
            yield (
                crop_flip(
                    images,
                    draws.top[index],
                    draws.left[index],
                    draws.flip[index],
                    size=self.size,
                    pad=PAD[self._augment],
                ),
                labels,
            )

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
            yield centre_crop(images, self.size).contiguous(), labels
