"""Batches of images that lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mpelu.lab.data.pictures import CHUNK, Pictures
from mpelu.lab.data.preprocess import Preprocess


class Memory:
    """Images on the training device, normalised batch by batch.

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
        """Index, normalised whole images and labels of each batch, on the device."""
        if not self._whitened:
            self._images = torch.cat(
                [self._preprocess.normalise(part) for part in self._images.split(CHUNK)]
            )
            self._whitened = True
        for batch in batches:
            index = batch.to(self._device)
            images = self._images.index_select(0, index)
            if images.dtype == torch.uint8:
                images = self._preprocess.normalise(images)
            yield index, images, self._labels.index_select(0, index)
