"""Image files decoded by worker processes, batch by batch and in order."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils import data

from mpelu.lab.data.folder import Files
from mpelu.lab.data.images import decode
from mpelu.lab.errors import UserError

log = logging.getLogger(__name__)

MOST_DAMAGED = 0.001
"""Share of a half's files that may be damaged."""
SAMPLE = 100
"""Images read at once for fitting."""
NAMED = 5
"""Files an error names at most."""

Batch = tuple[Tensor, Tensor, list[tuple[int, str]]]
"""Index and uint8 images of the files that could be read; index and problem of the others."""


class _Decoder(data.Dataset[Batch]):
    """Runs in the workers: a whole batch is an item, and bytes are all that is sent back."""

    def __init__(self, files: Files, side: int, channels: int) -> None:
        self._files = files
        self._side = side
        self._channels = channels

    def __getitem__(self, batch: list[int]) -> Batch:
        images = torch.empty(len(batch), self._channels, self._side, self._side, dtype=torch.uint8)
        kept: list[int] = []
        damaged: list[tuple[int, str]] = []
        for index in batch:
            path = self._files.folder / self._files.names[index]
            try:
                images[len(kept)] = decode(path, self._side, self._channels)
                kept.append(index)
            # Decoders answer damage with errors of many kinds.
            except Exception as error:
                damaged.append((index, f"{type(error).__name__}: {error}"))
        return torch.tensor(kept, dtype=torch.int64), images[: len(kept)], damaged


class Reader:
    """Reads batches of one half. A damaged file is named, counted and left out of its batch.

    Args:
        files: of the half.
        side: images are scaled to this.
        channels: 1 or 3.
        pin: into page-locked memory, for a GPU.
    """

    def __init__(self, files: Files, side: int, channels: int, *, pin: bool = False) -> None:
        self._files = files
        self._decoder = _Decoder(files, side, channels)
        self._pin = pin
        self._damaged: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._files.names)

    @property
    def labels(self) -> list[int]:
        """Of all files."""
        return self._files.labels

    def sample(self, most: int) -> Iterator[Tensor]:
        """Images of at most `most` files, evenly spaced, uint8 [b, channels, side, side] each."""
        count = min(most, len(self))
        index = torch.arange(count) * len(self) // count
        for _, images in self.read(index.split(SAMPLE)):
            yield images

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Index and uint8 images [b, channels, side, side] of each batch, on the CPU.

        Raises:
            UserError: if more than 0.1 % of the files are damaged or none of a batch can be read,
                or a worker dies.
        """
        loader = data.DataLoader(
            self._decoder,
            batch_size=None,
            sampler=(batch.tolist() for batch in batches),
            num_workers=_workers(),
            pin_memory=self._pin,
            generator=torch.Generator(),  # else it draws from the one that training uses
        )
        died = ""
        try:
            for index, images, damaged in _started(loader):
                self._count(damaged)
                if not len(index):
                    names = [self._files.names[each] for each, _ in damaged]
                    raise UserError(
                        f"{self._files.folder}: expected an image that can be read in each batch, "
                        f"got one without: {_some(names)}"
                    )
                yield index, images
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            died = str(error).splitlines()[0]
        if died:
            # Not inside the except clause: its traceback would keep the other workers alive.
            raise UserError(f"{self._files.folder}: a process that decodes images died ({died})")

    def _count(self, damaged: list[tuple[int, str]]) -> None:
        for index, problem in damaged:
            if index not in self._damaged:
                self._damaged[index] = problem
                path = self._files.folder / self._files.names[index]
                log.warning("%s can't be read and is left out (%s)", path, problem)
        if len(self._damaged) > MOST_DAMAGED * len(self):
            names = [self._files.names[each] for each in sorted(self._damaged)]
            raise UserError(
                f"{self._files.folder}: expected at most {MOST_DAMAGED:.1%} damaged files, got "
                f"{len(names)} of {len(self)}: {_some(names)}"
            )


class Decoded:
    """Batches of one half, decoded by workers and brought to the device as bytes."""

    def __init__(self, reader: Reader, device: torch.device) -> None:
        self._reader = reader
        self._device = device
        self._labels = torch.tensor(reader.labels, device=device)

    def __len__(self) -> int:
        return len(self._reader)

    def read(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Index, whole images and labels of each batch, on the device."""
        for index, images in self._reader.read(batches):
            index = index.to(self._device, non_blocking=True)
            images = images.to(self._device, non_blocking=True)
            yield index, images, self._labels[index]


def _started(loader: data.DataLoader[Batch]) -> Iterator[Batch]:
    """Starts the workers, which inherit that Ctrl-C and SIGTERM are held back from them.

    Those often go to a whole group of processes, and training still needs images to end its step.
    The workers end when this process does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return _iterator(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _iterator(loader: data.DataLoader[Batch]) -> Iterator[Batch]:
    with warnings.catch_warnings():
        # Python >= 3.12 warns of fork in a process with threads; a worker uses none of what they
        # may hold.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        return iter(loader)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _workers() -> int:
    """One for each processor this process may use, up to 16; torchrun's processes share them."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        count = os.cpu_count() or 1
    return min(max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), 16)
