"""Image folders: train/CLASS/*.jpg beside val/CLASS/*.jpg (or test/), the layout of ImageNet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mpelu.lab.data.pictures import digest
from mpelu.lab.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """The image files of one half, not yet opened.

    In turns from each class, so that the first n are spread over the classes.
    """

    folder: Path
    names: list[str]
    """Relative to folder, with / between."""
    sizes: list[int]
    """Bytes of each."""
    labels: list[int]

    def first(self, limit: int | None) -> Files:
        """The first `limit` of them; all if None."""
        return Files(
            folder=self.folder,
            names=self.names[:limit],
            sizes=self.sizes[:limit],
            labels=self.labels[:limit],
        )

    def fingerprint(self) -> str:
        """SHA-256 of names, sizes and labels: reading all of ImageNet would take hours."""
        rows = zip(self.names, self.sizes, self.labels, strict=True)
        return digest("\n".join(f"{name}\t{size}\t{label}" for name, size, label in rows))


def find(data_dir: Path) -> tuple[Files, Files, tuple[str, ...]]:
    """Training files, test files and the classes, which are the names of the folders, sorted.

    Raises:
        UserError: if a folder is missing or empty, or the classes of the halves differ.
    """
    train = data_dir / "train"
    test = next((data_dir / name for name in ("val", "test") if (data_dir / name).is_dir()), None)
    if not train.is_dir() or test is None:
        raise UserError(
            f"{data_dir}: expected folders train and val (or test), got "
            f"{', '.join(_folders(data_dir)) or 'none'}"
        )
    classes, others = _folders(train), _folders(test)
    if not classes:
        raise UserError(f"{train}: expected a folder for each class, got none")
    different = sorted(set(classes) ^ set(others))
    if different:
        raise UserError(
            f"{data_dir}: expected the same classes in {train.name} and {test.name}, got "
            f"{different[0]!r} in one only ({len(different)} such)"
        )
    return _files(train, classes), _files(test, classes), tuple(classes)


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(
                each.name for each in entries if each.is_dir() and not each.name.startswith(".")
            )
    except OSError as error:
        raise UserError(f"{path}: expected a folder, got {error.strerror}") from None


def _files(folder: Path, classes: list[str]) -> Files:
    found: list[tuple[int, int, str, int]] = []
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            files = sorted(
                (each.name, each.stat().st_size)
                for each in entries
                if each.name.lower().endswith(SUFFIXES)
                and not each.name.startswith(".")
                and each.is_file()
            )
        if not files:
            raise UserError(f"{folder / name}: expected images, got none")
        found += [(turn, label, f"{name}/{file}", size) for turn, (file, size) in enumerate(files)]
    found.sort()
    return Files(
        folder=folder,
        names=[name for _, _, name, _ in found],
        sizes=[size for _, _, _, size in found],
        labels=[label for _, label, _, _ in found],
    )
