"""CIFAR-10 and CIFAR-100 from their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from mpelu.lab.data import archives, unpickle
from mpelu.lab.data.archives import Archive
from mpelu.lab.data.pictures import Pictures
from mpelu.lab.errors import UserError

SIDE = 32
# Mean and standard deviation of the whole training set on the scale of 0..255, as the paper's code
# has them.
PUBLISHED = {
    "cifar10": ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar100": ((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
}


def read(
    name: str, data_dir: Path, *, mirror: str | None = None, quiet: bool = False
) -> tuple[Pictures, Pictures, tuple[str, ...]]:
    """Training set, test set and the names of the classes.

    Args:
        name: cifar10 or cifar100.
        data_dir: where the archive or the unpacked folder lies, or the archive is downloaded to.
        mirror: base address in place of the official one.
        quiet: without progress of the download.
    """
    archive = archives.ARCHIVES[name]
    files = archives.read(archive, data_dir, mirror=mirror, quiet=quiet)
    return (
        _pictures(archive, archive.train, files),
        _pictures(archive, archive.test, files),
        _classes(archive, files),
    )


def _pictures(archive: Archive, names: Iterable[str], files: Mapping[str, bytes]) -> Pictures:
    images, labels = [], []
    for name in names:
        content = unpickle.read(files[name], name)
        pixels = unpickle.array(content.get("data"), name)
        if pixels.dim() != 2 or pixels.shape[1] != 3 * SIDE * SIDE or not len(pixels):
            raise UserError(f"{name}: expected images of 3072 bytes, got {tuple(pixels.shape)}")
        images.append(pixels.view(-1, 3, SIDE, SIDE))
        labels += _labels(content.get(archive.labels), len(pixels), archive.classes, name)
    return Pictures(images=torch.cat(images), labels=torch.tensor(labels))


def _labels(value: Any, count: int, classes: int, name: str) -> list[int]:
    if not isinstance(value, list) or len(value) != count:
        got = f"{len(value)}" if isinstance(value, list) else type(value).__name__
        raise UserError(f"{name}: expected a label for each of {count} images, got {got}")
    for each in value:
        if not (isinstance(each, int) and 0 <= each < classes):
            raise UserError(f"{name}: expected labels from 0 to {classes - 1}, got {each!r}")
    return value


def _classes(archive: Archive, files: Mapping[str, bytes]) -> tuple[str, ...]:
    (name,) = archive.meta
    value = unpickle.read(files[name], name).get(archive.names)
    names = value if isinstance(value, list) else []
    texts = tuple(each.decode("utf-8", "replace") for each in names if isinstance(each, bytes))
    if len(names) != archive.classes or len(texts) != archive.classes:
        raise UserError(f"{name}: expected {archive.classes} names of classes, got {value!r:.80}")
    return texts
