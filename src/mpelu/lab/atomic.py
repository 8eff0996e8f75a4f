"""Atomic writing: a file is either complete or absent."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

TEMPORARY = ".tmp"
ABANDONED_AFTER = 3600.0
"""Seconds."""


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
