"""Training, from a config to a run folder, and on from where a run folder ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mpelu.lab import environment
from mpelu.lab.config import Config, differing
from mpelu.lab.errors import UserError
from mpelu.lab.run import files, folder
from mpelu.lab.run.lock import lock
from mpelu.lab.run.metrics import LOGS, Log
from mpelu.lab.training import events, settings, signals
from mpelu.lab.training.distributed import World
from mpelu.lab.training.divergence import Divergence
from mpelu.lab.training.loop import Loop
from mpelu.lab.training.prepare import Prepared, prepare, session
from mpelu.lab.training.progress import display
from mpelu.lab.training.recovery import take_up
from mpelu.lab.training.restore import check_data


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
    with session(config) as world:
        return _new(world, config, out, mirror, quiet, tensorboard)


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
    begun = folder.read_config(run)
    config = Config.from_values({**asdict(begun), **(changes or {})})
    different = differing(begun, config, deciding=True)
    if different:
        raise UserError(
            f"{run}: expected the settings the run began with, got {'; '.join(different)}"
        )
    with session(config) as world, _locked(world, run):
        return _old(world, config, run, mirror, quiet, tensorboard)


# What these two refer to, the network in DistributedDataParallel above all, is gone when the
# session ends, which can then leave the process group in order.
def _new(
    world: World, config: Config, out: Path, mirror: str | None, quiet: bool, tensorboard: bool
) -> Outcome:
    world.on_main(lambda: folder.check_new(out))
    prepared = prepare(config, world, mirror, quiet, tensorboard)
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
        folder.create(
            out,
            config,
            data=prepared.dataset.describe(),
            preprocess=prepared.dataset.preprocess.state(),
            environment=described,
        )
        if not quiet:
            print(settings.block(about), flush=True)

    world.on_main(start)
    with _locked(world, out):
        return _run(prepared, out, quiet, tensorboard)


def _old(
    world: World, config: Config, run: Path, mirror: str | None, quiet: bool, tensorboard: bool
) -> Outcome:
    ended = world.gather(_ended(run))[0]
    if ended is not None:
        if not quiet and world.is_main:
            print(f"{run} has ended: {ended.message}", flush=True)
        return ended
    prepared = prepare(config, world, mirror, quiet, tensorboard)
    world.on_main(lambda: check_data(run, prepared.dataset))
    before = folder.read_object(run, folder.ENVIRONMENT)
    if world.is_main and not quiet and (changed := environment.changes(before, world)):
        print(f"the last bits may come out otherwise: {'; '.join(changed)}", flush=True)
    return _run(prepared, run, quiet, tensorboard, resumed=True)


@contextlib.contextmanager
def _locked(world: World, run: Path) -> Iterator[None]:
    """The main process holds the lock for all."""
    with contextlib.ExitStack() as stack:
        world.on_main(lambda: stack.enter_context(lock(run)))
        yield


def _ended(run: Path) -> Outcome | None:
    status = folder.read_object(run, folder.STATUS)
    if status.get("state") not in ("finished", "diverged"):
        return None
    return Outcome(
        state=status["state"],
        message=status.get("message", status["state"]),
        step=status.get("step", 0),
        test_error=status.get("test_error"),
        best_error=status.get("best_error"),
        exit_code=0,
    )


def _run(
    prepared: Prepared, run: Path, quiet: bool, tensorboard: bool, *, resumed: bool = False
) -> Outcome:
    world = prepared.stepper.world
    with contextlib.ExitStack() as stack:
        loop = Loop(
            config=prepared.config,
            dataset=prepared.dataset,
            stepper=prepared.stepper,
            optimizer=prepared.optimizer,
            schedule=prepared.schedule,
            run=run,
            signals=stack.enter_context(signals.caught()),
        )
        stack.callback(loop.close)
        try:
            if resumed:
                take_up(loop, quiet)
            elif world.is_main:
                loop.logs = {name: Log(run / name, 0) for name in LOGS}
            loop.display = display(
                quiet or not world.is_main, prepared.schedule.steps, loop.state.step
            )
            if world.is_main:
                if tensorboard:
                    loop.events = events.Events(run, loop.state.step)
                loop.status("running", "")
            ended = loop.run_all()
            return _finish(loop, ended)
        except OSError as error:
            _failed(loop, str(error))
            raise files.disk_error(run, error) from error
        except BaseException as error:
            _failed(loop, f"{type(error).__name__}: {error}")
            raise


def _finish(loop: Loop, ended: Divergence | int | None) -> Outcome:
    """Writes how the run ended and tells it."""
    state, code, more = "finished", 0, {}
    errors = loop.state.errors()
    if ended is None:
        message = f"finished after {loop.state.step} steps: test error {errors['test_error']:.2f} %"
    elif isinstance(ended, Divergence):
        state, message = "diverged", str(ended)
        more = {"diverged": ended.to_json()}
    else:
        state, code = "interrupted", 128 + ended
        name = signal.Signals(ended).name
        message = f"interrupted by {name} after step {loop.state.step}; --resume goes on"
    if loop.is_main:
        loop.status(state, message, **more)
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
