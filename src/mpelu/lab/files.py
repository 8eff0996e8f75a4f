"""Files: written whole or not at all, with checksums, and read without surprises.

Anyone may have written a file that is read here, so only regular files of bounded size are opened,
and JSON of bounded depth. Every checksum is a SHA-256, and its place depends on the kind of file:

- A JSON object ends with an entry "sha256", the digest of all bytes before it.
- A safetensors file has it in its metadata: the digest of the file with zeros in place of the
  digest. The metadata is a single entry, because safetensors writes several in any order, and files
  have to be equal to the bit.
- A log, which grows by a line at a time, has its length and digest in a record beside it: in
  status.json and in every checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from mpelu.lab.errors import UserError, one_line

TEMPORARY = ".tmp"
ABANDONED_AFTER = 3600.0
"""Seconds."""
MOST_BYTES = 1 << 30
"""Of a file that is read into memory."""
MOST_LEVELS = 64
"""Of lists and objects inside each other."""
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
_BINARY = getattr(os, "O_BINARY", 0)


def write(path: Path, data: bytes | str, *, durable: bool = True, shared: bool = False) -> None:
    """Writes a file atomically: to a temporary file beside it, which is then renamed.

    Whatever happens on the way, the path holds its old content or all of the new one.

    Args:
        path: where the file goes.
        data: the whole content.
        durable: wait until the data is on the disk, so that it survives a power failure.
        shared: whether other processes may write the same file at the same time.

    Raises:
        OSError: if the file can't be written; the temporary file is removed.
    """
    own = f".{os.getpid()}" if shared else ""
    temporary = path.with_name(path.name + own + TEMPORARY)
    try:
        with open(temporary, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def remove_abandoned(directory: Path) -> None:
    """Removes temporary files that processes left in a shared directory when they were killed.

    A file that is still being written changes all the time, so one that is old has no writer.
    """
    for path in directory.glob(f"*{TEMPORARY}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER:
                path.unlink()


def sync_directory(directory: Path) -> None:
    """Makes renames in a directory survive a power failure, where the system can."""
    if os.name == "nt":  # directories can't be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path | str) -> IO[bytes]:
    """Opens a file for reading, unless it is a pipe, a device or a directory.

    Opening a pipe in the usual way would wait for somebody to write to it.

    Raises:
        OSError: if the file can't be opened or isn't a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it isn't a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: in words, for anything else that is wrong with it.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise ValueError(f"expected at most {most:,} bytes, got {size:,}")
            return file.read(most)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it isn't JSON, or is nested more than `MOST_LEVELS` deep.

    Example:
        >>> parse_json('{"a": [1, 2]}')
        {'a': [1, 2]}
        >>> parse_json(100 * "[" + 100 * "]")
        Traceback (most recent call last):
        ValueError: it is nested more than 64 levels deep
    """
    deep = f"it is nested more than {MOST_LEVELS} levels deep"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(deep) from None
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return value
    raise ValueError(deep)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object of a text.

    Raises:
        ValueError: if it is anything else.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value


def parse_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The objects of a JSON Lines text, and how many lines are something else."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    rows = []
    for line in lines:
        try:
            rows.append(parse_object(line))
        except ValueError:
            continue
    return rows, len(lines) - len(rows)


def write_json(path: Path, value: dict[str, Any], *, durable: bool = True) -> None:
    """Writes an object as indented JSON with a checksum, atomically."""
    write(path, seal_json(value), durable=durable)


def read_json(path: Path, *, required: bool = False, compare: bool = True) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: the file.
        required: whether the file is known to have a checksum.
        compare: whether to compare the checksum; not for a file that a user may have edited.

    Raises:
        ValueError: in one line, if there is no such file, it holds anything else, or it was changed
            since it was written with a checksum.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None
    except ValueError as error:
        raise ValueError(f"{path.name} can't be read: {error}") from None
    return unseal_json(data, path.name, required=required, compare=compare)


def plain(value: Any) -> Any:
    """Lists in place of tuples, and None in place of numbers that JSON doesn't have."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def link(source: Path, path: Path) -> None:
    """Makes the path a second name of the source file, replacing what the path named before."""
    temporary = path.with_name(path.name + TEMPORARY)
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        write(path, source.read_bytes())
        return
    os.replace(temporary, path)
    sync_directory(path.parent)


def remove_temporary(directory: Path) -> None:
    """Removes what a killed process left half written."""
    for path in directory.glob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def reporting_disk_errors(run: Path) -> Iterator[None]:
    """Turns an OSError in its body into `disk_error`."""
    try:
        yield
    except OSError as error:
        raise disk_error(run, error) from error


def disk_error(run: Path, error: OSError) -> UserError:
    """What to tell the user when a run folder can't be written."""
    if not run.is_dir():
        return UserError(f"{run}: the run folder is gone; nothing more can be written")
    reason = error.strerror or str(error)
    name = f" ({error.filename})" if error.filename else ""
    return UserError(
        f"{run}: can't write: {reason}{name}; what was saved before is intact, and --resume "
        "continues from there"
    )


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
