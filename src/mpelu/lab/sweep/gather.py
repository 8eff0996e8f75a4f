"""The runs of a study as found in their folders, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpelu.lab.config import Config, differing
from mpelu.lab.errors import UserError
from mpelu.lab.run import folder as runs
from mpelu.lab.run.folder import METRICS, Run
from mpelu.lab.sweep.study import Job, Options, Setting, Study

RUNS = "runs"
"""The directory of run folders inside a study's directory."""
TUNING = "tuning"
"""The directory of runs that choose learning rates."""


class NoRuns(UserError):
    """There is no run to make a table of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRun:
    """What was found in the folder of a run."""

    job: Job
    state: str
    """new, unfinished, ended, or foreign if the folder holds something else or is damaged."""
    content: Run | None = None
    """What the folder holds; None if it is new or can't be read."""
    reason: str = ""
    """Why the run doesn't count yet, or never will; empty for "ended"."""

    @property
    def run(self) -> Run:
        """The content of the folder, where it could be read."""
        assert self.content is not None
        return self.content

    @property
    def diverged(self) -> bool:
        return self.run.status.get("state") == "diverged"

    @property
    def num_classes(self) -> int:
        return len(self.run.data["classes"])


@dataclass(frozen=True, slots=True)
class SettingRuns:
    """A setting with its runs that ended."""

    setting: Setting
    """As it is run at this scale."""
    ended: tuple[FoundRun, ...]


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

    def ended(self) -> list[FoundRun]:
        """The runs that finished or diverged."""
        return [each for row in self.rows for each in row.ended]

    def require_ended(self) -> list[FoundRun]:
        """The runs that finished or diverged.

        Raises:
            NoRuns: if there is none.
        """
        ended = self.ended()
        if not ended:
            first = f"; {self.left_out[0]}" if self.left_out else ""
            raise NoRuns(f"{self.study.name}: no run has finished{first}")
        return ended

    def run_names(self) -> tuple[str, ...]:
        """The folders of the runs that ended, relative to the study's directory."""
        return tuple(f"{each.run.path.relative_to(self.folder)}" for each in self.ended())


def examine(job: Job, path: Path) -> FoundRun:
    """Reads the folder of a run and says what it is."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return FoundRun(job=job, state="new", reason="not run")
    try:
        run = runs.read(path)
        config = Config.from_values(run.config)
    except (UserError, OSError) as error:
        return FoundRun(job=job, state="foreign", reason=str(error).removeprefix(f"{path}: "))
    different = differing(config, job.config, deciding=True)
    if different:
        name = different[0]
        found, expected = getattr(config, name), getattr(job.config, name)
        reason = f"a run with other settings: {name} is {found!r}, expected {expected!r}"
        return FoundRun(job=job, state="foreign", reason=reason)
    if run.status.get("state") not in runs.ENDED:
        message = run.status.get("message") or run.status.get("state", "not started")
        return FoundRun(job=job, state="unfinished", content=run, reason=f"unfinished: {message}")
    damage = _damage(run)
    return FoundRun(job=job, state="foreign" if damage else "ended", content=run, reason=damage)


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
            return f"{METRICS}: no tests found, though the run has finished"
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
    """The learning rate with the lowest test loss, for each setting whose tuning runs have ended.

    If all of them diverged, it is the smallest rate.
    """
    losses: dict[str, list[tuple[float, float]]] = {}
    for job in study.tuning_runs(options):
        found = examine(job, folder / TUNING / job.name)
        if found.state == "ended":
            losses.setdefault(job.setting, []).append((test_loss(found.run), job.config.lr))
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
    jobs = study.runs(options, chosen_rates(study, options, folder))
    if found is None:
        found = {job.name: examine(job, folder / RUNS / job.name) for job in jobs}
    ended: dict[str, list[FoundRun]] = {}
    left_out = []
    for job in jobs:
        there = found[job.name]
        if there.state == "ended":
            ended.setdefault(job.setting, []).append(there)
        else:
            left_out.append(f"{folder / RUNS / job.name}: {there.reason}")
    others = sorted((folder / RUNS).iterdir()) if (folder / RUNS).is_dir() else []
    left_out += [
        f"{path}: not a run of this study with these options"
        for path in others
        if path.is_dir() and path.name not in found
    ]
    rows = [
        SettingRuns(setting, tuple(ended.get(setting.name, ())))
        for setting in study.at_scale(options)
    ]
    return Gathered(
        study=study, options=options, folder=folder, rows=tuple(rows), left_out=tuple(left_out)
    )
