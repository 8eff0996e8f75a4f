"""Batches of images that lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mpelu.lab.data.pictures import CHUNK, Pictures
from mpelu.lab.data.preprocess import Preprocess


class Memory:
    """Images on the training device.

    Whitening is a product with a matrix of 3072 x 3072 for CIFAR and would cost a tenth of a
    training step, so with it the whole set is normalised once, when it is first read.
    """

    def __init__(self, pictures: Pictures, preprocess: Preprocess, device: torch.device) -> None:
        self._images = pictures.images.to(device)
        self._labels = pictures.labels.to(device)
        self._preprocess = preprocess
        self._device = device
        self._whitened = preprocess.kind != "gcn-zca"

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Index, whole images and labels of each batch, on the device."""
        if not self._whitened:
            whitened = torch.empty(self._images.shape, device=self._device)
            for source, target in zip(
                self._images.split(CHUNK), whitened.split(CHUNK), strict=True
            ):
                target.copy_(self._preprocess.normalise(source))
            self._images = whitened
            self._whitened = True
        for batch in batches:
            index = batch.to(self._device)
            yield (
                index,
                self._images.index_select(0, index),
                self._labels.index_select(0, index),
            )
