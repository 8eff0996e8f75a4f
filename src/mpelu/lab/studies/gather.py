"""The runs of a study as found in their folders, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpelu.lab.config import Config, differing
from mpelu.lab.errors import UserError
from mpelu.lab.run import folder as runs
from mpelu.lab.run.folder import Run
from mpelu.lab.run.metrics import METRICS
from mpelu.lab.studies.study import NamedRun, Options, ScaledSetting, Study

RUNS = "runs"
"""The directory of run folders inside that of a study."""
TUNING = "tuning"
"""The directory of runs that choose learning rates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRun:
    """What was found in the folder of a run."""

    state: str
    """new, unfinished, ended, or foreign if the folder holds something else or is damaged."""
    run: Run | None = None
    reason: str = ""
    """Why the run doesn't count yet, or never will; empty for "ended"."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that finished or diverged."""

    named: NamedRun
    run: Run

    @property
    def diverged(self) -> bool:
        return self.run.status.get("state") == "diverged"

    @property
    def num_classes(self) -> int:
        return len(self.run.data["classes"])


@dataclass(frozen=True, slots=True)
class SettingRuns:
    """A setting with its runs that ended."""

    scaled: ScaledSetting
    ended: tuple[EndedRun, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """All that the result of a study is made from."""

    study: Study
    options: Options
    folder: Path
    """The study's directory."""
    rows: tuple[SettingRuns, ...]
    """All settings, in order."""
    left_out: tuple[str, ...]
    """Folders and runs that don't count, with the reason, a line each."""

    def ended(self) -> list[EndedRun]:
        return [each for row in self.rows for each in row.ended]


def examine(named: NamedRun, path: Path) -> FoundRun:
    """Reads the folder of a run and says what it is."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return FoundRun(state="new", reason="not run")
    try:
        run = runs.read(path)
        config = Config.from_values(run.config)
    except (UserError, OSError) as error:
        return FoundRun(state="foreign", reason=str(error).removeprefix(f"{path}: "))
    different = differing(config, named.config, deciding=True)
    if different:
        name = different[0]
        found, expected = getattr(config, name), getattr(named.config, name)
        reason = f"a run with other settings: {name} is {found!r}, expected {expected!r}"
        return FoundRun(state="foreign", reason=reason)
    if run.status.get("state") not in runs.ENDED:
        message = run.status.get("message") or run.status.get("state", "not started")
        return FoundRun(state="unfinished", run=run, reason=f"unfinished: {message}")
    damage = _damage(run)
    return FoundRun(state="foreign" if damage else "ended", run=run, reason=damage)


def _damage(run: Run) -> str:
    """What is wrong with a run that has ended, or lacks for a table; empty if nothing."""
    for problem in run.problems:
        if not problem.startswith(runs.ENVIRONMENT):  # of which no number is made
            return problem
    if run.status["state"] == "finished":
        for name in ("test_error", "best_error"):
            if not is_number(run.status.get(name)):
                return f"{runs.STATUS}: expected a number for {name}, got {run.status.get(name)!r}"
        if not run.tests:
            return f"{METRICS}: expected the tests of a finished run, got none"
    classes = run.data.get("classes")
    if not isinstance(classes, list) or not classes:
        return f"{runs.DATA}: expected a list of classes, got {classes!r}"
    return ""


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def test_loss(run: Run) -> float:
    """The validation loss of the last test, or the test loss without validation images; infinity
    if the run diverged."""
    if run.status.get("state") != "finished" or not run.tests:
        return math.inf
    last = run.tests[-1]
    loss = last.get("validation_loss", last.get("test_loss"))
    return loss if isinstance(loss, float) and math.isfinite(loss) else math.inf


def chosen_rates(study: Study, options: Options, folder: Path) -> dict[str, float]:
    """The learning rate of the lowest test loss, for each setting whose tuning runs have ended.

    Where all of them diverged it is the smallest rate.
    """
    losses: dict[str, list[tuple[float, float]]] = {}
    for named in study.tuning_runs(options):
        found = examine(named, folder / TUNING / named.name)
        if found.state == "ended" and found.run is not None:
            pair = (test_loss(found.run), named.config.lr)
            losses.setdefault(named.setting, []).append(pair)
    return {
        setting: min(pairs)[1]
        for setting, pairs in losses.items()
        if len(pairs) == len(study.rates)
    }


def gather(
    study: Study, options: Options, folder: Path, found: Mapping[str, FoundRun] | None = None
) -> Gathered:
    """Collects the runs of a study.

    Args:
        study: the study.
        options: which of its runs.
        folder: the study's directory.
        found: what `examine` found, by name of the run; None to read the folders.
    """
    named = study.runs(options, chosen_rates(study, options, folder))
    if found is None:
        found = {each.name: examine(each, folder / RUNS / each.name) for each in named}
    ended: dict[str, list[EndedRun]] = {}
    left_out = []
    for each in named:
        there = found[each.name]
        if there.state == "ended":
            assert there.run is not None
            ended.setdefault(each.setting, []).append(EndedRun(each, there.run))
        else:
            left_out.append(f"{folder / RUNS / each.name}: {there.reason}")
    others = sorted((folder / RUNS).iterdir()) if (folder / RUNS).is_dir() else []
    left_out += [
        f"{path}: not a run of this study with these options"
        for path in others
        if path.is_dir() and path.name not in found
    ]
    rows = [
        SettingRuns(each, tuple(ended.get(each.setting.name, ())))
        for each in study.at_scale(options)
    ]
    return Gathered(
        study=study, options=options, folder=folder, rows=tuple(rows), left_out=tuple(left_out)
    )
