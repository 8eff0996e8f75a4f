"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError

TEMPORARY = ".tmp"


def write(path: Path, data: bytes | str, *, lasting: bool = True, shared: bool = False) -> None:
    """Writes a temporary file beside the path, syncs it, renames it to the path.

    Whatever happens on the way, the path holds what it held before or all of the data.

    Args:
        path: of the file.
        data: all of it.
        lasting: also through a loss of power; without, no time is spent on waiting for the disk.
        shared: whether other processes may write the same file at the same time.

    Raises:
        OSError: and the temporary file is gone.
    """
    own = f".{os.getpid()}" if shared else ""
    temporary = path.with_name(path.name + own + TEMPORARY)
    try:
        with open(temporary, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if lasting:
        sync_folder(path.parent)


def write_json(path: Path, value: dict[str, Any], *, lasting: bool = True) -> None:
    write(path, json.dumps(value, indent=1) + "\n", lasting=lasting)


def link(source: Path, path: Path) -> None:
    """Makes the path another name of the source file, in place of what it named before."""
    temporary = path.with_name(path.name + TEMPORARY)
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    try:
        os.link(source, temporary)
    except OSError:  # a file system without links
        write(path, source.read_bytes())
        return
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renamings in the folder last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Removes what a killed process left half written."""
    for path in folder.glob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_error(run: Path, error: OSError) -> UserError:
    """What to tell of a disk that is full or a run folder that is gone."""
    if not run.is_dir():
        return UserError(f"{run}: the run folder is gone; nothing more can be written")
    reason = error.strerror or str(error)
    name = f" {error.filename}" if error.filename else ""
    return UserError(f"{run}: can't go on: {reason}{name}; what was saved before is intact")
