"""Everything the page shows, as one JSON value, and the cache that makes collecting it fast."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mpelu.lab import files
from mpelu.lab.errors import UserError
from mpelu.lab.files import seal_json
from mpelu.lab.reporting.results import RESULT, read_result
from mpelu.lab.reporting.runs import read_run
from mpelu.lab.reporting.values import RULE, natural, text
from mpelu.lab.run import folder

SILENT_AFTER = 600
"""Seconds without an update after which a running experiment is marked."""
CACHE_FORMAT = 6
"""Version of the entries. Caches of another version are ignored."""


class Cache:
    """Entries of run folders, each kept until a file of its run changes.

    Args:
        path: the file to load and save entries; None keeps them in memory only. A missing or
            damaged file is ignored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries = _load(path) if path else {}
        self._used: dict[str, Any] = {}

    def entry(self, run: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The kept entry of a run, or what `read` returns if files of the run have changed."""
        key, now = str(run.resolve()), folder.stamp(run)
        kept = self._entries.get(key)
        if kept is None or kept["stamp"] != now:
            kept = {"stamp": now, "entry": read(run)}
        self._used[key] = kept
        self._entries[key] = kept
        entry: dict[str, Any] = kept["entry"]
        return entry

    def save(self) -> None:
        """Writes the entries that were used since the cache was made."""
        if self._path is not None:
            content = {"format": CACHE_FORMAT, "entries": self._used}
            files.write(self._path, seal_json(content, indent=None), durable=False)


def collect(folders: Sequence[Path], cache: Cache) -> dict[str, Any]:
    """Reads every run folder and every result.json in and below the folders.

    Args:
        folders: existing directories.
        cache: returns entries of runs that haven't changed.

    Returns:
        rule (how curves are downsampled), made (Unix time), results and runs, as the page's
        scripts read them. Damage is described in `problems` of a run and `problem` of a result.

    Raises:
        UserError: if a folder doesn't exist.
    """
    for each in folders:
        if not each.is_dir():
            raise UserError(f"{each}: expected a directory with runs, got none")
    now = time.time()
    paths = folder.find(folders)
    result_paths = _result_files(folders)
    homes = [_home(path, folders) for path in paths]
    all_homes = [*homes, *(path.parent for path in result_paths)]
    labels = dict(zip(all_homes, shortest_names(all_homes), strict=True))
    runs = []
    for index, (path, home) in enumerate(zip(paths, homes, strict=True)):
        entry = cache.entry(path, read_run)
        name = path.resolve().name
        runs.append(
            {
                "id": f"run-{index}",
                "name": name,
                "group": without_seed(name) or labels[home],
                "set": labels[home],
                **entry,
                "silent": _is_silent(entry, now),
            }
        )
    return {
        "rule": RULE,
        "made": int(now),
        "results": [_result(path, labels[path.parent]) for path in result_paths],
        "runs": runs,
    }


def problems(collected: dict[str, Any]) -> list[str]:
    """What is missing or damaged, a line each, for the terminal."""
    lines = [
        f"{run['set']}/{run['name']}: {problem}"
        for run in collected["runs"]
        for problem in run["problems"]
    ]
    lines += [
        f"{result['set']}: {result['problem']}"
        for result in collected["results"]
        if result["problem"]
    ]
    return [line if line.isprintable() else ascii(line) for line in lines]


def without_seed(name: str) -> str:
    """The name of a run without the seed at its end.

    Example:
        >>> without_seed("relu-seed0"), without_seed("resnet-20"), without_seed("seed3")
        ('relu', 'resnet-20', '')
    """
    return re.sub(r"[-_. ]?seed[-_. ]?\d+$", "", name)


def shortest_names(folders: Iterable[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart.

    Example:
        >>> shortest_names([Path("/a/x"), Path("/b/x"), Path("/b/y")])
        ['a/x', 'b/x', 'y']
    """
    folders = list(folders)
    names = []
    for each in folders:
        count = 1
        others = {other for other in folders if other != each}
        while any(other.parts[-count:] == each.parts[-count:] for other in others):
            count += 1
        names.append(str(Path(*each.parts[-count:])) or "/")
    return names


def _home(run: Path, folders: Sequence[Path]) -> Path:
    """The directory that names a run's set: the one it is in, or the study's above `runs`."""
    parent = run.resolve().parent
    study = parent.parent
    is_study = (study / RESULT).is_file() or any(
        each.resolve() in study.parents for each in folders
    )
    return study if parent.name == "runs" and is_study else parent


def _is_silent(entry: dict[str, Any], now: float) -> bool:
    return (
        entry["state"] == "running"
        and entry["updated"] is not None
        and now - entry["updated"] > SILENT_AFTER
    )


def _result_files(folders: Sequence[Path]) -> list[Path]:
    found = {path.resolve() for each in folders for path in each.rglob(RESULT)}
    return sorted(
        (path for path in found if path.is_file()), key=lambda path: natural(str(path.parent))
    )


def _result(path: Path, label: str) -> dict[str, Any]:
    try:
        return {"set": label, "problem": "", **read_result(path)}
    except ValueError as error:
        return {"set": label, "problem": text(str(error))}


def _load(path: Path) -> dict[str, Any]:
    """The entries of a cache file; none if it is missing, damaged or of another version."""
    try:
        found = files.read_json(path, required=True)
    except ValueError:
        return {}
    entries: dict[str, Any] = found["entries"] if found.get("format") == CACHE_FORMAT else {}
    return entries
