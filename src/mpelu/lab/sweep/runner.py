"""Runs studies: finds the data, executes the runs that are due, and writes the results."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, plural
from mpelu.lab.run.folder import lock
from mpelu.lab.sweep import executors, results, table
from mpelu.lab.sweep.executors import JobOutcome, is_full
from mpelu.lab.sweep.gather import (
    RUNS,
    TUNING,
    FoundRun,
    Gathered,
    NoRuns,
    chosen_rates,
    examine,
    gather,
)
from mpelu.lab.sweep.results import Result
from mpelu.lab.sweep.study import Execution, Job, Options, Study


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyEvent:
    """Something that happened while studies ran."""

    text: str
    """A line to show."""
    is_problem: bool = False
    """Whether a run failed or was left out."""
    result: Result | None = None
    """The result of a study, once it is written."""
    total: int = 0
    """Number of runs to execute, if this event is the end of one of them; otherwise 0."""


def run(
    studies: Sequence[Study], options: Options, execution: Execution
) -> Generator[StudyEvent, None, None]:
    """Executes the runs of each study that haven't ended, and writes its result.

    Nothing is printed. Closing the generator stops all runs after their step, as Ctrl-C does.

    Args:
        studies: the studies, in order.
        options: scale, seeds, source and data.
        execution: where and how.

    Yields:
        What happened, as it happens.

    Raises:
        UserError: for missing data, before anything is written; if another process runs the study
            in this folder; for a full disk; and at the end, for studies without a run that ended.
    """
    if execution.executor == "ray":
        executors.load_ray()
    for study in studies:
        _check_data(study, options, execution.progress)
    empty = []
    for study in studies:
        try:
            folder = execution.out / study.folder(options)
            folder.mkdir(parents=True, exist_ok=True)  # fails here rather than in every run
            with lock(folder):
                yield from _run(study, options, execution, folder)
        except OSError as error:
            if is_full(error):
                raise _no_space(execution.out, str(error)) from error
            raise UserError(f"can't write to {execution.out}: {error}", field="out") from error
        except NoRuns as error:  # other studies may have some
            empty.append(str(error))
    if empty:
        raise UserError("; ".join(empty))


def _check_data(study: Study, options: Options, progress: bool) -> None:
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
        shown = show_download if progress else None
        data.load(few, torch.device("cpu"), download=True, progress=shown)


def _run(
    study: Study, options: Options, execution: Execution, folder: Path
) -> Iterator[StudyEvent]:
    yield from _run_all(study, options, execution, study.tuning_runs(options), folder / TUNING)
    rates = chosen_rates(study, options, folder)
    runs = [
        each
        for each in study.runs(options, rates)
        if not study.rates or options.is_smoke or each.setting in rates
    ]
    found = yield from _run_all(study, options, execution, runs, folder / RUNS)
    found |= {
        each.name: FoundRun(job=each, state="new", reason="its learning rate hasn't been chosen")
        for each in study.runs(options, rates)
        if each.name not in found
    }
    result = _summarize(gather(study, options, folder, found))
    results.write(result, folder)
    yield StudyEvent(text=f"written to {folder}", result=result)


def _run_all(
    study: Study,
    options: Options,
    execution: Execution,
    runs: Sequence[Job],
    folder: Path,
) -> Generator[StudyEvent, None, dict[str, FoundRun]]:
    """Executes the runs that haven't ended. Returns what is then in the folders of all of them."""
    named = {each.name: each for each in runs}
    found = {name: examine(each, folder / name) for name, each in named.items()}
    for name, each in found.items():
        if each.state == "foreign":
            text = f"left out: {folder / name}: {each.reason}"
            yield StudyEvent(text=text, is_problem=True)
    jobs = [
        replace(job, folder=str((folder / name).resolve()))
        for name, job in named.items()
        if found[name].state in ("new", "unfinished")
    ]
    if named:
        ended = sum(each.state == "ended" for each in found.values())
        before = f", {ended} finished before" if ended else ""
        purpose = " to choose learning rates" if folder.name == TUNING else ""
        count = f"{plural(len(jobs), 'run')}{purpose}"
        yield StudyEvent(text=f"{study.name}, {options.scale}: {count}{before}")
    if jobs:
        folder.mkdir(exist_ok=True)
        yield from _execute(study, options, execution, jobs)
    # Each folder is read once: folders of finished runs above, the others now.
    return found | {job.name: examine(named[job.name], folder / job.name) for job in jobs}


def _execute(
    study: Study, options: Options, execution: Execution, jobs: Sequence[Job]
) -> Iterator[StudyEvent]:
    with contextlib.closing(_executor(options, execution, jobs)) as outcomes:
        for count, outcome in enumerate(outcomes, 1):
            if outcome.state == "interrupted":
                raise KeyboardInterrupt
            if outcome.state == "full":
                raise _no_space(execution.out, outcome.message)
            is_problem = outcome.state == "failed"
            verdict = " failed" if is_problem else ""
            text = f"{study.name} {count}/{len(jobs)} {outcome.name}{verdict}: {outcome.message}"
            yield StudyEvent(text=text, is_problem=is_problem, total=len(jobs))


def _executor(
    options: Options, execution: Execution, jobs: Sequence[Job]
) -> Generator[JobOutcome, None, None]:
    at_a_time = execution.jobs_at(options.scale)
    if execution.executor == "ray":
        return executors.ray(
            jobs,
            address=execution.ray_address,
            cpus=execution.cpus_per_run,
            gpus=execution.gpus_per_run,
            workers=at_a_time,
        )
    if options.is_smoke and at_a_time == 1:
        return executors.inline(jobs)
    # The progress of several runs would be mixed up.
    progress = execution.progress and at_a_time == 1
    return executors.local(jobs, processes=at_a_time, progress=progress)


def _summarize(gathered: Gathered) -> Result:
    """The result as the study makes it, with its plots drawn."""
    from mpelu.lab import environment
    from mpelu.lab.sweep import drawing

    result = (gathered.study.summarize or table.tabulate)(gathered)
    figures = result.figures or drawing.draw(result.plots, gathered.folder)
    return replace(result, figures=figures, environment=environment.describe_machine())


def _no_space(out: Path, message: str) -> UserError:
    return UserError(
        f"{out}: no space left ({message}); finished runs are kept, so free some space and run "
        "the same command again to continue"
    )
