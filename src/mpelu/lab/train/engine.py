"""Training, from a config to a run folder, and on from where a run folder ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mpelu.lab import data
from mpelu.lab.errors import UserError
from mpelu.lab.train import (
    checkpoint,
    environment,
    events,
    files,
    folder,
    network,
    optimizer,
    settings,
    signals,
)
from mpelu.lab.train.config import Config, difference
from mpelu.lab.train.distributed import World, join
from mpelu.lab.train.divergence import Divergence
from mpelu.lab.train.lock import lock
from mpelu.lab.train.log import NAMES, Lines
from mpelu.lab.train.loop import Loop
from mpelu.lab.train.order import batches_of
from mpelu.lab.train.progress import display
from mpelu.lab.train.randomness import mix
from mpelu.lab.train.schedule import Schedule
from mpelu.lab.train.step import Stepper

_EXAMPLES = 128
"""Images for an initialization that measures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    state: str
    """finished, diverged or interrupted."""
    message: str
    step: int
    test_error: float | None
    """In %, of the last test."""
    best_error: float | None
    exit_code: int
    """0; 130 after Ctrl-C, 143 after SIGTERM."""


def train(
    config: Config,
    out: Path,
    *,
    mirror: str | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> Outcome:
    """Trains a network from the start. Under torchrun all its processes call this alike.

    Args:
        config: all that decides the run.
        out: the run folder, not there yet or empty.
        mirror: where to download data from, in place of the official address.
        quiet: print nothing.
        tensorboard: write events to RUN/tensorboard.

    Raises:
        UserError: for anything that can't work, before the folder is made; later for a disk that is
            full or a folder that is lost.

    Example:
        >>> outcome = train(Config(epochs=2), Path("run"))
    """
    with _session(config) as world:
        world.on_main(lambda: folder.check_new(out))
        prepared = _prepare(config, world, mirror, quiet, tensorboard)
        about = settings.describe(
            config,
            prepared.dataset,
            prepared.stepper.model,
            prepared.optimizer,
            prepared.schedule,
            world,
        )

        def start() -> None:
            described = {**environment.describe(world), "settings": about}
            with folder.made(out) as hidden:
                folder.write_start(hidden, config, prepared.dataset, described)
            if not quiet:
                print(settings.block(about), flush=True)

        world.on_main(start)
        return _run(prepared, out, quiet, tensorboard)


def resume(
    run: Path,
    *,
    changes: Mapping[str, object] | None = None,
    mirror: str | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> Outcome:
    """Goes on with a run that was stopped, to the same end it would have come to.

    Args:
        run: the run folder.
        changes: config fields given anew; only where the data lie may differ.
        mirror: as of `train`.
        quiet: likewise.
        tensorboard: likewise.

    Returns:
        How the run ended; of one that had ended before, without training.

    Example:
        >>> outcome = resume(Path("run"))
    """
    before = folder.read_config(run)
    config = replace(before, **dict(changes or {}))  # type: ignore[arg-type]
    different = difference(before, replace(config, data_dir=before.data_dir))
    if different:
        raise UserError(
            f"{run}: expected the settings the run began with, got {'; '.join(different)}"
        )
    with _session(config) as world:
        ended = world.gather(_ended(run))[0]
        if ended is not None:
            if not quiet and world.is_main:
                print(f"{run} has ended: {ended.message}", flush=True)
            return ended
        prepared = _prepare(config, world, mirror, quiet, tensorboard)
        world.on_main(lambda: folder.check_data(run, prepared.dataset))
        return _run(prepared, run, quiet, tensorboard)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    config: Config
    dataset: data.Dataset
    stepper: Stepper
    optimizer: torch.optim.Optimizer
    schedule: Schedule


@contextlib.contextmanager
def _session(config: Config) -> Iterator[World]:
    """Leaves random numbers, threads and settings of the caller as they were."""
    threads = torch.get_num_threads()
    deterministic = torch.backends.cudnn.deterministic
    with join(config.device) as world, torch.random.fork_rng():
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        torch.backends.cudnn.deterministic = True
        try:
            yield world
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.deterministic = deterministic


def _prepare(
    config: Config, world: World, mirror: str | None, quiet: bool, tensorboard: bool
) -> _Prepared:
    """All that can fail, before anything is written."""
    if tensorboard:
        events.check()
    # The network's name is looked up before what may be a long download.
    network.check_name(config)
    dataset = world.in_turn(
        lambda: data.load(config, world.device, mirror=mirror, quiet=quiet or not world.is_main)
    )
    example = _example(config, dataset) if config.init == "lsuv" else None
    channels, size = dataset.channels, dataset.size
    model = network.build(config, len(dataset.classes), channels, size, example)
    schedule = Schedule.of(config, dataset.train_count)
    network.check_size(model, channels, size, _smallest_part(config, dataset, world))
    sgd = optimizer.make(model, config, channels, size)
    model.to(world.device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.compile:
        model.compile()
    stepper = Stepper.around(model, config, world, schedule.steps)
    return _Prepared(
        config=config, dataset=dataset, stepper=stepper, optimizer=sgd, schedule=schedule
    )


def _example(config: Config, dataset: data.Dataset) -> torch.Tensor:
    first = batches_of(dataset.train_count, config.batch_size, config.seed, 1)[0][:_EXAMPLES]
    seed = mix(config.seed, 1, "augment")
    images, _ = next(iter(dataset.train([first], seed)))
    return images.cpu()


def _smallest_part(config: Config, dataset: data.Dataset, world: World) -> int:
    """Images in the smallest part of a batch that some process computes at a time."""
    last = dataset.train_count % config.batch_size or config.batch_size
    smallest = min(last, config.batch_size, dataset.train_count)
    return max(1, smallest // world.size // config.accumulate)


def _ended(run: Path) -> Outcome | None:
    status = folder.read_json(run / "status.json")
    if status.get("state") not in ("finished", "diverged"):
        return None
    return Outcome(
        state=status["state"],
        message=status["message"],
        step=status["step"],
        test_error=status["test_error"],
        best_error=status["best_error"],
        exit_code=0,
    )


def _run(prepared: _Prepared, run: Path, quiet: bool, tensorboard: bool) -> Outcome:
    world = prepared.stepper.world
    with contextlib.ExitStack() as stack:
        world.on_main(lambda: stack.enter_context(lock(run)))
        loop = Loop(
            config=prepared.config,
            dataset=prepared.dataset,
            stepper=prepared.stepper,
            optimizer=prepared.optimizer,
            schedule=prepared.schedule,
            run=run,
            signals=stack.enter_context(signals.caught()),
        )
        try:
            _take_up(loop, quiet)
            loop.display = display(
                quiet or not world.is_main, prepared.schedule.steps, loop.state.step
            )
            stack.callback(loop.display.close)
            if world.is_main:
                if tensorboard:
                    loop.events = events.Events(run, loop.state.step)
                    stack.callback(loop.events.close)
                loop.status("running", "")
            ended = loop.run_all()
            return _finish(loop, ended)
        except OSError as error:
            _failed(loop, str(error))
            raise files.write_error(run, error) from error
        except BaseException as error:
            _failed(loop, f"{type(error).__name__}: {error}")
            raise


def _take_up(loop: Loop, quiet: bool) -> None:
    """Restores the newest checkpoint that can be used and cuts the logs to what it knows."""
    world = loop.stepper.world
    say: Callable[[str], None] = print if world.is_main else lambda text: None
    lengths: dict[str, Any] = dict.fromkeys(NAMES, 0)
    damaged = []
    if world.is_main:
        files.remove_temporary(loop.run)
        files.remove_temporary(loop.run / checkpoint.FOLDER)
    found = False
    for path in list(checkpoint.candidates(loop.run)):
        try:
            contents = checkpoint.load(path)
            loop.restore(contents)
        except checkpoint.Damaged as error:
            say(f"{path} can't be used: {error}")
            damaged.append(path)
            continue
        lengths = contents["lengths"]
        found = True
        break
    if damaged and not found:
        raise UserError(f"{loop.run}: expected a checkpoint that can be used, got none")
    world.gather(None)
    if not world.is_main:
        return
    for path in damaged:
        checkpoint.set_aside(path)
    if found and loop.state.best_step == loop.state.step:
        checkpoint.mark_best(loop.run, loop.state.step)
    loop.logs = {name: Lines(loop.run / name, lengths[name]) for name in NAMES}
    if not quiet and found:
        print(f"going on after step {loop.state.step}", flush=True)


def _finish(loop: Loop, ended: Divergence | int | None) -> Outcome:
    """Writes how the run ended and tells it."""
    state, code, more = "finished", 0, {}
    errors = loop.state.errors()
    message = f"finished after {loop.state.step} steps: test error {errors['test_error']:.2f} %"
    if isinstance(ended, Divergence):
        state, message = "diverged", str(ended)
        more = {"diverged": ended.to_json()}
    elif ended is not None:
        state, code = "interrupted", 128 + ended
        name = signal.Signals(ended).name
        message = f"interrupted by {name} after step {loop.state.step}; --resume goes on"
    if loop.is_main:
        loop.status(state, message, **more)
        for lines in loop.logs.values():
            lines.close()
    loop.display.close()
    loop.display.note(message)
    return Outcome(
        state=state,
        message=message,
        step=loop.state.step,
        test_error=errors["test_error"],
        best_error=errors["best_error"],
        exit_code=code,
    )


def _failed(loop: Loop, reason: str) -> None:
    if loop.is_main:
        with contextlib.suppress(OSError):
            loop.status("failed", reason)
