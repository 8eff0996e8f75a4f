"""Reading files that anyone may have written: regular files, of bounded size, bounded JSON."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 1 << 30
"""Of a file that is read into memory."""
MOST_LEVELS = 64
"""Of lists and objects inside each other."""


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


_BINARY = getattr(os, "O_BINARY", 0)


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
