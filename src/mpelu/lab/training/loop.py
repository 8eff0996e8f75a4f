"""The loop over the steps of a run."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mpelu.lab.config import Config
from mpelu.lab.run import checkpoint, folder, snapshots
from mpelu.lab.run.metrics import LOGS, Log
from mpelu.lab.training.divergence import Divergence
from mpelu.lab.training.evaluation import evaluate
from mpelu.lab.training.events import Events
from mpelu.lab.training.optimizer import set_lr
from mpelu.lab.training.order import batches_of
from mpelu.lab.training.progress import Quiet
from mpelu.lab.training.randomness import mix
from mpelu.lab.training.schedule import Schedule
from mpelu.lab.training.state import State, Tally
from mpelu.lab.training.step import Stepper, Sums

if TYPE_CHECKING:
    from mpelu.lab.data import Dataset


@dataclass(kw_only=True, slots=True)
class Loop:
    """A run in the making. Only the main process has a folder to write to and something to show."""

    config: Config
    dataset: Dataset
    stepper: Stepper
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    run: Path
    signals: list[int]
    display: Quiet = field(default_factory=Quiet)
    state: State = field(default_factory=State)
    logs: dict[str, Log] = field(default_factory=dict)
    events: Events | None = None
    seconds: float = 0.0
    """Of training since the last line of the log, without tests and checkpoints."""
    images: float = 0.0
    """Trained on in those seconds."""

    @property
    def is_main(self) -> bool:
        return self.stepper.world.is_main

    def restore(self, contents: dict[str, Any]) -> None:
        """Takes up what a checkpoint holds.

        Raises:
            Damaged: if it isn't one of this run.
        """
        if contents.get("config") != self.config.fingerprint(contents["format"]):
            raise checkpoint.CheckpointError("it belongs to a run of another config")
        try:
            for name in LOGS:
                if (self.run / name).stat().st_size < contents["lengths"][name]:
                    raise checkpoint.CheckpointError(f"{name} has lost lines that it counts on")
            self.stepper.model.load_state_dict(contents["model"])
            self.optimizer.load_state_dict(contents["optimizer"])
            if self.stepper.scaler.is_enabled():
                self.stepper.scaler.load_state_dict(contents["scaler"])
            self.state = State.from_values(contents["state"])
        except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            raise checkpoint.CheckpointError(str(error).splitlines()[0]) from None

    def save(self) -> None:
        """Writes a checkpoint of the state at hand."""
        if not self.is_main:
            return
        step = self.state.step
        contents = {
            "config": self.config.fingerprint(),
            "epoch": self.schedule.epoch(step),
            "position": self.schedule.position(step),
            "state": asdict(self.state),
            "lengths": {name: lines.sync() for name, lines in self.logs.items()},
            "model": self.stepper.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.stepper.scaler.state_dict(),
        }
        checkpoint.save(self.run, step, contents, best=self.state.best_step == step)

    def run_all(self) -> Divergence | int | None:
        """Trains to the end.

        Returns:
            None at the end, else the divergence or the number of the signal that stopped it.
        """
        self.stepper.model.train()
        if self.state.step == 0:
            self._snapshot()
        while self.state.step < self.schedule.steps:
            stopped = self._epoch()
            if stopped is not None:
                return stopped
        if self.is_main:
            checkpoint.write_weights(self.run, self.stepper.model.state_dict())
        return None

    def close(self) -> None:
        """Closes what is open, however the run ended."""
        for lines in self.logs.values():
            lines.close()
        if self.events is not None:
            self.events.close()
        self.display.close()

    def _epoch(self) -> Divergence | int | None:
        """What is left of the epoch at hand."""
        epoch = self.schedule.epoch(self.state.step + 1)
        seed = mix(self.config.seed, epoch, "augment")
        batches = batches_of(
            self.dataset.train_count, self.config.batch_size, self.config.seed, epoch
        )[self.schedule.position(self.state.step) :][: self.schedule.steps - self.state.step]
        parts = (part for batch in batches for part in self.stepper.parts(batch))
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
        sums = self.stepper.gradients(step, batch, stream)
        loss, wrong, count, bad, interrupts, terminations = self._agree(sums)
        if bad:
            return self.stepper.find(step, batch, self.dataset, seed, sums.loss_is_finite)
        self.stepper.scaler.step(self.optimizer)
        self.stepper.scaler.update()
        self.state.step = step
        for tally in (self.state.since_epoch, self.state.since_log):
            tally.add(loss, wrong, count)
        self.seconds += time.perf_counter() - began
        self.images += count
        stop = signal.SIGINT if interrupts else signal.SIGTERM if terminations else None
        self._after(lr, stop is not None)
        return stop

    def _agree(self, sums: Sums) -> list[float]:
        """Sums over the processes, with how many of them are in trouble or have a signal."""
        mine = [sums.loss, sums.wrong, sums.count, not sums.is_finite]
        caught = [signal.SIGINT in self.signals, signal.SIGTERM in self.signals]
        return self.stepper.world.sum([float(value) for value in mine + caught])

    def _after(self, lr: float, stopping: bool) -> None:
        """What follows a step."""
        state, schedule = self.state, self.schedule
        loss, error = state.since_log.means()
        speed = self.images / max(self.seconds, 1e-9)
        self.display.step(state.step, schedule.epoch(state.step), loss, error, speed)
        if schedule.logs(state.step):
            self._log(loss, error, lr, speed)
        if schedule.tests(state.step):
            self._test(lr)
        if schedule.snapshots(state.step):
            self._snapshot()
        if schedule.starts_sums(state.step):
            state.since_epoch = Tally()
        if schedule.saves(state.step) or stopping:
            self.save()
            self._status()

    def _log(self, loss: float, error: float, lr: float, speed: float) -> None:
        row = {**self._row("step"), "loss": loss, "error": error, "lr": lr}
        if self.is_main:
            self.logs["metrics.jsonl"].write(row)
            self.logs["speed.jsonl"].write(
                {
                    "step": self.state.step,
                    "images_per_second": round(speed, 1),
                    "seconds": round(self.seconds, 3),
                }
            )
            self._status()
        if self.events is not None:
            self.events.write(row)
        self.state.since_log = Tally()
        self.seconds = self.images = 0.0

    def _test(self, lr: float) -> None:
        model, world, state = self.stepper.model, self.stepper.world, self.state
        world.same_buffers(model)
        loss, error = evaluate(model, self.dataset, self.config, world)
        state.test_error = error
        if state.best_error is None or error < state.best_error:
            state.best_error, state.best_step = error, state.step
        train_loss, train_error = state.since_epoch.means()
        row = {
            **self._row("test"),
            "train_loss": train_loss,
            "train_error": train_error,
            "test_loss": loss,
            "test_error": error,
            "lr": lr,
        }
        if self.is_main:
            self.logs["metrics.jsonl"].write(row)
        if self.events is not None:
            self.events.write(row)
        self.display.test(row)

    def _row(self, kind: str) -> dict[str, Any]:
        step = self.state.step
        return {"kind": kind, "step": step, "epoch": self.schedule.epoch(step)}

    def _snapshot(self) -> None:
        if self.is_main and self.schedule.snapshots(self.state.step):
            epoch = self.schedule.epoch(self.state.step)
            snapshots.write(self.run, epoch, self.stepper.model)

    def _status(self) -> None:
        if self.is_main:
            self.status("running", "")

    def status(self, state: str, message: str, **more: Any) -> None:
        """Writes status.json."""
        step = self.state.step
        folder.write_status(
            self.run,
            state,
            step=step,
            steps=self.schedule.steps,
            epoch=self.schedule.epoch(step),
            message=message,
            **self.state.errors(),
            **more,
        )
