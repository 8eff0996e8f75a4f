"""The logs of a run: JSON Lines files that grow by a line and are cut back on resuming.

metrics.jsonl holds what a run computed. speed.jsonl holds how fast, which differs from one time to
the next; it is kept apart so that the metrics of a resumed run are equal byte for byte.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from mpelu.lab import atomic
from mpelu.lab.checksums import DIGEST, LENGTH, check_log, hash_start
from mpelu.lab.reading import parse_lines, read_bytes

METRICS = "metrics.jsonl"
CSV = "metrics.csv"
SPEED = "speed.jsonl"
LOGS = (METRICS, SPEED)
_COLUMNS = (
    "kind", "step", "epoch", "loss", "error", "train_loss", "train_error", "validation_loss",
    "validation_error", "test_loss", "test_error", "lr",
)  # fmt: skip


class Log:
    """A JSON Lines file that is open for appending.

    Args:
        path: the file.
        length: bytes of it that are kept; `cut` removes the rest.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._hash = hash_start(path, length)
        self._file = open(path, "ab")  # noqa: SIM115
        self._length = length

    def cut(self) -> None:
        """Cuts off what isn't kept."""
        self._file.truncate(self._length)

    def write(self, row: dict[str, Any]) -> None:
        """Appends a line and hands it to the operating system."""
        line = (json.dumps(row) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        self._length += len(line)
        self._hash.update(line)

    def sync(self) -> None:
        """Waits until all lines are on the disk."""
        os.fsync(self._file.fileno())

    def record(self) -> dict[str, Any]:
        """Length in bytes and SHA-256."""
        return {LENGTH: self._length, DIGEST: self._hash.hexdigest()}

    def close(self) -> None:
        """Closes the file. Nothing is lost if that fails: every line has been flushed."""
        with contextlib.suppress(OSError):
            self._file.close()


def read_rows(path: Path, record: object = None) -> tuple[list[dict[str, Any]], str]:
    """The rows of a log, and in words what is wrong with it; empty if nothing is.

    Args:
        path: the file.
        record: what status.json says about it. What comes later in the file isn't returned: it was
            being written when the run was killed, and is cut off when the run is resumed.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return [], f"{path.name} is missing"
    except ValueError as error:
        return [], f"{path.name} can't be read: {error}"
    problem = ""
    if isinstance(record, dict) and isinstance(record.get(LENGTH), int):
        problem = check_log(path, record)
        data = data[: record[LENGTH]]
    rows, damaged = parse_lines(data)
    if damaged:
        problem = f"{path.name}: {damaged} of {len(rows) + damaged} lines can't be read"
    return rows, problem


def write_csv(run: Path) -> None:
    """Writes metrics.csv, if the disk lets it."""
    with contextlib.suppress(OSError):  # all of it is in metrics.jsonl
        atomic.write(run / CSV, csv_of(run), durable=False)


def csv_of(run: Path) -> str:
    """The rows of metrics.jsonl as a table, with a column for each name."""
    rows, _ = read_rows(run / METRICS)
    names = {name for row in rows for name in row}
    columns = [name for name in _COLUMNS if name in names]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
