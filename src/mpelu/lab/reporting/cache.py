"""What was read from run folders, kept until their files change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpelu.lab.reporting.files import write_page
from mpelu.lab.reporting.learned import recorded

FORMAT = "3"
"""Of the entries: another one makes every cache out of date."""
READ = ("config.json", "status.json", "environment.json", "metrics.jsonl", "inspect.json")

Stamp = list[list[Any]]


def stamp(run: Path) -> Stamp:
    """Name, size and time of change of every file the report reads from a run folder."""
    files = [run / name for name in READ] + [path for _, path in recorded(run)]
    found: Stamp = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        found.append([file.name, state.st_size, state.st_mtime_ns])
    return found


class Cache:
    """Entries of run folders by path, each with the stamp of the files it was read from."""

    def __init__(self, path: Path | None = None) -> None:
        """Begins with what the file holds; with nothing if it is None, missing or damaged."""
        self._path = path
        self._entries = _load(path) if path else {}
        self._used: dict[str, Any] = {}

    def entry(self, run: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The run's entry: the kept one, or what `read` returns if the files have changed."""
        key, now = str(run.resolve()), stamp(run)
        kept = self._entries.get(key)
        if kept is None or kept["stamp"] != now:
            kept = {"stamp": now, "entry": read(run)}
        self._used[key] = kept
        self._entries[key] = kept
        return kept["entry"]

    def save(self) -> None:
        """Writes the entries asked for since the beginning."""
        if self._path is None:
            return
        body = json.dumps(self._used, separators=(",", ":"))
        write_page(self._path, f"{_digest(body)}\n{body}\n")


def _digest(body: str) -> str:
    return hashlib.sha256(f"{FORMAT}\n{body}".encode()).hexdigest()


def _load(path: Path) -> dict[str, Any]:
    """The digest in the first line vouches for the shape of all that follows."""
    try:
        digest, _, body = path.read_text(encoding="ascii").partition("\n")
        body = body.removesuffix("\n")
        return json.loads(body) if digest == _digest(body) else {}
    except (OSError, ValueError):
        return {}
