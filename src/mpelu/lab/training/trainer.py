"""The trainer: set up, loop over epochs and steps, test, save, restore."""

from __future__ import annotations

import contextlib
import copy
import math
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpelu.lab import data, files
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, plural
from mpelu.lab.files import LENGTH, check_log
from mpelu.lab.optimization import Schedule, build_optimizer
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.run.folder import LOGS
from mpelu.lab.run.writer import RunWriter, check_loggers
from mpelu.lab.training import network
from mpelu.lab.training.display import Display, LogDisplay, Progress
from mpelu.lab.training.process import World, derive, epoch_batches, stop_signals
from mpelu.lab.training.step import (
    BatchSums,
    Divergence,
    GradientStep,
    clip_gradients,
    evaluate,
    set_lr,
    update_average,
)
from mpelu.lab.training.trained import load_initial

EXAMPLE_IMAGES = 128
"""Images for an initialization that measures the network."""


DIVERGED = 1
"""Exit code of a run that diverged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    state: str
    """"finished", "diverged" or "interrupted"."""
    message: str
    step: int
    test_error: float | None
    """In %, of the last test; with validation images there is one test, at the end."""
    best_error: float | None
    """In %, the lowest validation error, or the lowest test error without validation images."""
    exit_code: int
    """0 if it finished, 1 if it diverged, 130 after Ctrl-C or 143 after SIGTERM."""
    validation_error: float | None = None
    """In %, the last one; None without validation images."""


@dataclass(kw_only=True, slots=True)
class Means:
    """Sums of loss and errors over samples, from which means are taken."""

    loss: float = 0.0
    wrong: float = 0.0
    count: float = 0.0

    def add(self, loss: float, wrong: float, count: float) -> None:
        """Adds the sums of a batch."""
        self.loss += loss
        self.wrong += wrong
        self.count += count

    def values(self) -> tuple[float, float]:
        """Mean loss, and error in %."""
        return self.loss / max(1, self.count), 100 * self.wrong / max(1, self.count)


@dataclass(kw_only=True, slots=True)
class State:
    """Where a run stands, besides weights, optimizer and logs."""

    step: int = 0
    test_error: float | None = None
    best_error: float | None = None
    best_step: int | None = None
    validation_error: float | None = None
    since_epoch: Means = field(default_factory=Means)
    since_log: Means = field(default_factory=Means)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> State:
        """From what `dataclasses.asdict` made of it."""
        means = {name: Means(**values[name]) for name in ("since_epoch", "since_log")}
        return cls(**{**values, **means})


class Trainer:
    """A run that is ready to train: data, network, optimizer, schedule and state.

    Constructing it writes nothing.

    Args:
        config: the run.
        run: the run folder, which needs to exist when `fit` is called.
        world: the processes that take part.
        display: shows progress; None sends messages to the logger "mpelu.lab".
        mirror: URL to download data from, instead of the official one.
        tensorboard: also write TensorBoard events.
        loggers: loggers of the user's own, as package.module:factory.

    Raises:
        UserError: if data, network and settings don't fit together.
    """

    def __init__(
        self,
        config: Config,
        run: Path,
        world: World,
        display: Display | None = None,
        mirror: str | None = None,
        tensorboard: bool = False,
        loggers: Sequence[str] = (),
    ) -> None:
        network.check_name(config)  # before what may be a long download
        if loggers:
            check_loggers(loggers)
        self.config, self.run, self.world = config, run, world
        self.dataset = world.main_first(
            lambda: data.load(
                config,
                world.device,
                download=True,
                mirror=mirror,
                progress=None if display is None else display.download,
            )
        )
        channels, size = self.dataset.channels, self.dataset.size
        example = example_images(config, self.dataset)
        self.model = network.build(config, len(self.dataset.classes), channels, size, example)
        self.starting = ""
        """Which weights the network starts from, in words, if they are not those of `init`."""
        if config.initial_weights is not None and not any(checkpoint.candidates(run)):
            self.starting = load_initial(self.model, config.initial_weights)
        classes = len(self.dataset.classes)
        network.check_size(self.model, channels, size, self._smallest_part(), classes)
        last = network.last_layer(self.model, config, channels, size)
        self.optimizer = build_optimizer(self.model, config, last)
        self.schedule = Schedule.of(config, self.dataset.train_count)
        for step in (1, self.schedule.steps // 2 + 1, self.schedule.steps):
            self.schedule.lr(step)  # a schedule of the user's own may raise
        self.model.to(world.device)
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.result = self.model if config.ema is None else copy.deepcopy(self.model)
        """What is tested and kept: the network, or the moving average of its weights."""
        if config.compile:
            self.model.compile()
        self.gradient_step = GradientStep.of(self.model, config, world, self.schedule.steps)
        self.state = State()
        self.writer = RunWriter(
            run,
            enabled=world.is_main,
            write_events=tensorboard,
            loggers=loggers,
            config=asdict(config),
        )
        self.display = (display or LogDisplay()) if world.is_main else Display()
        self.display.unit = "epoch" if config.iterations is None else "step"
        self.signals: list[int] = []
        self.seconds = 0.0
        """Spent on steps since the last log entry, without tests and checkpoints."""
        self.images = 0.0
        """Trained on in that time."""
        self.unread: list[BatchSums] = []
        """Sums of the steps since they were last read from the device."""
        self.shown = (math.nan, math.nan, 0.0)
        """Mean loss, error and images per second as of the last reading."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds, besides what it says about the logs."""
        step = self.state.step
        return {
            "config": self.config.fingerprint(),
            "epoch": self.schedule.epoch(step),
            "position": self.schedule.position(step),
            "state": asdict(self.state),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.gradient_step.scaler.state_dict(),
            **({} if self.result is self.model else {"averaged": self.result.state_dict()}),
        }

    def load_state_dict(self, contents: Mapping[str, Any]) -> None:
        """Continues from the contents of a checkpoint.

        Raises:
            CheckpointError: if it doesn't belong to this run.
        """
        try:
            if contents["config"] != self.config.fingerprint():
                raise checkpoint.CheckpointError("it belongs to a run with other settings")
            for name in LOGS:
                if problem := check_log(self.run / name, contents["logs"][name]):
                    raise checkpoint.CheckpointError(problem)
            self.model.load_state_dict(contents["model"])
            if self.result is not self.model:
                self.result.load_state_dict(contents["averaged"])
            self.optimizer.load_state_dict(contents["optimizer"])
            if self.gradient_step.scaler.is_enabled():
                self.gradient_step.scaler.load_state_dict(contents["scaler"])
            self.state = State.from_values(contents["state"])
            if self.dataset.validation_count and self.state.step < self.schedule.steps:
                self.state.test_error = None  # the end of a run that is extended is yet to come
            self.writer.lengths = {name: contents["logs"][name][LENGTH] for name in LOGS}
        except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            raise checkpoint.CheckpointError(str(error).splitlines()[0]) from None

    def restore(self) -> None:
        """Continues from the newest usable checkpoint of the run folder, if there is any.

        Checkpoints that can't be used are renamed.

        Raises:
            UserError: if there are checkpoints, but none can be used.
        """
        if self.world.is_main:
            folder.make_directories(self.run)
        unusable: list[Path] = []
        for path in list(checkpoint.candidates(self.run)):
            try:
                self.load_state_dict(checkpoint.load(path))
                break
            except checkpoint.CheckpointError as error:
                unusable.append(path)
                self.display.warning(f"{path} can't be used: {error}")
        else:
            if unusable:
                raise UserError(f"{self.run}: no usable checkpoint")
        self.world.gather(None)  # all have read before anything is renamed
        if self.world.is_main:
            for path in unusable:
                checkpoint.set_aside(path)
            if self.state.step and self.state.best_step == self.state.step:
                checkpoint.mark_best(self.run, self.state.step)

    def fit(self) -> Outcome:
        """Trains to the end, or until a signal or a divergence stops it."""
        try:
            with files.reporting_disk_errors(self.run), stop_signals(self.signals):
                self.writer.open(**self._status(""))
                self.display.start(self.state.step, self.schedule.steps)
                return self._outcome_of(self._loop())
        except BaseException as error:
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            with contextlib.suppress(OSError):
                self._write_status("failed", f"{kind}{error}")
            raise
        finally:
            self.writer.close()
            self.dataset.close()
            self.display.close()

    def _loop(self) -> Divergence | int | None:
        """Returns None at the end, or the divergence or signal that stopped the run."""
        self.model.train()
        if self.state.step == 0:
            self.writer.snapshot(0, self.result)
        while self.state.step < self.schedule.steps:
            stopped = self._epoch()
            if stopped is not None:
                return stopped
        self.writer.weights(self.result.state_dict())
        return None

    def _epoch(self) -> Divergence | int | None:
        """Trains on what is left of the current epoch."""
        done, config = self.state.step, self.config
        epoch = self.schedule.epoch(done + 1)
        seed = derive(config.seed, epoch, "augment")
        batches = epoch_batches(self.dataset.train_count, config.batch_size, config.seed, epoch)
        batches = batches[self.schedule.position(done) :][: self.schedule.steps - done]
        parts = (part for batch in batches for part in self.gradient_step.parts(batch))
        stream = iter(self.dataset.train(parts, seed))
        stopped = None
        for batch in batches:
            stopped = self._step(batch, stream, seed)
            if stopped is not None:
                break
        if isinstance(stream, Generator):
            stream.close()
        return stopped

    def _step(
        self, batch: Tensor, stream: Iterator[tuple[Tensor, Tensor]], seed: int
    ) -> Divergence | int | None:
        began = time.perf_counter()
        step = self.state.step + 1
        lr = self.schedule.lr(step)
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        self.unread.append(self.gradient_step.gradients(step, batch, stream))
        stop = None
        if self._reads(step):
            stop = self._read(batch, seed)
            if isinstance(stop, Divergence):
                return stop
        scaler = self.gradient_step.scaler
        clip_gradients(self.model, self.optimizer, scaler, self.config.clip_norm)
        scaler.step(self.optimizer)
        scaler.update()
        if self.config.ema is not None:
            update_average(self.result, self.model, self.config.ema)
        self.state.step = step
        self.seconds += time.perf_counter() - began
        self._after_step(lr, stop is not None)
        return stop

    def _reads(self, step: int) -> bool:
        """Whether the sums of the steps so far are read before the step's update.

        On a GPU that waits for the device. Several processes have to answer alike.
        """
        has_signal = bool(self.signals) and self.world.size == 1
        return self.world.reads_freely or has_signal or self.schedule.writes(step)

    def _read(self, batch: Tensor, seed: int) -> Divergence | int | None:
        """Adds up the sums of the steps since the last reading, over all processes.

        Returns:
            The first step that diverged, or a signal that any process has received.
        """
        unread, self.unread = self.unread, []
        values = torch.stack([each.values for each in unread]).tolist()
        mine: list[float] = []
        for each, (total, loss, wrong, worst) in zip(unread, values, strict=True):
            shares = (loss, wrong) if each.count else (0.0, 0.0)
            mine += [*shares, each.count, not math.isfinite(total), worst >= 0]
        received = [signal.SIGINT in self.signals, signal.SIGTERM in self.signals]
        *sums, interrupts, terminations = self.world.sum(
            [float(value) for value in mine + received]
        )
        for index, each in enumerate(unread):
            loss, wrong, count, bad_losses, bad_gradients = sums[5 * index : 5 * index + 5]
            total, _, _, worst = values[index]
            if bad_losses or bad_gradients:
                current, self.state.step = self.state.step + 1, each.step - 1
                if each.step == current:  # its weights are still there
                    is_finite = math.isfinite(total)
                    return self.gradient_step.find(each.step, batch, self.dataset, seed, is_finite)
                if bad_losses:
                    return Divergence(step=each.step, module="", quantity="loss")
                module = self.gradient_step.module_of(int(worst))
                return Divergence(step=each.step, module=module, quantity="gradient")
            for means in (self.state.since_epoch, self.state.since_log):
                means.add(loss, wrong, count)
            self.images += count
        return signal.SIGINT if interrupts else signal.SIGTERM if terminations else None

    def _after_step(self, lr: float, stopping: bool) -> None:
        """Logs, tests and saves, as the schedule says."""
        state, schedule, step = self.state, self.schedule, self.state.step
        self._show_step()
        if schedule.logs(step):
            self._log(lr)
        if schedule.tests(step):
            self._test(lr)
        if schedule.snapshots(step):
            self.writer.snapshot(schedule.epoch(step), self.result)
        if schedule.resets_means(step):
            state.since_epoch = Means()
        if schedule.saves(step) or stopping:
            self.writer.save(step, self.state_dict(), best=state.best_step == step)
            self._write_status("running", "")

    def _show_step(self) -> None:
        step, schedule = self.state.step, self.schedule
        if not self.unread:
            self.shown = (*self.state.since_log.values(), self._speed())
        loss, error, speed = self.shown
        self.display.step(
            Progress(
                step=step,
                steps=schedule.steps,
                epoch=schedule.epoch(step),
                epochs=schedule.epochs,
                loss=loss,
                error=error,
                images_per_second=speed,
                is_logged=schedule.logs(step),
            )
        )

    def _log(self, lr: float) -> None:
        loss, error = self.state.since_log.values()
        self.writer.metrics({**self._row("step"), "loss": loss, "error": error, "lr": lr})
        self.writer.speed(
            {
                "step": self.state.step,
                "images_per_second": round(self._speed(), 1),
                "seconds": round(self.seconds, 3),
            }
        )
        self._write_status("running", "")
        self.state.since_log = Means()
        self.seconds = self.images = 0.0

    def _test(self, lr: float) -> None:
        state = self.state
        self.world.broadcast_buffers(self.model)
        if self.result is not self.model:
            self.world.broadcast_buffers(self.result)
        measured: dict[str, float] = {}
        if self.dataset.validation_count:
            loss, error = self._evaluate("validation")
            state.validation_error = error
            measured = {"validation_loss": loss, "validation_error": error}
        if not measured or state.step == self.schedule.steps:
            loss, state.test_error = self._evaluate("test")
            measured |= {"test_loss": loss, "test_error": state.test_error}
        error = measured.get("validation_error", measured.get("test_error", math.inf))
        if state.best_error is None or error < state.best_error:
            state.best_error, state.best_step = error, state.step
        train_loss, train_error = state.since_epoch.values()
        row = {
            **self._row("test"),
            "train_loss": train_loss,
            "train_error": train_error,
            **measured,
            "lr": lr,
        }
        self.writer.metrics(row)
        self._write_status("running", "")
        self.display.test(row)

    def _evaluate(self, split: str) -> tuple[float, float]:
        return evaluate(self.result, self.dataset, self.config, self.world, split)

    def _row(self, kind: str) -> dict[str, Any]:
        step = self.state.step
        return {"kind": kind, "step": step, "epoch": self.schedule.epoch(step)}

    def _speed(self) -> float:
        """Images per second since the last log entry."""
        return self.images / max(self.seconds, 1e-9)

    def _write_status(self, state: str, message: str, **more: Any) -> None:
        self.writer.status(state, **self._status(message), **more)

    def _status(self, message: str) -> dict[str, Any]:
        now = self.state
        return {
            "step": now.step,
            "steps": self.schedule.steps,
            "epoch": self.schedule.epoch(now.step),
            "message": message,
            "test_error": now.test_error,
            "best_error": now.best_error,
            "best_step": now.best_step,
            **({"validation_error": now.validation_error} if self.dataset.validation_count else {}),
        }

    def _outcome_of(self, ended: Divergence | int | None) -> Outcome:
        """Writes and shows how the run ended."""
        now, state, code = self.state, "finished", 0
        more: dict[str, Any] = {}
        if ended is None:
            message = (
                f"finished after {plural(now.step, 'step')}: test error {now.test_error:.2f} %"
            )
            if now.validation_error is not None:
                message += (
                    f", validation error {now.validation_error:.2f} % (lowest "
                    f"{now.best_error:.2f} % after step {now.best_step})"
                )
        elif isinstance(ended, Divergence):
            state, code, message = "diverged", DIVERGED, str(ended)
            more = {"diverged": asdict(ended)}
        else:
            state, code = "interrupted", 128 + ended
            name = signal.Signals(ended).name
            message = f"interrupted by {name} after step {now.step}; continue with --resume"
        self._write_status(state, message, **more)
        self.display.close()
        self.display.note(message)
        return Outcome(
            state=state,
            message=message,
            step=now.step,
            test_error=now.test_error,
            best_error=now.best_error,
            exit_code=code,
            validation_error=now.validation_error,
        )

    def _smallest_part(self) -> int:
        """Images in the smallest part of a batch that a process computes at a time."""
        count, batch_size = self.dataset.train_count, self.config.batch_size
        last = count % batch_size or batch_size
        smallest = min(last, batch_size, count)
        return max(1, smallest // self.world.size // self.config.accumulate)


def example_images(config: Config, dataset: data.Dataset) -> Tensor | None:
    """Images of the first training batch, if the initialization measures the network.

    Returns:
        Preprocessed images [batch, channels, size, size], on the CPU.
    """
    method = network.init_method(config)
    if method is None or not method.needs_inputs:
        return None
    first = epoch_batches(dataset.train_count, config.batch_size, config.seed, epoch=1)[0]
    seed = derive(config.seed, 1, "augment")
    images, _ = next(iter(dataset.train([first[:EXAMPLE_IMAGES]], seed)))
    return images.cpu()
