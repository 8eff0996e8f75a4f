"""Starting, resuming and extending runs.

`train` makes a run folder and fills it; `resume` continues in one. Everything that can fail is
tried before the folder is made or changed: data, network and optimizer are set up by `Trainer`.
Under torchrun all processes call these functions alike, and the main one writes the folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpelu.lab import files
from mpelu.lab.config import FIELDS, Config, differing
from mpelu.lab.environment import changed, describe_process, describe_run
from mpelu.lab.errors import UserError, flag
from mpelu.lab.optimization import LENGTH_FREE
from mpelu.lab.references import check_trusted, describe_source
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.run.folder import lock
from mpelu.lab.run.writer import check_tensorboard
from mpelu.lab.training.display import Display, LogDisplay
from mpelu.lab.training.process import World, session
from mpelu.lab.training.trained import check_data, naming
from mpelu.lab.training.trainer import DIVERGED, Outcome, Trainer


def train(
    config: Config,
    out: Path | str,
    *,
    display: Display | None = None,
    mirror: str | None = None,
    tensorboard: bool = False,
    loggers: Sequence[str] = (),
) -> Outcome:
    """Trains a network from the start.

    Under torchrun, every process calls this with the same arguments.

    Args:
        config: the run.
        out: the run folder, which must not exist yet or be empty.
        display: shows progress; by default, messages go to the logger "mpelu.lab".
        mirror: URL to download data from, instead of the official one.
        tensorboard: also write TensorBoard events to RUN/tensorboard.
        loggers: loggers of your own, each as package.module:factory; see docs/training.md.

    Raises:
        UserError: for anything that can't work, before the folder is made; later, if the disk is
            full or the folder is gone.

    Example:
        >>> train(Config(epochs=2), "runs/first").state  # doctest: +SKIP
        'finished'
    """
    run = Path(out)
    if tensorboard:
        check_tensorboard()
    with session(config) as world:
        world.on_main(lambda: folder.check_new(run))
        return _begin(Trainer(config, run, world, display, mirror, tensorboard, loggers))


def resume(
    run: Path | str,
    *,
    changes: Mapping[str, object] | None = None,
    display: Display | None = None,
    mirror: str | None = None,
    tensorboard: bool = False,
    loggers: Sequence[str] = (),
    trust: bool = False,
) -> Outcome:
    """Continues a run that was stopped, or extends one that has finished.

    A resumed run ends with the same bits as one that was never stopped. An extended run ends with
    the same bits as one that had the new length from the start, as long as both use the same
    learning rate at each step.

    Args:
        run: the run folder.
        changes: config fields to change. The length (`epochs` or `iterations`) can grow; fields
            that don't decide the result, such as `data_dir` and `device`, can change.
        display: as for `train`.
        mirror: as for `train`.
        tensorboard: as for `train`.
        loggers: as for `train`.
        trust: import the code that the run's config names, such as "mine:net".

    Returns:
        How the run ended. A run that has ended, and isn't extended, is not trained further.

    Raises:
        UserError: as `train`, and for changes that a run can't take.

    Example:
        >>> resume("runs/first", changes={"epochs": 4}).state  # doctest: +SKIP
        'finished'
    """
    run = Path(run)
    before = folder.read_config(run)
    config = _with_changes(before, changes or {})
    check_trusted(run, config.references, trust)
    if tensorboard:
        check_tensorboard()
    with session(config) as world, _locked(world, run):
        world.on_main(lambda: _sweep(run))
        ended = world.gather(_outcome(run))[0]
        if ended is not None and (ended.state == "diverged" or not _is_longer(before, config)):
            if world.is_main:
                (display or LogDisplay()).note(f"{run} has already ended: {ended.message}")
            return ended
        free = {name for name, info in FIELDS.items() if not info.decides}  # can be given
        with naming(run, {*free, *(changes or ())}):
            trainer = Trainer(config, run, world, display, mirror, tensorboard, loggers)
        return _continue(trainer, before)


# In functions of their own, so that the network, wrapped in DistributedDataParallel, is gone before
# the session ends and leaves the process group.
def _begin(trainer: Trainer) -> Outcome:
    settings = describe_run(
        trainer.config,
        trainer.dataset,
        trainer.model,
        trainer.optimizer,
        trainer.schedule,
        trainer.world,
    )
    if trainer.starting:
        settings["initial weights"] = trainer.starting
    trainer.world.on_main(
        lambda: folder.create(
            trainer.run,
            trainer.config,
            data=trainer.dataset.describe(),
            preprocess=trainer.dataset.preprocess.state(),
            environment={**_environment(trainer), "settings": settings},
        )
    )
    trainer.display.settings(settings)
    trainer.display.note(f"writing to {trainer.run}")
    with _locked(trainer.world, trainer.run):
        return trainer.fit()


def _continue(trainer: Trainer, before: Config) -> Outcome:
    run, world = trainer.run, trainer.world
    world.on_main(lambda: check_data(run, trainer.dataset))
    recorded: dict[str, Any] = {}
    try:
        recorded = files.read_json(run / folder.ENVIRONMENT)
    except ValueError as error:
        trainer.display.warning(f"{run}: {error}")
    now = _environment(trainer)
    _check_code(run, recorded.get("code"), now["code"], trainer.display)
    differences = changed(recorded, now)
    if differences:
        trainer.display.warning(
            "results may not be bit-identical, because the environment changed: "
            + "; ".join(differences)
        )
    trainer.restore()
    step = trainer.state.step
    if world.is_main:
        with files.reporting_disk_errors(run):
            _record_resume(run, step, before, trainer.config)
    if _is_longer(before, trainer.config) and trainer.config.schedule not in LENGTH_FREE:
        trainer.display.warning(
            f"the {trainer.config.schedule} schedule depends on the length of the run, so the "
            "learning rate changes from here on"
        )
    trainer.display.note(
        f"resuming after step {step}" if step else "starting again: there is no checkpoint yet"
    )
    return trainer.fit()


def _with_changes(before: Config, changes: Mapping[str, object]) -> Config:
    """The config with changes that a run can take.

    Raises:
        UserError: for a change of a field that decides the result, or a shorter run.
    """
    for name, value in changes.items():
        info = FIELDS.get(name)
        if info is None or not info.is_length:
            continue
        if value is None:
            raise UserError("expected a number, got None", field=name)
        if getattr(before, name) is None:
            raise UserError(
                f"the run counts {before.length_unit}s; extend it with "
                f"{flag(before.length_unit + 's')}",
                field=name,
            )
    config = Config.from_values({**asdict(before), **changes})
    for name in differing(before, config, deciding=True):
        old, new = getattr(before, name), getattr(config, name)
        if not FIELDS[name].is_length:
            raise UserError(f"the run has {old!r} and can't change to {new!r}", field=name)
        if new < old:
            raise UserError(f"the run has {old} and can be extended, but not cut short", field=name)
    return config


def _is_longer(before: Config, config: Config) -> bool:
    return (before.epochs, before.iterations) != (config.epochs, config.iterations)


def _record_resume(run: Path, step: int, before: Config, config: Config) -> None:
    """Keeps in the run folder that a run is resumed, with what changes."""
    changes = {name: getattr(config, name) for name in differing(before, config)}
    event = "extended" if _is_longer(before, config) else "resumed"
    folder.add_history(run, event, step=step, changes=changes)
    if changes or folder.read_schema(run) < folder.SCHEMA:
        folder.write_config(run, config)
    if event == "extended":
        folder.remove_weights(run)  # no longer those of the end


def _sweep(run: Path) -> None:
    """Removes what processes left in the folder when they were killed."""
    with files.reporting_disk_errors(run):
        folder.sweep(run)
        checkpoint.sweep(run)


def _outcome(run: Path) -> Outcome | None:
    """How a run ended, as its folder says; None if it hasn't."""
    status = folder.read_object(run, folder.STATUS)
    if status.get("state") not in folder.ENDED:
        return None
    return Outcome(
        state=status["state"],
        message=status.get("message", status["state"]),
        step=status.get("step", 0),
        test_error=status.get("test_error"),
        best_error=status.get("best_error"),
        validation_error=status.get("validation_error"),
        exit_code=DIVERGED if status["state"] == "diverged" else 0,
    )


def _environment(trainer: Trainer) -> dict[str, Any]:
    """Machine, versions, and the user's own code with the shapes of its parameters."""
    code: dict[str, Any] = {
        field: describe_source(name) for field, name in trainer.config.references.items()
    }
    if code:
        parameters = trainer.model.named_parameters()
        code["parameters"] = {name: list(value.shape) for name, value in parameters}
    return {**describe_process(trainer.world.device, trainer.world.size), "code": code}


def _check_code(run: Path, before: Any, now: dict[str, Any], display: Display) -> None:
    """Says what changed in the user's own code since the run began.

    Raises:
        UserError: if its parameters changed, so that no checkpoint fits.
    """
    if not isinstance(before, dict) or not isinstance(before.get("parameters", {}), dict):
        return  # an older folder, or a damaged one
    shapes, others = before.get("parameters", {}), now.get("parameters", {})
    for name in {**shapes, **others}:
        if shapes.get(name) != others.get(name):
            raise UserError(
                f"{run}: the code changed since the run began: parameter {name} had shape "
                f"{shapes.get(name)}, now {others.get(name)}"
            )
    for field, source in now.items():
        told = before.get(field)
        if field != "parameters" and isinstance(told, dict) and told != source:
            display.warning(
                f"{source['name']} changed since the run began ({source.get('file')}), so the run "
                "may not continue as it would have"
            )


@contextlib.contextmanager
def _locked(world: World, run: Path) -> Iterator[None]:
    """The main process holds the lock for all."""
    with contextlib.ExitStack() as stack:
        world.on_main(lambda: stack.enter_context(lock(run)))
        yield
