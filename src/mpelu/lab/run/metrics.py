"""The logs of a run: JSON Lines files that grow by a line and are cut back on resuming.

metrics.jsonl holds what a run computed. speed.jsonl holds how fast, which differs from one time to
the next; it is kept apart so that the metrics of a resumed run are equal byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
SPEED = "speed.jsonl"
LOGS = (METRICS, SPEED)


class Log:
    """A JSON Lines file that is open for appending.

    Args:
        path: the file.
        length: bytes of it that are kept; the rest is cut off.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._file = open(path, "ab")  # noqa: SIM115
        self._file.truncate(length)

    def write(self, row: dict[str, Any]) -> None:
        """Appends a line and hands it to the operating system."""
        self._file.write((json.dumps(row) + "\n").encode())
        self._file.flush()

    def sync(self) -> int:
        """Waits until all lines are on the disk; returns the length in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Closes the file. Nothing is lost if that fails: every line has been flushed."""
        with contextlib.suppress(OSError):
            self._file.close()


def read_rows(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The rows of a log, and in words what is wrong with it; empty if nothing is."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return [], f"{path.name} is missing"
    except OSError as error:
        return [], f"{path.name} can't be read: {error}"
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    damaged = len(lines) - len(rows)
    if damaged:
        return rows, f"{path.name}: {damaged} of {len(lines)} lines can't be read"
    return rows, ""
