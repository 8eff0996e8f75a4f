"""Runs studies: finds the data, executes the runs that are due, and writes the results."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpelu.lab import environment, plots, tables
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, plural
from mpelu.lab.run.folder import lock
from mpelu.lab.sweep import executors, table
from mpelu.lab.sweep.gather import RUNS, TUNING, chosen_rates, examine, gather
from mpelu.lab.sweep.study import Job, Options, Study
from mpelu.lab.tables import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened while studies ran."""

    text: str
    """A line to show."""
    is_problem: bool = False
    """Whether a run failed or was left out."""
    result: Result | None = None
    """The result of a study, once it is written."""
    total: int = 0
    """Number of runs to execute, if this event is the end of one of them; otherwise 0."""


def run(studies: Sequence[Study], options: Options) -> Generator[Event, None, None]:
    """Executes the runs of each study that haven't ended, and writes its result.

    Nothing is printed. Closing the generator stops all runs after their step, as Ctrl-C does.

    Yields:
        What happened, as it happens.

    Raises:
        UserError: for missing data, before anything is written; if another process runs the study
            in this folder; for a full disk; and at the end, for studies without a run that ended.
    """
    if options.executor == "ray":
        executors.load_ray()
    for study in studies:
        _check_data(study, options)
    empty = []
    for study in studies:
        try:
            folder = study.folder(options)
            folder.mkdir(parents=True, exist_ok=True)  # fails here rather than in every run
            with lock(folder):
                reason = yield from _run(study, options, folder)
        except OSError as error:
            if executors.is_full(error):
                raise _no_space(options.out, str(error)) from error
            raise UserError(f"can't write to {options.out}: {error}", field="out") from error
        if reason:  # other studies may have results
            empty.append(f"{study.name}: no run has finished; {reason}")
    if empty:
        raise UserError("; ".join(empty))


def _check_data(study: Study, options: Options) -> None:
    """Finds or downloads the data, before anything is run or written."""
    import torch

    from mpelu.lab import data
    from mpelu.lab.training.display import show_download

    configs = [each.config for each in study.runs(replace(options, seeds=1))]
    configs += study.inspects(options)
    for config in {each.data: each for each in configs}.values():
        few = Config(
            data=config.data,
            data_dir=config.data_dir,
            image_size=config.image_size,
            crop=config.crop,
            preprocess="none",
            train_limit=1,
            test_limit=1,
        )
        shown = show_download if options.progress else None
        data.load(few, torch.device("cpu"), download=True, progress=shown)


def _run(study: Study, options: Options, folder: Path) -> Generator[Event, None, str]:
    """Runs a study. Returns why it has no result, if none of its runs has ended; otherwise ""."""
    yield from _run_all(study, options, study.tuning_runs(options), folder / TUNING)
    rates = chosen_rates(study, options)
    runs = study.runs(options, rates)
    needs_rate = study.rates and not options.is_smoke
    due = [each for each in runs if not needs_rate or each.setting in rates]
    found = yield from _run_all(study, options, due, folder / RUNS)
    unknown = "its learning rate hasn't been chosen"
    found |= {each.name: replace(each, message=unknown) for each in runs if each.name not in found}
    gathered = gather(study, options, found)
    if runs and not gathered.ended():
        return gathered.left_out[0]
    result = (study.summarize or table.tabulate)(gathered)
    figures = result.figures or plots.draw(result.plots, folder)
    result = replace(result, figures=figures, environment=environment.describe_machine())
    tables.write(result, folder)
    yield Event(text=f"written to {folder}", result=result)
    return ""


def _run_all(
    study: Study, options: Options, runs: Sequence[Job], folder: Path
) -> Generator[Event, None, dict[str, Job]]:
    """Executes the runs that haven't ended. Returns what is then in the folders of all of them."""
    found = {each.name: examine(each, folder / each.name) for each in runs}
    for name, each in found.items():
        if each.state == "foreign":
            yield Event(text=f"left out: {folder / name}: {each.message}", is_problem=True)
    due = [each for each in runs if found[each.name].state in ("new", "unfinished")]
    if runs:
        ended = sum(each.state == "ended" for each in found.values())
        before = f", {ended} finished before" if ended else ""
        purpose = " to choose learning rates" if folder.name == TUNING else ""
        count = f"{plural(len(due), 'run')}{purpose}"
        yield Event(text=f"{study.name}, {options.scale}: {count}{before}")
    if due:
        folder.mkdir(exist_ok=True)
        placed = [replace(each, folder=str((folder / each.name).resolve())) for each in due]
        yield from _execute(study, options, placed)
    # Each folder is read once: folders of finished runs above, the others now.
    return found | {each.name: examine(each, folder / each.name) for each in due}


def _execute(study: Study, options: Options, jobs: Sequence[Job]) -> Iterator[Event]:
    with contextlib.closing(_executor(options, jobs)) as ended:
        for count, job in enumerate(ended, 1):
            if job.state == "interrupted":
                raise KeyboardInterrupt
            if job.state == "full":
                raise _no_space(options.out, job.message)
            is_problem = job.state == "failed"
            verdict = " failed" if is_problem else ""
            text = f"{study.name} {count}/{len(jobs)} {job.name}{verdict}: {job.message}"
            yield Event(text=text, is_problem=is_problem, total=len(jobs))


def _executor(options: Options, jobs: Sequence[Job]) -> Generator[Job, None, None]:
    at_a_time = options.at_a_time
    if options.executor == "ray":
        return executors.ray(jobs, options)
    if options.is_smoke and at_a_time == 1:
        return executors.inline(jobs)
    # The progress of several runs would be mixed up.
    progress = options.progress and at_a_time == 1
    return executors.local(jobs, processes=at_a_time, progress=progress)


def _no_space(out: Path, message: str) -> UserError:
    return UserError(
        f"{out}: no space left ({message}); finished runs are kept, so free some space and run "
        "the same command again to continue"
    )
