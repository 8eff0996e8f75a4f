"""Image folders: train/CLASS/*.jpg with val/CLASS/*.jpg, test/CLASS/*.jpg or both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch
from torch import Tensor

from mpelu.lab.data.images import ImageFiles, Splits
from mpelu.lab.errors import UserError
from mpelu.lab.files import open_regular

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
"""What is decoded, as Pillow names it. It knows others that start programs of their own."""


def read(data_dir: Path) -> Splits:
    """Lists the image files. The classes are the names of the subdirectories, sorted.

    Args:
        data_dir: contains train/, and val/ or test/ or both. With both, val/ is the validation
            set and test/ the test set. With val/ alone, or if test/ has no directory of a class,
            as that of ImageNet, val/ is the test set.

    Raises:
        UserError: if a directory is missing or empty, or two of them have different classes.
    """
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


def decode(path: str | Path, size: int, channels: int, max_pixels: int) -> Tensor:
    """Decodes an image file and scales it to size x size with bilinear interpolation.

    Palette, CMYK, 16-bit and transparent images become gray (1 channel) or RGB (3 channels) too.

    Args:
        path: a regular file in one of `FORMATS`, whatever its suffix says.
        size: the new height and width.
        channels: 1 or 3.
        max_pixels: the most pixels that are decoded, because a small file can hold very many.

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
        # Decodes a large JPEG at 1/2, 1/4 or 1/8 of its size, but at least twice the target size.
        file.draft(None, (2 * size, 2 * size))
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
        image = image.resize((size, size), Image.Resampling.BILINEAR)
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
