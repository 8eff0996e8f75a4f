"""metrics.jsonl and speed.jsonl: one JSON object a line, cut back to the checkpoint on resuming."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

NAMES = ("metrics.jsonl", "speed.jsonl")


class Lines:
    """A file that grows by a line at a time.

    Args:
        path: of the file.
        length: what is kept of it, in bytes.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._file = open(path, "ab")  # noqa: SIM115
        self._file.truncate(length)

    def write(self, row: dict[str, Any]) -> None:
        self._file.write((json.dumps(row) + "\n").encode())
        self._file.flush()

    def sync(self) -> int:
        """Brings all lines to the disk and tells how many bytes they are."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Every line was brought to the file when it was written, so nothing is lost here."""
        with contextlib.suppress(OSError):
            self._file.close()
