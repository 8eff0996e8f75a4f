"""Batches of images by index: from memory, or decoded from files by worker processes."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.utils import data

from mpelu.lab.data.folder import decode
from mpelu.lab.data.images import CHUNK, ImageFiles, LabeledImages
from mpelu.lab.data.preprocess import Preprocess
from mpelu.lab.errors import UserError

log = logging.getLogger(__name__)

MAX_DAMAGED = 0.001
"""Fraction of a split's files that may be damaged."""
_SAMPLE_BATCH = 100
_MAX_NAMED = 5
"""Files an error names at most."""
_MAX_WORKERS = 16

DecodedBatch = tuple[Tensor, Tensor, list[tuple[int, str]]]
"""Indices and images of the files that could be decoded; index and error of each other file."""


class BatchReader(Protocol):
    """Reads the images of one split."""

    def __len__(self) -> int: ...

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields indices [b], images and labels [b] of each batch, on the device.

        The images are whole, [b, channels, image_size, image_size]: uint8, or float32 if they have
        been normalized already. A batch may be smaller than asked for.
        """
        ...


class InMemoryReader:
    """Reads images that are kept on the training device.

    Whitening multiplies each image by a 3072 x 3072 matrix for CIFAR, which would take a tenth of a
    training step. So with whitening the whole split is normalized once, when it is first read.
    """

    def __init__(self, split: LabeledImages, preprocess: Preprocess, device: torch.device) -> None:
        self._images = split.images.to(device)
        self._labels = split.labels.to(device)
        self._preprocess = preprocess
        self._device = device

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """See `BatchReader.read`."""
        if self._preprocess.kind == "gcn-zca" and self._images.dtype == torch.uint8:
            whitened = torch.empty(self._images.shape, device=self._device)
            for raw, target in zip(self._images.split(CHUNK), whitened.split(CHUNK), strict=True):
                target.copy_(self._preprocess.normalize(raw))
            self._images = whitened
        for batch in batches:
            index = batch.to(self._device, non_blocking=True)
            yield (
                index,
                self._images.index_select(0, index),
                self._labels.index_select(0, index),
            )


class FileReader:
    """Reads image files, decoded by worker processes and sent to the device as bytes.

    A damaged file is reported once and left out of its batch.

    Args:
        files: the split.
        size: height and width the images are scaled to.
        channels: 1 or 3.
        device: device of the batches.
        max_pixels: files with more are taken for damaged.
    """

    def __init__(
        self, files: ImageFiles, size: int, channels: int, device: torch.device, max_pixels: int
    ) -> None:
        self._files = files
        self._decoder = _Decoder(files, size, channels, max_pixels)
        self._device = device
        self._labels = torch.tensor(files.labels, device=device)
        self._damaged: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._files.names)

    def sample(self, limit: int) -> Iterator[Tensor]:
        """Yields the images of at most `limit` evenly spaced files, in batches on the device."""
        count = min(limit, len(self))
        index = torch.arange(count) * len(self) // count
        for _, images, _ in self.read(index.split(_SAMPLE_BATCH)):
            yield images

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """See `BatchReader.read`.

        Raises:
            UserError: if more than 0.1% of the files are damaged, if none of a batch can be
                decoded, or if a worker process dies.
        """
        loader = data.DataLoader(
            self._decoder,
            batch_size=None,
            sampler=(batch.tolist() for batch in batches),
            num_workers=_worker_count(),
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # else it draws from the generator that training uses
        )
        died = ""
        try:
            for index, images, damaged in _started(loader):
                self._check(damaged)
                if not len(index):
                    names = [self._files.names[each] for each, _ in damaged]
                    raise UserError(
                        f"{self._files.folder}: all images of a batch are damaged: {_some(names)}"
                    )
                index = index.to(self._device, non_blocking=True)
                yield index, images.to(self._device, non_blocking=True), self._labels[index]
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            died = str(error).splitlines()[0]
        if died:
            # Not inside the except clause: its traceback would keep the other workers alive.
            raise UserError(f"{self._files.folder}: a process that decodes images died ({died})")

    def _check(self, damaged: list[tuple[int, str]]) -> None:
        for index, problem in damaged:
            if index not in self._damaged:
                self._damaged[index] = problem
                path = self._files.folder / self._files.names[index]
                log.warning("skipping %s, which can't be decoded (%s)", path, problem)
        if len(self._damaged) > MAX_DAMAGED * len(self):
            names = [self._files.names[each] for each in sorted(self._damaged)]
            raise UserError(
                f"{self._files.folder}: {len(names)} of {len(self)} images are damaged, more than "
                f"{MAX_DAMAGED:.1%}: {_some(names)}"
            )


class _Decoder(data.Dataset[DecodedBatch]):
    """Runs in the workers. An item is a whole batch, so that only bytes are sent back."""

    def __init__(self, files: ImageFiles, size: int, channels: int, max_pixels: int) -> None:
        self._files = files
        self._shape = (channels, size, size)
        self._max_pixels = max_pixels

    def __getitem__(self, batch: list[int]) -> DecodedBatch:
        channels, size, _ = self._shape
        images = torch.empty(len(batch), *self._shape, dtype=torch.uint8)
        kept: list[int] = []
        damaged: list[tuple[int, str]] = []
        for index in batch:
            path = self._files.folder / self._files.names[index]
            try:
                images[len(kept)] = decode(path, size, channels, self._max_pixels)
                kept.append(index)
            # Decoders raise errors of many types for damaged files.
            except Exception as error:
                damaged.append((index, f"{type(error).__name__}: {error}"))
        return torch.tensor(kept, dtype=torch.int64), images[: len(kept)], damaged


def _started(loader: data.DataLoader[DecodedBatch]) -> Iterator[DecodedBatch]:
    """Starts the workers with SIGINT and SIGTERM blocked.

    Those signals often go to a whole process group, and training needs images to finish its step.
    The workers end when this process does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with warnings.catch_warnings():
            # Python >= 3.12 warns about fork in a process with threads; the workers use nothing
            # that another thread might have locked.
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _worker_count() -> int:
    """One per available processor, at most 16; the processes of torchrun share them."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not available on this system
        count = os.cpu_count() or 1
    return min(max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), _MAX_WORKERS)
