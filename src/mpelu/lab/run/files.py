"""Files of a run folder: written whole or not at all, and read without surprises."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpelu.lab.atomic import TEMPORARY, sync_directory, write
from mpelu.lab.errors import UserError

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
    """Writes an object as indented JSON, atomically."""
    write(path, json.dumps(value, indent=1) + "\n", durable=durable)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: in one line, if there is no such file or it holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} can't be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected an object, got {type(value).__name__}")
    return value


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
