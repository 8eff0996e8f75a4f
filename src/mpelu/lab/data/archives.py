"""The published files of CIFAR: found, checked and handed over as bytes."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpelu.lab.data.download import fetch
from mpelu.lab.errors import UserError

ADDRESS = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """What is published: names and MD5 checksums."""

    name: str
    md5: str
    folder: str
    train: Mapping[str, str]
    """File name: MD5, in the order of the training set."""
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels: str
    """Key of the labels in train and test."""
    names: str
    """Key of the classes' names in meta."""
    classes: int

    @property
    def files(self) -> dict[str, str]:
        return {**self.train, **self.test, **self.meta}


ARCHIVES = {
    "cifar10": Archive(
        name="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
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
        labels="labels",
        names="label_names",
        classes=10,
    ),
    "cifar100": Archive(
        name="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels="fine_labels",
        names="fine_label_names",
        classes=100,
    ),
}


def read(
    archive: Archive, data_dir: Path, *, mirror: str | None = None, quiet: bool = False
) -> dict[str, bytes]:
    """The files of a data set by name, each of them checked.

    Looks for the unpacked folder (which data_dir may itself be), then for the archive, and
    downloads the archive into data_dir if there is neither.

    Raises:
        UserError: if a file is missing, can't be read or isn't what was published.
    """
    for folder in (data_dir, data_dir / archive.folder):
        if any((folder / name).is_file() for name in archive.train):
            return {
                name: _checked(_bytes(folder / name), md5, folder / name)
                for name, md5 in archive.files.items()
            }
    path = data_dir / archive.name
    if not path.is_file():
        address = mirror if mirror is not None else ADDRESS
        fetch(f"{address.rstrip('/')}/{archive.name}", path, md5=archive.md5, quiet=quiet)
    return _members(_checked(_bytes(path), archive.md5, path), archive, path)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: expected a file of the data set, got none") from None
    except OSError as error:
        raise UserError(f"{path}: expected a readable file, got {error.strerror}") from None


def _checked(data: bytes, md5: str, path: Path) -> bytes:
    actual = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise UserError(
            f"{path}: expected MD5 {md5}, got {actual} ({len(data)} bytes); "
            "remove it to get it anew"
        )
    return data


def _members(data: bytes, archive: Archive, path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    wanted = {f"{archive.folder}/{name}": name for name in archive.files}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as file:
            for member in file:
                name = wanted.get(member.name)
                content = file.extractfile(member) if name and member.isfile() else None
                if name and content:
                    found[name] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: expected a whole archive, got a damaged one ({error})") from None
    for name in archive.files:
        if name not in found:
            raise UserError(f"{path}: expected {name} in the archive, got none")
    return found
