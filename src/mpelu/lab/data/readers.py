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

_SAMPLE_BATCH = 100
_MAX_NAMED = 5
"""Files an error names at most."""
_MAX_WORKERS = 16

DecodedBatch = tuple[Tensor, Tensor, list[tuple[int, str, bool]]]
"""Indices and images of the files that could be decoded; of each other file its index, the error,
and whether it could be read at all."""


def most_damaged(count: int) -> int:
    """How many of a split's files may be damaged: one in 20 but at most 10, or one in 1000 if those
    are more; always one, if there are others.

    Example:
        >>> [most_damaged(count) for count in (1, 2, 40, 100, 1000, 1_281_167)]
        [0, 1, 2, 5, 10, 1281]
    """
    return min(count - 1, max(1, min(10, count // 20), count // 1000))


class BatchReader(Protocol):
    """Reads the images of one split."""

    def __len__(self) -> int: ...

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields indices [b], images and labels [b] of each batch, on the device.

        The images are whole, [b, channels, image_size, image_size]: uint8, or float32 if they have
        been normalized already. A batch may be smaller than asked for, or empty.
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

    A damaged file is reported once and left out of its batch. Whether it is depends on the file
    alone, so the batches are the same however many workers there are. A file that can't be read
    at all is an error, because that may change.

    Args:
        files: the split.
        size: height and width the images are scaled to.
        channels: 1 or 3.
        device: device of the batches.
        max_pixels: files with more are taken for damaged.
        workers: worker processes; 0 decodes in this one, None has one per available processor.
        persists: whether the workers stay from one call of `read` to the next, until `close`.
    """

    def __init__(
        self,
        files: ImageFiles,
        size: int,
        channels: int,
        device: torch.device,
        max_pixels: int,
        *,
        workers: int | None = None,
        persists: bool = False,
    ) -> None:
        self._files = files
        self._workers = workers
        self._persists = persists
        self._kept: tuple[data.DataLoader[DecodedBatch], _Sampler] | None = None
        self._is_reading = False
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
            if len(images):
                yield images

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """See `BatchReader.read`.

        Raises:
            UserError: if more than `most_damaged` files are damaged, if one can't be read, or if a
                worker process dies.
        """
        is_first, self._is_reading = not self._is_reading, True
        # Whoever reads while another does has workers of its own.
        loader, sampler = self._kept if is_first and self._kept else self._make_loader(is_first)
        sampler.batches = batches
        died = ""
        try:
            for index, images, damaged in _started(loader):
                self._check(damaged)
                index = index.to(self._device, non_blocking=True)
                yield index, images.to(self._device, non_blocking=True), self._labels[index]
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            died = str(error).splitlines()[0]
        finally:
            if is_first:
                self._is_reading = False
        if died:
            self._kept = None
            del loader, sampler  # the error's traceback would keep the workers alive
            raise UserError(f"{self._files.folder}: a process that decodes images died ({died})")

    def close(self) -> None:
        """Ends the workers that have stayed."""
        self._kept = None

    def _make_loader(self, is_first: bool) -> tuple[data.DataLoader[DecodedBatch], _Sampler]:
        count = self._workers
        if count is None:
            # On a GPU, the threads of the CPU have nothing else to do.
            threads = torch.get_num_threads() if self._device.type == "cpu" else None
            count = _worker_count(threads)
        persists = self._persists and is_first and count > 0
        sampler = _Sampler()
        loader = data.DataLoader(
            self._decoder,
            batch_size=None,
            sampler=sampler,
            num_workers=count,
            persistent_workers=persists,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # else it draws from the generator that training uses
        )
        if persists:
            self._kept = loader, sampler
        return loader, sampler

    def _check(self, damaged: list[tuple[int, str, bool]]) -> None:
        for index, problem, is_readable in damaged:
            path = self._files.folder / self._files.names[index]
            if not is_readable:
                raise UserError(f"{path}: can't be read ({problem})")
            if index not in self._damaged:
                self._damaged[index] = problem
                log.warning("skipping %s, which can't be decoded (%s)", path, problem)
        most = most_damaged(len(self))
        if len(self._damaged) > most:
            names = [self._files.names[each] for each in sorted(self._damaged)]
            raise UserError(
                f"{self._files.folder}: {len(names)} of {len(self)} images are damaged, where at "
                f"most {most} may be; remove or replace them: {_some(names)}"
            )


class _Sampler:
    """The batches of one call of `FileReader.read`, for a loader that outlives it."""

    batches: Iterable[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.batches)


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
        damaged: list[tuple[int, str, bool]] = []
        for index in batch:
            path = self._files.folder / self._files.names[index]
            try:
                images[len(kept)] = decode(path, size, channels, self._max_pixels)
                kept.append(index)
            # Decoders raise errors of many types for damaged files.
            except Exception as error:
                # Only what the system reports has a number.
                is_readable = not (isinstance(error, MemoryError) or getattr(error, "errno", None))
                damaged.append((index, f"{type(error).__name__}: {error}", is_readable))
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


def _worker_count(threads: int | None = None) -> int:
    """One per available processor, at most 16; the processes of torchrun share them.

    Args:
        threads: the most of them, where training computes on the same processors.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not available on this system
        count = os.cpu_count() or 1
    count = max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return min(count, count if threads is None else threads, _MAX_WORKERS)
