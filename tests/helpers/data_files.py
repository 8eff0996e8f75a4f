"""Small files in the formats of the data sets."""

import hashlib
import io
import struct
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpelu.lab.data.cifar import ARCHIVES
from mpelu.lab.data.registry import DATA_SETS


def pickled(value: object) -> bytes:
    """Pickles a value as Python 2 wrote CIFAR's files, with protocol 2."""
    return b"\x80\x02" + _item(value) + b"."


def _item(value: object) -> bytes:
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, list):
        return b"](" + b"".join(map(_item, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_item, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_item(each) for pair in value.items() for each in pair) + b"u"
    if isinstance(value, np.ndarray):
        code = value.dtype.str[1:].encode()
        is_column_major = not value.flags.c_contiguous
        kind = b"cnumpy\ndtype\n" + _item((code, 0, 1)) + b"R"
        state = (
            b"(" + _item(1) + _item(value.shape) + kind + _item(is_column_major)
            + _item(value.tobytes("F" if is_column_major else "C")) + b"t"
        )  # fmt: skip
        empty = b"(cnumpy\nndarray\n" + _item((0,)) + _item(b"b") + b"t"
        return b"cnumpy.core.multiarray\n_reconstruct\n" + empty + b"R" + state + b"b"
    raise TypeError(value)


def cifar(name: str, count: int = 12) -> dict[str, bytes]:
    """Returns the files of a data set in CIFAR's format, with `count` random images in each."""
    archive, num_classes = ARCHIVES[name], DATA_SETS[name].num_classes
    random = np.random.default_rng(len(name))
    files = {}
    for file in [*archive.train, *archive.test]:
        labels = random.integers(0, num_classes, count).tolist()
        content = {
            b"batch_label": b"a batch",
            b"data": random.integers(0, 256, (count, 3072), dtype=np.uint8),
            archive.labels_key.encode(): labels,
            b"filenames": [b"%d.png" % index for index in range(count)],
        }
        files[file] = pickled(content)
    names = [b"class %d" % label for label in range(num_classes)]
    for file in archive.meta:
        files[file] = pickled({archive.classes_key.encode(): names, b"num_vis": 3072})
    return files


def packed(name: str, files: dict[str, bytes]) -> bytes:
    """Returns the archive that contains the files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for path, content in files.items():
            member = tarfile.TarInfo(f"{ARCHIVES[name].folder}/{path}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]) -> bytes:
    """Makes the checksums of these files the published ones, and returns their archive."""
    archive = ARCHIVES[name]
    content = packed(name, files)

    def checksums(names: Iterable[str]) -> dict[str, str]:
        return {each: md5(files[each]) for each in names if each in files}

    published = replace(
        archive,
        md5=md5(content),
        train=checksums(archive.train),
        test=checksums(archive.test),
        meta=checksums(archive.meta),
    )
    monkeypatch.setitem(ARCHIVES, name, published)
    return content


def unpack(folder: Path, files: dict[str, bytes]) -> Path:
    """Writes the files into a new folder."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
