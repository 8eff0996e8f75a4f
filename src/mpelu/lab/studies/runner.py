"""From recipes to runs and from runs to results."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.studies import executor_local, executor_ray, summary, tables
from mpelu.lab.studies.gather import ENDED, state
from mpelu.lab.studies.recipe import NamedRun, Options, Recipe, check
from mpelu.lab.studies.result import Result
from mpelu.lab.studies.work import Done, Job, is_full

EXECUTORS = ("local", "ray")
INTERRUPTED, TERMINATED = 130, 143


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Where and how runs are run."""

    out: Path
    executor: str = "local"
    jobs: int = 1
    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    quiet: bool = False


def reproduce(chosen: Sequence[Recipe], options: Options, plan: Plan) -> int:
    """Runs what isn't finished of each recipe, and writes and shows its result.

    Args:
        chosen: the recipes.
        options: scale, seeds, reading and data.
        plan: where and how.

    Returns:
        The exit code: 0, 1 if a run failed or was left out, 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        UserError: for options no recipe can have, missing data or a full disk; at the end, for
            recipes without a single run to show.
    """
    check(options)
    if plan.executor == "ray":
        executor_ray.load()
    for recipe in chosen:
        _check_data(recipe, options)
    code = 0
    empty = []
    with _terminable():
        for recipe in chosen:
            try:
                code = max(code, _one(recipe, options, plan))
            except KeyboardInterrupt as error:
                print("interrupted; the same command goes on from here", flush=True)
                return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
            except OSError as error:
                if is_full(error):
                    raise _full(plan.out, str(error)) from error
                raise UserError(f"{plan.out}: expected to write there, got {error}") from error
            except summary.NoRuns as error:  # the other recipes may fare better
                empty.append(str(error))
    if empty:
        raise UserError("; ".join(empty))
    return code


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is to leave no process behind either."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_data(recipe: Recipe, options: Options) -> None:
    """Data are found, or fetched, before anything is run or written."""
    import torch

    from mpelu.lab import data
    from mpelu.lab.training.display import show_download

    configs = [run.config for run in recipe.runs(replace(options, seeds=1))]
    configs += recipe.looks_at(options)
    for config in {each.data: each for each in configs}.values():
        few = Config(
            data=config.data,
            data_dir=config.data_dir,
            preprocess="none",
            train_limit=1,
            test_limit=1,
        )
        data.load(few, torch.device("cpu"), download=True, progress=show_download)


def _one(recipe: Recipe, options: Options, plan: Plan) -> int:
    folder = plan.out / recipe.folder(options)
    named = recipe.runs(options)
    jobs, foreign = _sort(named, folder, plan)
    say: Callable[[str], None] = (lambda text: None) if plan.quiet else _print
    failures = len(foreign)
    for text in foreign:
        _print(f"left out: {text}")
    if jobs:
        (folder / "runs").mkdir(parents=True, exist_ok=True)  # now, not in every run
    if named:
        skipped = len(named) - len(jobs) - len(foreign)
        before = f", {skipped} done before" if skipped else ""
        say(f"{recipe.name}, {options.scale}: {len(jobs)} runs{before}")
    failures += _execute(recipe, options, plan, jobs, say)
    result = summarize(recipe, options, folder)
    tables.write(result, folder)
    tables.show(result)
    say(f"written to {folder}")
    return 1 if failures else 0


def _sort(named: Sequence[NamedRun], folder: Path, plan: Plan) -> tuple[list[Job], list[str]]:
    """What is to be run, and which folders stand in the way."""
    jobs, foreign = [], []
    for run in named:
        path = folder / "runs" / run.name
        found, reason = state(run, path)
        if found == "foreign":
            foreign.append(f"{path}: {reason}")
        elif found not in ENDED:
            jobs.append(Job(name=run.name, config=run.config, folder=str(path.resolve())))
    return jobs, foreign


def _execute(
    recipe: Recipe,
    options: Options,
    plan: Plan,
    jobs: Sequence[Job],
    say: Callable[[str], None],
) -> int:
    """Runs the jobs; returns how many failed."""
    failures = 0
    if not jobs:
        return failures
    with contextlib.closing(_executor(options, plan, jobs)) as ended:
        for count, done in enumerate(ended, 1):
            if done.state == "interrupted":
                raise KeyboardInterrupt
            if done.state == "full":
                raise _full(plan.out, done.message)
            text = f"{recipe.name} {count}/{len(jobs)} {done.name}: {done.message}"
            if done.state == "failed":
                failures += 1
                _print(f"{recipe.name} {count}/{len(jobs)} {done.name} failed: {done.message}")
            else:
                say(text)
    return failures


def _executor(options: Options, plan: Plan, jobs: Sequence[Job]) -> Generator[Done, None, None]:
    if plan.executor == "ray":
        return executor_ray.distribute(
            jobs, address=plan.address, cpus=plan.cpus, gpus=plan.gpus, workers=plan.jobs
        )
    if options.scale == "smoke" and plan.jobs == 1:
        return executor_local.inline(jobs)
    # Several at a time would write over each other's progress.
    return executor_local.pool(jobs, processes=plan.jobs, quiet=plan.quiet or plan.jobs > 1)


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    """The result as the recipe makes it, with its plots drawn."""
    from mpelu.lab.studies import drawing

    make = recipe.summarize or summary.table
    result = make(recipe, options, folder)
    if result.figures or not result.plots:
        return result
    return replace(result, figures=drawing.draw(result.plots, folder))


def jobs_of(given: int | None, scale: str) -> int:
    """Runs at a time: the number given, or one for each core at small scale, where networks are too
    small for several cores to help each other; otherwise one."""
    return given or ((os.cpu_count() or 1) if scale == "small" else 1)


def _full(out: Path, message: str) -> UserError:
    return UserError(
        f"{out}: no space left ({message}); finished runs are kept, and the same command goes on "
        "once there is room"
    )


def _print(text: str) -> None:
    print(text, flush=True)
