"""The runs of a study as found in their folders, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpelu.lab.config import Config, differing
from mpelu.lab.errors import UserError
from mpelu.lab.run import folder as runs
from mpelu.lab.run.folder import METRICS, Run
from mpelu.lab.sweep.study import Job, Options, Setting, Study
from mpelu.lab.tables import Result

RUNS = "runs"
"""The directory of run folders inside a study's directory."""
TUNING = "tuning"
"""The directory of runs that choose learning rates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """All that the result of a study is made from."""

    study: Study
    options: Options
    rows: tuple[Setting, ...]
    """All settings as they are run at this scale, in order, with their runs that ended."""
    left_out: tuple[str, ...]
    """Folders and runs that don't count, with the reason, a line each."""

    @property
    def folder(self) -> Path:
        """The study's directory."""
        return self.study.folder(self.options)

    def ended(self) -> list[Job]:
        """The runs that finished or diverged."""
        return [each for row in self.rows for each in row.ended]

    def result(self, **fields: Any) -> Result:
        """The result of the study: these fields, and what every result says of its runs."""
        ended = self.ended()
        return Result(
            **{
                "study": self.study.name,
                "title": self.study.title,
                "scale": self.options.scale,
                "seeds": self.study.seed_count(self.options) if ended else 1,
                "data": ", ".join(sorted({each.run.config["data"] for each in ended})) or "none",
                "runs": tuple(str(each.run.path.relative_to(self.folder)) for each in ended),
                **fields,
            }
        )


def examine(job: Job, path: Path) -> Job:
    """Reads the folder of a run and says what it is."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return replace(job, state="new", message="not run")
    try:
        run = runs.read(path)
        config = Config.from_values(run.config)
    except (UserError, OSError) as error:
        return replace(job, state="foreign", message=str(error).removeprefix(f"{path}: "))
    different = differing(config, job.config, deciding=True)
    if different:
        name = different[0]
        found, expected = getattr(config, name), getattr(job.config, name)
        reason = f"a run with other settings: {name} is {found!r}, expected {expected!r}"
        return replace(job, state="foreign", message=reason)
    if run.status.get("state") not in runs.ENDED:
        told = run.status.get("message") or run.status.get("state", "not started")
        return replace(job, state="unfinished", found=run, message=f"unfinished: {told}")
    damage = _damage(run)
    return replace(job, state="foreign" if damage else "ended", found=run, message=damage)


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


def chosen_rates(study: Study, options: Options) -> dict[str, float]:
    """The learning rate with the lowest test loss, for each setting whose tuning runs have ended.

    If all of them diverged, it is the smallest rate.
    """
    losses: dict[str, list[tuple[float, float]]] = {}
    for job in study.tuning_runs(options):
        found = examine(job, study.folder(options) / TUNING / job.name)
        if found.state == "ended":
            losses.setdefault(job.setting, []).append((test_loss(found.run), job.config.lr))
    return {
        setting: min(pairs)[1]
        for setting, pairs in losses.items()
        if len(pairs) == len(study.rates)
    }


def gather(study: Study, options: Options, found: Mapping[str, Job] | None = None) -> Gathered:
    """Collects the runs of a study.

    Args:
        study: the study.
        options: which of its runs, and where they are.
        found: what `examine` found, by name of the run; None to read the folders.
    """
    folder = study.folder(options) / RUNS
    if found is None:
        jobs = study.runs(options, chosen_rates(study, options))
        found = {job.name: examine(job, folder / job.name) for job in jobs}
    ended: dict[str, tuple[Job, ...]] = {}
    left_out = []
    for name, job in found.items():
        if job.state == "ended":
            ended[job.setting] = (*ended.get(job.setting, ()), job)
        else:
            left_out.append(f"{folder / name}: {job.message}")
    left_out += [
        f"{path}: not a run of this study with these options"
        for path in (sorted(folder.iterdir()) if folder.is_dir() else [])
        if path.is_dir() and path.name not in found
    ]
    rows = tuple(replace(each, ended=ended.get(each.name, ())) for each in study.at_scale(options))
    return Gathered(study=study, options=options, rows=rows, left_out=tuple(left_out))
