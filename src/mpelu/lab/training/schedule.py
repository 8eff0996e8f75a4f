"""What happens at which step: learning rate, tests, checkpoints, log entries, snapshots.

Steps and epochs count from 1. Step 0 and epoch 0 are the state before training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpelu.lab import references
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.schedules import SCHEDULES

_SNAPSHOTS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The course of a run over a training set of a given size."""

    config: Config
    steps_per_epoch: int

    @classmethod
    def of(cls, config: Config, train_count: int) -> Schedule:
        """The schedule for a number of training images."""
        return cls(config=config, steps_per_epoch=-(-train_count // config.batch_size))

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        if self.config.iterations is not None:
            return self.config.iterations
        assert self.config.epochs is not None
        return self.config.epochs * self.steps_per_epoch

    @property
    def epochs(self) -> int:
        """Epochs of the whole run, of which the last may be incomplete."""
        return self.epoch(self.steps)

    def epoch(self, step: int) -> int:
        """The epoch a step belongs to."""
        return -(-step // self.steps_per_epoch)

    def position(self, step: int) -> int:
        """Steps of the current epoch done after a step: 0 at the end of an epoch."""
        return step % self.steps_per_epoch

    @property
    def _unit(self) -> int:
        """Steps in the unit that milestones, warm-up and test_every count."""
        return self.steps_per_epoch if self.config.iterations is None else 1

    def lr(self, step: int) -> float:
        """Learning rate of a step, before multipliers."""
        config, done = self.config, (step - 1) // self._unit
        before = config.warmup * self._unit
        if step <= before:
            return config.lr * (step / before) if config.warmup_lr is None else config.warmup_lr
        progress = (step - 1 - before) / max(1, self.steps - before)
        if config.schedule in SCHEDULES:
            rule = SCHEDULES[config.schedule]
            return config.lr * rule(progress, done, config.milestones, config.gamma)
        return config.lr * self._own_factor(progress)

    def _own_factor(self, progress: float) -> float:
        """The factor that a schedule of the user's own gives."""
        name = self.config.schedule
        factor = references.call("schedule", name, progress)
        if not isinstance(factor, (int, float)) or not 0 <= factor < math.inf:
            raise UserError(
                f"{name}: expected a finite factor >= 0 at progress {progress:.3g}, got {factor!r}",
                field="schedule",
            )
        return float(factor)

    def tests(self, step: int) -> bool:
        """Whether a test follows the step."""
        return step == self.steps or step % (self._unit * self.config.test_interval) == 0

    def saves(self, step: int) -> bool:
        """Whether a checkpoint follows the step."""
        return self.tests(step) or step % self.config.checkpoint_every == 0

    def logs(self, step: int) -> bool:
        """Whether an entry of metrics.jsonl and a progress line follow the step."""
        return step % self.config.log_every == 0

    def resets_means(self, step: int) -> bool:
        """Whether the mean training loss and error start anew after the step."""
        return self.position(step) == 0 if self.config.iterations is None else self.tests(step)

    def writes(self, step: int) -> bool:
        """Whether something is written after the step that needs the sums of the steps so far."""
        due = (self.logs, self.saves, self.snapshots, self.resets_means)
        return any(each(step) for each in due)

    def snapshots(self, step: int) -> bool:
        """Whether the activations' parameters are recorded after the step."""
        if step in (0, self.steps):
            return True
        every = max(1, -(-self.epochs // _SNAPSHOTS))
        return self.position(step) == 0 and self.epoch(step) % every == 0
