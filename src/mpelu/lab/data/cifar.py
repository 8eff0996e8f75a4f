"""CIFAR-10 and CIFAR-100, read from the published archives or the directories they unpack to.

Every file is compared with its published MD5 before anything in it is read, so what is unpickled is
what was published.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch

from mpelu.lab.data.download import DownloadProgress, fetch
from mpelu.lab.data.images import LabeledImages, Splits
from mpelu.lab.errors import UserError, one_line
from mpelu.lab.files import read_bytes

if TYPE_CHECKING:
    from mpelu.lab.data.registry import DataSetInfo

URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """The published files of a data set: names, sizes, MD5 checksums and keys."""

    name: str
    md5: str
    size: int
    """Bytes."""
    folder: str
    """The directory it unpacks to."""
    train: Mapping[str, str]
    """MD5 by file name, in the order of the training set."""
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels_key: str
    """Key of the labels in the train and test files."""
    classes_key: str
    """Key of the class names in the meta file."""

    @property
    def files(self) -> dict[str, str]:
        """MD5 by name of all files."""
        return {**self.train, **self.test, **self.meta}


ARCHIVES = {
    "cifar10": Archive(
        name="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        size=170_498_071,
        folder="cifar-10-batches-py",
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        labels_key="labels",
        classes_key="label_names",
    ),
    "cifar100": Archive(
        name="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        size=169_001_437,
        folder="cifar-100-python",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels_key="fine_labels",
        classes_key="fine_label_names",
    ),
}


def read(info: DataSetInfo, data_dir: Path) -> Splits:
    """Reads a data set, after comparing every file with its published checksum.

    Args:
        info: the record of the data set.
        data_dir: contains the unpacked directory or the archive, or is the unpacked directory.

    Raises:
        UserError: if the files are missing, can't be read or aren't the published ones.
    """
    archive = ARCHIVES[info.name]
    found = _locate(archive, data_dir)
    if found is None:
        raise UserError(
            f"no {info.label} in {data_dir}; expected {archive.name} or {archive.folder}/ there",
            field="data_dir",
        )
    files = _from_folder(archive, found) if found.is_dir() else _from_archive(archive, found)
    contents = {name: _unpickle(content, name) for name, content in files.items()}
    (meta,) = archive.meta
    return Splits(
        _images(archive, info, [contents[name] for name in archive.train]),
        _images(archive, info, [contents[name] for name in archive.test]),
        tuple(each.decode() for each in contents[meta][archive.classes_key.encode()]),
    )


def download(
    info: DataSetInfo,
    data_dir: Path,
    *,
    mirror: str | None = None,
    progress: DownloadProgress | None = None,
) -> None:
    """Downloads the archive into a directory, unless the data set is there already.

    Args:
        info: the record of the data set.
        data_dir: created if it doesn't exist.
        mirror: base URL to use in place of the official one.
        progress: shows the download, see `mpelu.lab.data.download.fetch`.
    """
    archive = ARCHIVES[info.name]
    if _locate(archive, data_dir) is None:
        base = URL if mirror is None else mirror
        url = f"{base.rstrip('/')}/{archive.name}"
        fetch(url, data_dir / archive.name, md5=archive.md5, size=archive.size, progress=progress)


def _locate(archive: Archive, data_dir: Path) -> Path | None:
    """The unpacked directory, else the archive, else None."""
    for folder in (data_dir, data_dir / archive.folder):
        if any((folder / name).is_file() for name in archive.train):
            return folder
    path = data_dir / archive.name
    return path if path.is_file() else None


def _from_folder(archive: Archive, folder: Path) -> dict[str, bytes]:
    remedy = f"unpack {archive.name} again"
    return {name: _verified(folder / name, md5, remedy) for name, md5 in archive.files.items()}


def _from_archive(archive: Archive, path: Path) -> dict[str, bytes]:
    data = _verified(path, archive.md5, "delete it to download it again")
    wanted = {f"{archive.folder}/{name}": name for name in archive.files}
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as file:
        for member in file:
            if member.name in wanted and (content := file.extractfile(member)):
                found[wanted[member.name]] = content.read()
    return found


def _verified(path: Path, md5: str, remedy: str) -> bytes:
    """The content of a file, if it has the right checksum."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {remedy}") from None
    except ValueError as error:
        raise UserError(f"{path}: can't be read ({error})") from None
    actual = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise UserError(f"{path}: expected MD5 {md5}, got {actual} ({len(data):,} bytes); {remedy}")
    return data


def _images(
    archive: Archive, info: DataSetInfo, contents: Sequence[Mapping[bytes, Any]]
) -> LabeledImages:
    images = torch.cat([torch.from_numpy(each[b"data"]) for each in contents])
    labels = [label for each in contents for label in each[archive.labels_key.encode()]]
    shape = (info.channels, info.image_size, info.image_size)
    return LabeledImages(images=images.view(-1, *shape), labels=torch.tensor(labels))


_ALLOWED = {
    # The function that numpy's own pickles name, which has moved between its versions.
    ("numpy.core.multiarray", "_reconstruct"): numpy.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): numpy.ndarray,
    ("numpy", "dtype"): numpy.dtype,
}


class _Unpickler(pickle.Unpickler):
    """Reads dicts, lists, byte strings, numbers and arrays, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return _ALLOWED[module, name]


def _unpickle(data: bytes, name: str) -> dict[bytes, Any]:
    """The dict in a file that Python 2 wrote and whose checksum is right."""
    try:
        content: dict[bytes, Any] = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # pickles can raise almost anything
        raise UserError(f"{name}: can't be unpickled: {one_line(error)}") from None
    return content
