"""Data of the user's own: `.npz` files, or a function that returns torch data sets."""

from __future__ import annotations

import operator
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from mpelu.lab import references
from mpelu.lab.data.images import LabeledImages, Splits
from mpelu.lab.errors import UserError, one_line
from mpelu.lab.files import open_regular

if TYPE_CHECKING:
    from mpelu.lab.data.registry import DataSetInfo

_CHANNELS = (1, 3)
MOST_CLASSES = 100_000
_UNREADABLE = (
    OSError, ValueError, EOFError, KeyError, MemoryError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What reading a damaged archive raises."""


def read_npz(info: DataSetInfo, data_dir: Path | None) -> Splits:
    """Reads train.npz and test.npz, each with the arrays `images` and `labels`.

    Images are uint8 [n, height, width], [n, height, width, channels] or
    [n, channels, height, width] with 1 or 3 channels; labels are integers from 0. An array
    `classes` of strings in train.npz gives their names.

    Raises:
        UserError: if a file is missing or holds anything else.
    """
    assert data_dir is not None
    train, classes = _read_file(data_dir / "train.npz")
    test, _ = _read_file(data_dir / "test.npz")
    return _splits(str(data_dir / "*.npz"), train, test, classes)


def read_reference(info: DataSetInfo, data_dir: Path | None) -> Splits:
    """Calls ``package.module:factory`` for a pair of torch data sets, for training and test.

    The factory gets `data_dir` if it takes it. Each data set has a length and gives pairs of image
    and label: a uint8 tensor or array, a float tensor from 0 to 1, or a PIL image. All images have
    the same size. An attribute `classes` of the first gives the names of the classes.

    Raises:
        UserError: if the factory can't be called, or what it returns doesn't fit.
    """
    name, offered = info.name, {"data_dir": None if data_dir is None else str(data_dir)}
    made = references.call("data", name, offered=offered)
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise _unfit(name, f"a pair of data sets, train and test, got {type(made).__name__}")
    train, test = (_collect(name, each) for each in made)
    return _splits(name, train, test, getattr(made[0], "classes", None))


def _read_file(path: Path) -> tuple[LabeledImages, Any]:
    """The images of a file, and the names of their classes if it has them."""
    if not path.is_file():
        raise UserError(f"{path.parent}: expected train.npz and test.npz, got no {path.name}")
    try:
        with open_regular(path) as opened:  # numpy would leave a damaged file open
            file = numpy.load(opened, allow_pickle=False)
            if not isinstance(file, numpy.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            arrays = {name: file[name] for name in ("images", "labels", "classes") if name in file}
    except _UNREADABLE as error:
        raise UserError(f"{path}: can't be read: {one_line(error)}") from None
    name = str(path)
    for required in ("images", "labels"):
        if required not in arrays:
            raise UserError(f"{path}: expected arrays images and labels, got no {required}")
    pixels, labels, classes = arrays["images"], arrays["labels"], arrays.get("classes")
    if pixels.dtype != numpy.uint8:
        raise _unfit(name, f"images of type uint8, got {pixels.dtype}")
    images = _to_tensor(name, torch.from_numpy(numpy.ascontiguousarray(pixels)))
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        got = f"{labels.dtype} {list(labels.shape)}"
        raise _unfit(name, f"{len(images)} integer labels, got {got}")
    if classes is not None and classes.ndim != 1:
        raise _unfit(name, f"classes as a list of names, got shape {list(classes.shape)}")
    numbers = torch.from_numpy(labels.astype(numpy.int64))
    return LabeledImages(images=images, labels=numbers), classes


def _to_tensor(name: str, images: Tensor) -> Tensor:
    """Images as uint8 [n, channels, height, width]."""
    if 0 in images.shape[1:]:
        raise _unfit(name, f"images with pixels, got shape {list(images.shape)}")
    if images.dim() == 3:
        return images[:, None]
    if images.dim() == 4 and images.shape[3] in _CHANNELS:
        return images.permute(0, 3, 1, 2).contiguous()
    if images.dim() == 4 and images.shape[1] in _CHANNELS:
        return images
    raise _unfit(name, f"images with 1 or 3 channels, got shape {list(images.shape)}")


def _collect(name: str, dataset: Any) -> LabeledImages:
    try:
        pairs = [dataset[index] for index in range(len(dataset))]
        images = [_image(name, image) for image, _ in pairs]
        labels = [operator.index(label) for _, label in pairs]
    except UserError:
        raise
    except Exception as error:  # whatever the user's data set raises
        raise UserError(
            f"{name}: can't read its data sets: {type(error).__name__}: {one_line(error)}",
            field="data",
        ) from error
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) != 1:
        raise _unfit(name, f"images of one size, got {sorted(shapes)[:3]}")
    return LabeledImages(images=torch.stack(images), labels=torch.tensor(labels))


def _image(name: str, image: Any) -> Tensor:
    """One image as uint8 [channels, height, width]. Tensors have channels first, others last."""
    is_tensor = isinstance(image, Tensor)
    pixels: Tensor = image if is_tensor else torch.from_numpy(numpy.array(image))
    if pixels.is_floating_point():
        if not bool(((pixels >= 0) & (pixels <= 1)).all()):
            raise _unfit(name, "floating point images with values from 0 to 1, got others")
        pixels = pixels.mul(255).round().to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise _unfit(name, f"images of type uint8, got {str(pixels.dtype).removeprefix('torch.')}")
    if is_tensor and pixels.dim() == 3 and pixels.shape[0] in _CHANNELS:
        return pixels
    return _to_tensor(name, pixels[None])[0]


def _splits(
    name: str, train: LabeledImages, test: LabeledImages, classes: Sequence[object] | None
) -> Splits:
    for split, kind in ((train, "training"), (test, "test")):
        if len(split) == 0:
            raise _unfit(name, f"at least one {kind} image, got none")
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= MOST_CLASSES:
            raise _unfit(name, f"labels from 0 to {MOST_CLASSES - 1:,}, got {low} to {high}")
    shape, other = (list(each.images.shape[1:]) for each in (train, test))
    if shape != other:
        raise _unfit(name, f"test images of the size of the training images, {shape}, got {other}")
    count = 1 + int(max(train.labels.max(), test.labels.max()))
    names = [str(index) for index in range(count)] if classes is None else list(map(str, classes))
    if len(names) < count:
        raise _unfit(name, f"a name for each of {count} classes, got {len(names)}")
    return Splits(train=train, test=test, classes=tuple(names))


def _unfit(name: str, expected: str) -> UserError:
    return UserError(f"{name}: expected {expected}", field="data")
