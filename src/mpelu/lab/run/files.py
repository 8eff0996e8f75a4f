"""Files of a run folder: written whole or not at all, and read without surprises."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpelu.lab.atomic import TEMPORARY, sync_directory, write
from mpelu.lab.checksums import seal_json, unseal_json
from mpelu.lab.errors import UserError
from mpelu.lab.reading import read_bytes

__all__ = [
    "TEMPORARY",
    "disk_error",
    "link",
    "plain",
    "read_json",
    "remove_temporary",
    "reporting_disk_errors",
    "sync_directory",
    "write",
    "write_json",
]


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
