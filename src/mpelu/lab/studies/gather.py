"""The runs of a recipe as their folders tell, and what was left out."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from mpelu.lab.config import Config, differing
from mpelu.lab.errors import UserError
from mpelu.lab.run import folder as runs
from mpelu.lab.run.folder import Run
from mpelu.lab.studies.recipe import NamedRun, Options, Recipe, Shrunk

ENDED = ("finished", "diverged")


@dataclass(frozen=True, slots=True)
class Kept:
    """A run that came to an end."""

    named: NamedRun
    run: Run

    @property
    def diverged(self) -> bool:
        return self.run.status.get("state") == "diverged"


@dataclass(frozen=True, slots=True)
class Row:
    """A setting with its runs."""

    shrunk: Shrunk
    kept: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """All settings of a recipe, in order."""

    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    """Folders and runs that don't count, with the reason, a line each."""

    def kept(self) -> list[Kept]:
        return [each for row in self.rows for each in row.kept]


def state(named: NamedRun, folder: Path) -> tuple[str, str]:
    """What there is of a run.

    Args:
        named: the run.
        folder: its folder.

    Returns:
        "new", "finished", "diverged", "unfinished" or "foreign", and for the last what is wrong.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return "new", ""
    try:
        run = runs.read(folder)
        found = Config.from_values(run.config)
    except (UserError, OSError) as error:
        return "foreign", str(error).removeprefix(f"{folder}: ")
    other = differing(found, named.config, deciding=True)
    if other:
        return "foreign", f"another run's config: {other[0]}"
    ended = run.status.get("state")
    if ended not in ENDED:
        return "unfinished", ""
    damage = _damage(run)
    return ("foreign", damage) if damage else (ended, "")


def _damage(run: Run) -> str:
    """What a run that has ended lacks for a table; empty if nothing."""
    if run.status["state"] == "finished":
        for name in ("test_error", "best_error"):
            if not is_number(run.status.get(name)):
                got = run.status.get(name)
                return f"status.json: expected {name} as a number, got {got!r}"
        if not run.tests:
            return "metrics.jsonl: expected the tests of a finished run, got none"
    try:
        classes(run.path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"data.json can't be read: {type(error).__name__}: {error}"
    return ""


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def classes(run: Path) -> int:
    """Number of classes of a run's data."""
    return len(json.loads((run / "data.json").read_text())["classes"])


def gather(recipe: Recipe, options: Options, folder: Path) -> Gathered:
    """Reads the run folders of a recipe.

    Args:
        recipe: whose runs.
        options: which of them.
        folder: of the recipe, with runs/ below.
    """
    named = recipe.runs(options)
    kept: dict[str, list[Kept]] = {}
    left_out = []
    for each in named:
        path = folder / "runs" / each.name
        found, reason = state(each, path)
        if found in ENDED:
            kept.setdefault(each.setting, []).append(Kept(each, runs.read(path)))
        elif found == "foreign":
            left_out.append(f"{path}: {reason}")
        elif found == "unfinished":
            run = runs.read(path)
            message = run.status.get("message") or run.status.get("state", "not begun")
            left_out.append(f"{path}: unfinished, {message}")
        else:
            left_out.append(f"{path}: not run")
    expected = {each.name for each in named}
    there = sorted((folder / "runs").iterdir()) if (folder / "runs").is_dir() else []
    left_out += [
        f"{path}: not a run of this recipe with these options"
        for path in there
        if path.is_dir() and path.name not in expected
    ]
    return Gathered(
        tuple(
            Row(each, tuple(kept.get(each.setting.name, ()))) for each in recipe.at_scale(options)
        ),
        tuple(left_out),
    )
