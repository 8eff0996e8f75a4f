"""Verifying run folders: which files are damaged, and what of a run can still be used."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpelu.lab import files
from mpelu.lab.errors import UserError, listed, plural
from mpelu.lab.files import LENGTH, check_log, digest, read_bytes, read_tensors
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.run.folder import CSV, LOCK_HOLDER, LOGS, METRICS
from mpelu.lab.run.writer import csv_of

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What verifying a run folder found."""

    run: Path
    count: int
    """Files that were read."""
    damage: tuple[str, ...]
    """What is damaged or missing, a line each."""
    usable: tuple[str, ...]
    """The weights that can be used: "final", "best", "step 300"."""

    def lines(self) -> Iterator[str]:
        """What to tell the user."""
        number = plural(self.count, "file")
        if not self.damage:
            yield f"{self.run}: intact ({number})"
            return
        yield f"{self.run}: damaged"
        yield from (f"  {line}" for line in self.damage)
        yield f"  usable weights: {listed(self.usable, 'and') if self.usable else 'none'}"


def verify(run: Path) -> Verification:
    """Reads every file of a run folder and compares it with its checksum.

    Raises:
        UserError: if it isn't a run folder.
    """
    if not folder.is_run(run):
        raise UserError(f"{run}: expected a run folder, got none")
    values = folder.read_object(run, folder.CONFIG)
    try:
        if values:
            folder.migrate_config(values)
    except ValueError as error:  # of another version, so that nothing else can be checked
        return Verification(run=run, count=1, damage=(f"{folder.CONFIG}: {error}",), usable=())
    return _Check(run).all()


class _Check:
    def __init__(self, run: Path) -> None:
        self.run = run
        self.count = 0
        self.damage: list[str] = []
        self.usable: list[str] = []
        self.is_published = (run / folder.CARD).exists()

    def all(self) -> Verification:
        self._config()
        status = self._objects()
        self._logs(status)
        self._read(self.run / folder.PREPROCESS, self._tensors)
        for path in folder.find_snapshots(self.run).values():
            self._read(path, self._tensors)
        figure = self.run / folder.INSPECTION_FIGURE
        if figure.exists():
            self._read(figure, _check_png)
        self._weights(status)
        return Verification(
            run=self.run,
            count=self.count,
            damage=tuple(self.damage),
            usable=tuple(self.usable),
        )

    def _read(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """What `read` returns; None, and a line of damage, if it raises."""
        self.count += 1
        try:
            return read(path)
        except (ValueError, checkpoint.CheckpointError) as error:
            place = path.parent.relative_to(self.run)
            name = "" if isinstance(error, ValueError) else f"{path.name} is damaged: "
            self.damage.append(f"{'' if place == Path() else f'{place}/'}{name}{error}")
            return None

    def _config(self) -> None:
        def read(path: Path) -> None:
            files.read_json(path, required=True)
            folder.read_config(self.run)  # a UserError is a ValueError

        self._read(self.run / folder.CONFIG, read)

    def _objects(self) -> dict[str, Any]:
        def read(path: Path) -> dict[str, Any]:
            return files.read_json(path, required=True)

        optional = [folder.INSPECTION, folder.TOP5, LOCK_HOLDER]
        needed = [folder.DATA]
        (optional if self.is_published else needed).append(folder.ENVIRONMENT)
        for name in (*needed, *(name for name in optional if (self.run / name).exists())):
            self._read(self.run / name, read)
        if self.is_published:
            self._read(self.run / folder.CARD, self._card)
        logged = any((self.run / name).is_file() and (self.run / name).stat().st_size
                     for name in LOGS)  # fmt: skip
        if not logged and not (self.run / folder.STATUS).exists():  # published, or no step yet
            return {}
        return self._read(self.run / folder.STATUS, read) or {}

    def _logs(self, status: dict[str, Any]) -> None:
        records = status.get("logs", {})
        has_ended = status.get("state") in folder.ENDED

        def read(path: Path) -> None:
            record = records.get(path.name)
            if record is None:
                _, problem = folder.read_log(self.run, path.name, {})
            else:
                problem = check_log(path, record)
                if not problem and has_ended and path.stat().st_size > record[LENGTH]:
                    problem = f"{path.name} is longer than at the end of the run"
            if problem:
                raise ValueError(problem)

        for name in (*LOGS, *(name for name in records if name not in LOGS)):
            if not self.is_published or (self.run / name).exists():
                self._read(self.run / name, read)
        is_damaged = any(line.startswith(METRICS) for line in self.damage)

        def compare(path: Path) -> None:
            # While a run is under way the table may be older.
            if has_ended and not is_damaged and path.read_bytes() != csv_of(self.run).encode():
                raise ValueError(f"{path.name} doesn't agree with {METRICS}")

        if (self.run / CSV).exists():
            self._read(self.run / CSV, compare)

    def _card(self, path: Path) -> None:
        stated = files.read_json(path, required=True).get(folder.CARD_DIGEST)
        with contextlib.suppress(OSError):  # told with the weights
            if digest((self.run / folder.WEIGHTS).read_bytes()) != stated:
                raise ValueError(f"{path.name} belongs to other weights than {folder.WEIGHTS}")

    def _tensors(self, path: Path) -> bool:
        read_tensors(path, required=True)
        return True

    def _weights(self, status: dict[str, Any]) -> None:
        final = self.run / folder.WEIGHTS
        is_expected = self.is_published or status.get("state") == "finished"
        if (is_expected or final.exists()) and self._read(final, self._tensors):
            self.usable.append("final")
        for path in reversed(list(checkpoint.candidates(self.run))):
            with contextlib.suppress(FileNotFoundError):  # a newer one took its place meanwhile
                if self._read(path, checkpoint.load) is not None:
                    name = path.stem.removeprefix("step-").lstrip("0")
                    self.usable.append("best" if path.stem == "best" else f"step {name}")
                beside = path.with_suffix(".safetensors")
                self._read(beside, self._tensors)


def _check_png(path: Path) -> None:
    """Checks the checksums that every chunk of a PNG file has."""
    data = read_bytes(path)
    place = len(_PNG)
    is_right = data.startswith(_PNG)
    while is_right and place < len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        stated = int.from_bytes(data[end : end + 4], "big")
        is_right = end + 4 <= len(data) and zlib.crc32(data[place + 4 : end]) == stated
        place = end + 4
    if not is_right:
        raise ValueError(f"{path.name} is damaged: a checksum is wrong")
