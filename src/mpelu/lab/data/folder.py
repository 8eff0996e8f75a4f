"""Image folders: train/CLASS/*.jpg with val/CLASS/*.jpg, test/CLASS/*.jpg or both.

Files are listed at once, and decoded by worker processes when their batch is due.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import data

from mpelu.lab.data.augment import RandomCrop, RandomResizedCrop, Region
from mpelu.lab.data.images import ImageFiles, Splits
from mpelu.lab.data.registry import DataSetInfo, find, image_sizes
from mpelu.lab.errors import UserError
from mpelu.lab.files import open_regular

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

    from mpelu.lab.config import Config

log = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
"""What is decoded, as Pillow names it. It knows others that start programs of their own."""
_SAMPLE_BATCH = 100
_MAX_NAMED = 5
"""Files an error names at most."""
_MAX_WORKERS = 16

DecodedBatch = tuple[Tensor, Tensor, list[tuple[int, str, bool]]]
"""Indices and images of the files that could be decoded; of each other file its index, the error,
and whether it could be read at all."""


def read(info: DataSetInfo, data_dir: Path | None) -> Splits:
    """Lists the image files. The classes are the names of the subdirectories, sorted.

    Args:
        info: the record of the data set.
        data_dir: contains train/, and val/ or test/ or both. With both, val/ is the validation
            set and test/ the test set. With val/ alone, or if test/ has no directory of a class,
            as that of ImageNet, val/ is the test set.

    Raises:
        UserError: if a directory is missing or empty, or two of them have different classes.
    """
    assert data_dir is not None
    train, val, test = (data_dir / name for name in ("train", "val", "test"))
    if not train.is_dir() or not (val.is_dir() or test.is_dir()):
        raise _error(
            f"expected {data_dir} to contain train/ and val/ (or test/), found "
            f"{', '.join(f'{name}/' for name in _subfolders(data_dir)) or 'no directories'}"
        )
    classes = _subfolders(train)
    if not classes:
        raise _error(f"expected a directory for each class in {train}, found none")
    if not val.is_dir():
        return Splits(_files(train, classes), _files(test, classes), tuple(classes))
    if test.is_dir() and set(classes) & set(_subfolders(test)):
        files = [_files(each, classes) for each in (train, test, val)]
        return Splits(files[0], files[1], tuple(classes), files[2], note="test/")
    lacks = "has no directories of classes" if test.is_dir() else "doesn't exist"
    note = f"val/, because test/ {lacks}"
    return Splits(_files(train, classes), _files(val, classes), tuple(classes), note=note)


def decode(
    path: str | Path, size: int, channels: int, max_pixels: int, region: Region | None = None
) -> Tensor:
    """Decodes an image file and scales it to size x size with bilinear interpolation.

    Palette, CMYK, 16-bit and transparent images become gray (1 channel) or RGB (3 channels) too.

    Args:
        path: a regular file in one of `FORMATS`, whatever its suffix says.
        size: the new height and width.
        channels: 1 or 3.
        max_pixels: the most pixels that are decoded, because a small file can hold very many.
        region: chooses the part of the image that is scaled (default: all of it).

    Returns:
        uint8 [channels, size, size].

    Raises:
        Exception: whatever Pillow raises for a damaged file; ValueError for too many pixels, and
            for values that don't fit into 8 or 16 bits.
    """
    import numpy
    from PIL import Image

    with open_regular(path) as opened, _open_image(opened) as file:
        if file.width * file.height > max_pixels:
            raise ValueError(
                f"expected at most {max_pixels:,} pixels (raise it with --max-pixels), got "
                f"{file.width:,} x {file.height:,}"
            )
        width, height = file.size
        whole = [0, 0, height, width, 0]
        top, left, rows, columns, mirrored = region(height, width) if region else whole
        # Decodes a large JPEG at 1/2, 1/4 or 1/8 of its size, but at least twice the target size.
        file.draft(None, (2 * size * width // columns, 2 * size * height // rows))
        image: Image.Image = file
        if image.mode[0] in "IF":
            values = numpy.asarray(image)
            most = 255 if image.mode == "F" else 65_535
            if not (values.min() >= 0 and values.max() <= most):  # also for NaN
                raise ValueError(
                    f"expected values from 0 to {most}, got {values.min()} to {values.max()}"
                )
            if image.mode != "F":
                image = Image.fromarray((values / 257).round().astype(numpy.uint8))
        if image.mode == "P":
            image = image.convert("RGBA")
        image = image.convert("L" if channels == 1 else "RGB")
        if region:
            across, down = image.width / width, image.height / height
            image = image.crop(
                (
                    round(left * across),
                    round(top * down),
                    round((left + columns) * across),
                    round((top + rows) * down),
                )
            )
        image = image.resize((size, size), Image.Resampling.BILINEAR)
        if mirrored:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(numpy.array(image)).view(size, size, channels)
    return pixels.permute(2, 0, 1).contiguous()


def _open_image(file: IO[bytes]) -> ImageFile:
    """Opens an image in one of `FORMATS`. Its pixels are counted by the caller."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        return Image.open(file, formats=FORMATS)
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _error(message: str) -> UserError:
    return UserError(message, field="data_dir")


def _subfolders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(
                each.name for each in entries if each.is_dir() and not each.name.startswith(".")
            )
    except OSError as error:
        raise _error(f"can't list {path} ({error.strerror})") from None


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a regular file, or a link to one. A link to itself is none."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _files(folder: Path, classes: list[str]) -> ImageFiles:
    """The files of a split, which must have the classes of train/."""
    different = sorted(set(classes) ^ set(_subfolders(folder)))
    if different:
        raise _error(
            f"expected the same classes in {folder.parent / 'train'} and {folder}, but only one of "
            f"them contains {different[0]!r}"
            + (f" (and {len(different) - 1} more)" if different[1:] else "")
        )
    found: list[tuple[int, int, str, int]] = []
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            files = sorted(
                (each.name, each.stat().st_size)
                for each in entries
                if each.name.lower().endswith(SUFFIXES)
                and not each.name.startswith(".")
                and _is_file(each)
            )
        if not files:
            raise _error(f"expected images in {folder / name}, found none")
        found += [(turn, label, f"{name}/{file}", size) for turn, (file, size) in enumerate(files)]
    found.sort()
    return ImageFiles(
        folder=folder,
        names=[name for _, _, name, _ in found],
        sizes=[size for _, _, _, size in found],
        labels=[label for _, label, _, _ in found],
    )


def most_damaged(count: int) -> int:
    """How many of a split's files may be damaged: one in 20 but at most 10, or one in 1000 if those
    are more; always one, if there are others.

    Example:
        >>> [most_damaged(count) for count in (1, 2, 40, 100, 1000, 1_281_167)]
        [0, 1, 2, 5, 10, 1281]
    """
    return min(count - 1, max(1, min(10, count // 20), count // 1000))


class FileReader:
    """Reads image files, decoded by worker processes and sent to the device as bytes.

    A damaged file is reported once and left out of its batch. Whether it is depends on the file
    alone, so the batches are the same however many workers there are. A file that can't be read
    at all is an error, because that may change.

    Args:
        files: the split.
        config: its `image_size`, `max_pixels` and `workers` are used.
        device: device of the batches.
        crop: crops the images of which `read` is asked for random parts.
        persists: whether the workers stay from one call of `read` to the next, until `close`.

    Attributes:
        channels: 1 or 3.
    """

    def __init__(
        self,
        files: ImageFiles,
        config: Config,
        device: torch.device,
        crop: RandomCrop | RandomResizedCrop | None = None,
        *,
        persists: bool = False,
    ) -> None:
        self.channels = find(config.data).channels
        self._files = files
        self._workers = config.workers
        self._persists = persists
        self._kept: tuple[data.DataLoader[DecodedBatch], _Sampler] | None = None
        self._is_reading = False
        image_size, _ = image_sizes(config)
        own = crop if isinstance(crop, RandomResizedCrop) else None
        self._decoder = _Decoder(files, image_size, self.channels, config.max_pixels, own)
        self._device = device
        self._labels = torch.tensor(files.labels, device=device)
        self._damaged: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._files)

    def sample(self, limit: int) -> Iterator[Tensor]:
        """Yields the images of at most `limit` evenly spaced files, in batches on the device."""
        count = min(limit, len(self))
        index = torch.arange(count) * len(self) // count
        for _, images, _ in self.read(index.split(_SAMPLE_BATCH)):
            if len(images):
                yield images

    def read(
        self, batches: Iterable[Tensor], numbers: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields indices [b], images and labels [b] of each batch, on the device.

        Images are uint8 [b, channels, size, size]. A batch may be smaller than asked for, or empty.

        Args:
            batches: int64 indices into the split, on the CPU.
            numbers: `crop.numbers` of the split, for random parts in place of whole images.

        Raises:
            UserError: if more than `most_damaged` files are damaged, if one can't be read, or if a
                worker process dies.
        """
        is_first, self._is_reading = not self._is_reading, True
        # Whoever reads while another does has workers of its own.
        loader, sampler = self._kept if is_first and self._kept else self._make_loader(is_first)
        sampler.batches, sampler.numbers = batches, numbers
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


Batch = tuple[list[int], Any]
"""Indices of files, and an array with a row of numbers for each, or None."""


class _Sampler:
    """The batches of one call of `FileReader.read`, for a loader that outlives it."""

    batches: Iterable[Tensor] = ()
    numbers: Tensor | None = None

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            # Arrays: a tensor would be sent through shared memory.
            yield batch.tolist(), None if self.numbers is None else self.numbers[batch].numpy()


@dataclass
class _Decoder(data.Dataset[DecodedBatch]):
    """Runs in the workers. An item is a whole batch, so that only bytes are sent back."""

    files: ImageFiles
    size: int
    channels: int
    max_pixels: int
    crop: RandomResizedCrop | None

    def __getitem__(self, batch: Batch) -> DecodedBatch:
        indices, numbers = batch
        size = self.size if self.crop is None or numbers is None else self.crop.size
        images = torch.empty(len(indices), self.channels, size, size, dtype=torch.uint8)
        kept: list[int] = []
        damaged: list[tuple[int, str, bool]] = []
        for place, index in enumerate(indices):
            path = self.files.folder / self.files.names[index]
            part = None
            if self.crop is not None and numbers is not None:
                part = self.crop.region(torch.from_numpy(numbers[place]))
            try:
                images[len(kept)] = decode(path, size, self.channels, self.max_pixels, part)
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
    The workers end when this process does: see `_kill_workers`.
    """
    others = set(multiprocessing.active_children())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with warnings.catch_warnings():
            # Python >= 3.12 warns about fork in a process with threads; the workers use nothing
            # that another thread might have locked.
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _WORKERS.update(set(multiprocessing.active_children()) - others)


_WORKERS: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


@atexit.register  # before multiprocessing, which was imported earlier
def _kill_workers() -> None:
    """Ends the workers that are left when this process ends.

    Python would ask them to end by SIGTERM, which they block, and wait for them forever.
    """
    left = [worker for worker in _WORKERS if worker.is_alive()]
    if left:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would call it an error
    for worker in left:
        worker.kill()


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
