"""All that the page shows, as one JSON value."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.reporting.cache import Cache
from mpelu.lab.reporting.curves import learning_curves
from mpelu.lab.reporting.inspected import inspected
from mpelu.lab.reporting.learned import learned
from mpelu.lab.reporting.results import read_result
from mpelu.lab.reporting.thin import RULE
from mpelu.lab.reporting.values import integer, natural, number, text
from mpelu.lab.run.folder import STATES, find, read

SILENT_AFTER = 600
"""Seconds without a word after which a running experiment is said to be silent."""


def collect(folders: Sequence[Path], cache: Cache) -> dict[str, Any]:
    """Reads every run folder and result.json in the folders and below.

    Args:
        folders: must exist.
        cache: gives what was read before and hasn't changed.

    Returns:
        rule, made (Unix time), results, sets and runs, as the page's scripts read them. A problem
        is a line in its run or result.

    Raises:
        UserError: if a folder doesn't exist.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: expected a folder with runs, got none")
    now = time.time()
    paths = find(folders)
    result_paths = _result_files(folders)
    homes = [home(path) for path in paths] + [path.parent for path in result_paths]
    labels = dict(zip(homes, shortest_names(homes), strict=True))
    runs = []
    for index, path in enumerate(paths):
        entry = cache.entry(path, read_run)
        label = labels[home(path)]
        runs.append(
            {
                "id": f"run-{index}",
                "name": path.resolve().name,
                "group": re.sub(r"[-_. ]?seed[-_. ]?\d+$", "", path.resolve().name) or "runs",
                "set": label,
                **entry,
                "silent": _silent(entry, now),
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


def home(run: Path) -> Path:
    """The folder that a run belongs to: the one it lies in, or that above a folder `runs`."""
    parent = run.resolve().parent
    return parent.parent if parent.name == "runs" else parent


def shortest_names(folders: Iterable[Path]) -> list[str]:
    """The last parts of each path, as many as tell it from the others.

    Example:
        >>> shortest_names([Path("/a/x"), Path("/b/x"), Path("/b/y")])
        ['a/x', 'b/x', 'y']
    """
    folders = list(folders)
    names = []
    for folder in folders:
        count = 1
        others = {other for other in folders if other != folder}
        while any(other.parts[-count:] == folder.parts[-count:] for other in others):
            count += 1
        names.append(str(Path(*folder.parts[-count:])) or "/")
    return names


def read_run(path: Path) -> dict[str, Any]:
    """What the page shows of one run folder; damage is told in `problems`."""
    try:
        run = read(path)
    except (UserError, OSError, ValueError, RecursionError) as error:
        return _unreadable(str(error).removeprefix(f"{path}: ") or type(error).__name__)
    found = [text(line) for line in run.problems]
    status, config = run.status, run.config
    return {
        "state": status["state"] if status.get("state") in STATES else "unknown",
        "message": text(status.get("message")),
        "step": integer(status.get("step")),
        "steps": integer(status.get("steps")),
        "updated": number(status.get("updated"), digits=12),
        "test_error": number(status.get("test_error")),
        "best_error": number(status.get("best_error")),
        "best_step": integer(status.get("best_step")),
        "model": text(config.get("model")),
        "activation": text(config.get("activation")),
        "init": text(config.get("init")),
        "data": text(config.get("data")),
        "seed": integer(config.get("seed")),
        "curves": learning_curves(run),
        "inspected": inspected(path, found),
        "learned": learned(path, found),
        "problems": found,
    }


def _unreadable(problem: str) -> dict[str, Any]:
    empty: dict[str, list[float]] = {"x": [], "y": []}
    names = ("step", "steps", "updated", "test_error", "best_error", "best_step", "seed")
    return {
        "state": "unknown",
        **dict.fromkeys(("message", "model", "activation", "init", "data"), ""),
        **dict.fromkeys(names),
        "curves": {"test_error": empty, "train_loss": empty, "epoch_length": None, "rows": 0},
        "inspected": None,
        "learned": [],
        "problems": [text(problem)],
    }


def _silent(entry: dict[str, Any], now: float) -> bool:
    return (
        entry["state"] == "running"
        and entry["updated"] is not None
        and now - entry["updated"] > SILENT_AFTER
    )


def _result_files(folders: Sequence[Path]) -> list[Path]:
    found = {path.resolve() for folder in folders for path in folder.rglob("result.json")}
    return sorted(
        (path for path in found if path.is_file()), key=lambda path: natural(str(path.parent))
    )


def _result(path: Path, label: str) -> dict[str, Any]:
    try:
        return {"set": label, "problem": "", **read_result(path)}
    except ValueError as error:
        return {"set": label, "problem": text(str(error))}
