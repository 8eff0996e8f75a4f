"""Checksums, so that damage to a file that the lab wrote is noticed when it is read.

Every checksum is a SHA-256, and its place depends on the kind of file:

- A JSON object ends with an entry "sha256", the digest of all bytes before it.
- A safetensors file has it in its metadata: the digest of the file with zeros in place of the
  digest. The metadata is a single entry, because safetensors writes several in any order, and files
  have to be equal to the bit.
- A log, which grows by a line at a time, has its length and digest in a record beside it: in
  status.json and in every checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mpelu.lab.errors import one_line
from mpelu.lab.reading import open_regular, parse_object, read_bytes

WRONG = "is damaged: its checksum is wrong"
MISSING = "is damaged: its checksum is missing"
HEADER = "is damaged: its header can't be read"
_KEY = "sha256"
_ENTRY = "mpelu"
"""Of the metadata of a safetensors file: a JSON object."""
_BLANK = b"0" * 64
_DAMAGED = (ValueError, KeyError, TypeError, RuntimeError, OverflowError, AttributeError)
"""What reading arbitrary bytes as tensors raises."""
_SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n\}\n\Z')
_LONGEST_SEAL = 100
"""Bytes at the end of a file."""
LENGTH, DIGEST = "length", "sha256"
"""What is recorded about a log: bytes, and their SHA-256."""
_CHUNK = 1 << 20


def digest(*parts: Any) -> str:
    """Returns the SHA-256 of strings, bytes and contiguous numpy arrays in hexadecimal."""
    total = hashlib.sha256()
    for part in parts:
        # File names may contain bytes that aren't UTF-8.
        total.update(os.fsencode(part) if isinstance(part, str) else part)
    return total.hexdigest()


def seal_json(value: Mapping[str, Any], indent: int | None = 1) -> bytes:
    """A JSON object with its checksum.

    Example:
        >>> print(seal_json({"step": 3}).decode()[:24])
        {
         "step": 3,
         "sha256":
    """
    body = json.dumps(value, indent=indent, allow_nan=indent is not None)
    start = body.removesuffix("}").removesuffix("\n").encode()
    return start + f',\n "{_KEY}": "{hashlib.sha256(start).hexdigest()}"\n}}\n'.encode()


def unseal_json(
    data: bytes, name: str, *, required: bool = False, compare: bool = True
) -> dict[str, Any]:
    """The JSON object of a file, without its checksum.

    Args:
        data: the content of the file.
        name: the name of the file, for errors.
        required: whether the file is known to have a checksum.
        compare: whether to compare the checksum; not for a file that a user may have edited.

    Raises:
        ValueError: in one line, if it isn't an object or was changed since it was written.
    """
    try:
        value = parse_object(data)
    except ValueError as error:
        raise ValueError(f"{name} can't be read: {one_line(error)}") from None
    stated = value.pop(_KEY, None)
    if not compare:
        return value
    found = _SEAL.search(data, max(0, len(data) - _LONGEST_SEAL))
    if found is None:
        if required or stated is not None:
            raise ValueError(f"{name} {MISSING if stated is None else WRONG}")
    elif hashlib.sha256(data[: found.start()]).hexdigest().encode() != found[1]:
        raise ValueError(f"{name} {WRONG}")
    return value


def seal_tensors(tensors: Mapping[str, Any], **about: str) -> bytes:
    """Torch tensors in the safetensors format, with a checksum and notes about them."""
    from safetensors.torch import save

    notes = json.dumps({_KEY: _BLANK.decode(), **about})
    data = bytearray(save(dict(tensors), metadata={_ENTRY: notes}))
    place = data.index(_BLANK)  # metadata comes first in the file
    data[place : place + len(_BLANK)] = hashlib.sha256(data).hexdigest().encode()
    return bytes(data)


class TensorFile(NamedTuple):
    """What a safetensors file holds."""

    tensors: dict[str, Any]
    """By name."""
    about: dict[str, Any]
    """What its metadata says, as far as it is text."""


def read_tensors(path: Path, *, framework: str = "pt", required: bool = False) -> TensorFile:
    """Reads a safetensors file.

    Args:
        path: the file.
        framework: "pt" for torch tensors, "np" for numpy arrays without importing torch.
        required: whether the file is known to have a checksum.

    Raises:
        ValueError: in one line, if it is missing or was changed since it was written.
    """
    from safetensors import SafetensorError

    if framework == "pt":
        from safetensors.torch import load
    else:
        from safetensors.numpy import load  # type: ignore[assignment]
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None
    except ValueError as error:
        raise ValueError(f"{path.name} can't be read: {error}") from None
    try:
        about = _check(data, path.name, required)
        return TensorFile(load(data), about)
    except _DamagedTensors:
        raise
    except (SafetensorError, *_DAMAGED) as error:
        raise ValueError(f"{path.name} can't be read: {one_line(error)}") from None


class _DamagedTensors(ValueError):
    pass


def _check(data: bytes, name: str, required: bool) -> dict[str, Any]:
    """Checks the digest of a safetensors file; returns the notes of its metadata."""
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        metadata = parse_object(data[8:end]).get("__metadata__", {})
    except ValueError:
        raise _DamagedTensors(f"{name} {HEADER}") from None
    if not isinstance(metadata, dict) or _ENTRY not in metadata:
        if required:
            raise _DamagedTensors(f"{name} {MISSING}")
        return metadata if isinstance(metadata, dict) else {}
    about = parse_object(metadata[_ENTRY])
    stated = str(about.pop(_KEY, "")).encode()
    place = data.find(stated, 0, end)
    if len(stated) != len(_BLANK) or place < 0:
        raise _DamagedTensors(f"{name} {MISSING}")
    total = hashlib.sha256(data[:place])
    total.update(_BLANK)
    total.update(memoryview(data)[place + len(_BLANK) :])
    if total.hexdigest().encode() != stated:
        raise _DamagedTensors(f"{name} {WRONG}")
    return about


def record_log(path: Path, length: int | None = None) -> dict[str, Any]:
    """Length and SHA-256 of the first bytes of a log, or of all of it."""
    length = path.stat().st_size if length is None else length
    return {LENGTH: length, DIGEST: hash_start(path, length).hexdigest()}


def check_log(path: Path, record: dict[str, Any]) -> str:
    """What is wrong with a log of which a record was kept, in words; empty if nothing is."""
    try:
        if path.stat().st_size < record[LENGTH]:
            return f"{path.name} is shorter than it was then"
        return "" if record_log(path, record[LENGTH]) == record else f"{path.name} {WRONG}"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path.name} can't be checked: {error!r}"


def hash_start(path: Path, length: int) -> Any:
    """The SHA-256 object of the first bytes of a file, to be updated with what is appended."""
    total = hashlib.sha256()
    with open_regular(path) as file:
        while length > 0 and (block := file.read(min(length, _CHUNK))):
            total.update(block)
            length -= len(block)
    return total
