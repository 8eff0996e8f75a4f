"""Small files in the formats of the data sets, for tests."""

import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from mpelu.lab.data import archives


def pickled(value) -> bytes:
    """As Python 2 writes the pickles of CIFAR, protocol 2."""
    return b"\x80\x02" + _item(value) + b"."


def _item(value) -> bytes:
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
        by_column = not value.flags.c_contiguous
        kind = b"cnumpy\ndtype\n" + _item((code, 0, 1)) + b"R"
        state = (
            b"(" + _item(1) + _item(value.shape) + kind + _item(by_column)
            + _item(value.tobytes("F" if by_column else "C")) + b"t"
        )  # fmt: skip
        empty = b"(cnumpy\nndarray\n" + _item((0,)) + _item(b"b") + b"t"
        return b"cnumpy.core.multiarray\n_reconstruct\n" + empty + b"R" + state + b"b"
    raise TypeError(value)


def cifar(name: str, count: int = 12) -> dict[str, bytes]:
    """Files of a data set in CIFAR's format, with `count` random images each."""
    archive = archives.ARCHIVES[name]
    random = np.random.default_rng(len(name))
    files = {}
    for file in [*archive.train, *archive.test]:
        labels = random.integers(0, archive.classes, count).tolist()
        content = {
            b"batch_label": b"a batch",
            b"data": random.integers(0, 256, (count, 3072), dtype=np.uint8),
            archive.labels.encode(): labels,
            b"filenames": [b"%d.png" % index for index in range(count)],
        }
        files[file] = pickled(content)
    names = [b"class %d" % label for label in range(archive.classes)]
    for file in archive.meta:
        files[file] = pickled({archive.names.encode(): names, b"num_vis": 3072})
    return files


def packed(name: str, files: dict[str, bytes]) -> bytes:
    """The archive that holds them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for path, content in files.items():
            member = tarfile.TarInfo(f"{archives.ARCHIVES[name].folder}/{path}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def publish(monkeypatch, name: str, files: dict[str, bytes]) -> bytes:
    """Makes these files the published ones, and gives their archive."""
    archive = archives.ARCHIVES[name]
    content = packed(name, files)
    parts = {
        part: {file: md5(files[file]) for file in getattr(archive, part) if file in files}
        for part in ("train", "test", "meta")
    }
    published = replace(archive, md5=md5(content), **parts)
    monkeypatch.setitem(archives.ARCHIVES, name, published)
    return content


def unpack(folder: Path, files: dict[str, bytes]) -> Path:
    """Writes them into a folder."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
