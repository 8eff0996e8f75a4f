"""Optimizers and learning rate schedules: their tables, and those of a run.

To add an optimizer, add a record to `OPTIMIZERS`; to add a schedule, a function to `SCHEDULES`.
Steps and epochs count from 1; step 0 and epoch 0 are the state before training.

Importing this module doesn't import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpelu.lab import references
from mpelu.lab.errors import UserError, one_line

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from mpelu.lab.config import Config


Groups = list[dict[str, Any]]
"""Parameter groups with `lr` and `weight_decay`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerInfo:
    """What is known about an optimizer."""

    build: Callable[[Groups, float, float, bool], Optimizer]
    """From parameter groups, learning rate, momentum and nesterov."""
    lr: float
    """Default learning rate."""
    has_nesterov: bool = False
    activation_decay_mult: float | None = 1.0
    """Default weight decay multiplier of activations' parameters; None where `param_groups` has to
    find out whether weight decay is decoupled."""


def _sgd(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    import torch

    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)


def _adamw(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    import torch

    return torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999))


OPTIMIZERS = {
    "sgd": OptimizerInfo(build=_sgd, lr=0.1, has_nesterov=True),
    "adamw": OptimizerInfo(build=_adamw, lr=0.001, activation_decay_mult=0.0),
}


def find_optimizer(name: str) -> OptimizerInfo:
    """The record of an optimizer, or of a reference to one.

    A reference is called with the parameter groups and ``lr=``.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]

    def build(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        from torch.optim import Optimizer

        made = references.call("optimizer", name, groups, lr=lr)
        if not isinstance(made, Optimizer):
            raise UserError(
                f"{name}: expected a torch.optim.Optimizer, got {type(made).__name__}",
                field="optimizer",
            )
        return made

    def checked(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Tries a step on a parameter of its own first: some optimizers need more than that."""
        from torch import nn, ones

        parameter = nn.Parameter(ones(2, 2))
        parameter.grad = ones(2, 2)
        trial = build([{"params": [parameter], "lr": lr, "weight_decay": 0.0}], lr, 0.0, False)
        try:
            trial.step()
        except Exception as error:
            raise UserError(
                f"{name}: can't take a step: {type(error).__name__}: {one_line(error)}",
                field="optimizer",
            ) from error
        return build(groups, lr, momentum, nesterov)

    return OptimizerInfo(build=checked, lr=0.001, activation_decay_mult=None)


def build_optimizer(model: nn.Module, config: Config, last: str | None = None) -> Optimizer:
    """The optimizer of a network that is still on the CPU. Its groups carry `lr_mult`.

    `mpelu.param_groups` with the multipliers of the paper's Caffe runs: for biases, beta and the
    last layer.

    Args:
        model: the network, left as it is.
        config: learning rate, momentum, weight decay and multipliers.
        last: name of the last layer; needed where the config gives it a multiplier of its own.
    """
    from torch import Tensor, nn

    from mpelu.activations import learnable_parameters
    from mpelu.optim import OWN_RATE, grouped, has_decoupled_decay

    info = find_optimizer(config.optimizer)

    def build(groups: Groups, lr: float) -> Optimizer:
        return info.build(groups, lr, config.momentum, config.nesterov)

    of_last: set[int] = set()
    if config.last_lr_mult is not None:
        assert last is not None
        of_last = {id(parameter) for parameter in model.get_submodule(last).parameters()}
    # A norm layer's bias is a scale's companion, not a layer's bias; it has a 1-d weight beside it.
    biases = {
        id(module.bias)
        for module in model.modules()
        if isinstance(getattr(module, "bias", None), nn.Parameter)
        and isinstance(weight := getattr(module, "weight", None), Tensor)
        and weight.dim() > 1
    }
    kinds = {id(found.parameter): found.kind for found in learnable_parameters(model)}
    is_decoupled = has_decoupled_decay(build, model)
    decay_mult = config.activation_decay_mult
    if decay_mult is None:
        decay_mult = 0.0 if is_decoupled else 1.0
    decays = dict.fromkeys(("scale", "rate", "shape", "slope"), decay_mult)
    if config.beta_decay_mult is not None:
        decays["rate"] = config.beta_decay_mult

    def multipliers(parameter: nn.Parameter) -> tuple[float, float]:
        key = id(parameter)
        rate, decay = 1.0, 1.0
        if key in kinds:
            rate = config.activation_lr_mult if kinds[key] in OWN_RATE else 1.0
            decay = decays.get(kinds[key], 1.0)
        elif key in biases:
            rate, decay = config.bias_lr_mult, config.bias_decay_mult
        if key in of_last and config.last_lr_mult is not None:
            rate = config.last_lr_mult
        return rate, decay

    groups = grouped(model, kinds, multipliers, config.lr, config.weight_decay, is_decoupled)
    return build(groups, config.lr)


ScheduleFunction = Callable[[float, int, Sequence[int], float], float]
"""From progress, units done, milestones and gamma to the factor of the learning rate. Progress runs
from 0 at the first step after warm-up to just below 1 at the last. A unit is an epoch, or an
iteration where `iterations` gives the length."""


def _steps(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    factor: float = gamma ** sum(done >= milestone for milestone in milestones)
    return factor


def _cosine(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _linear(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    return 1 - progress


def _one_cycle(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    """Rises by a cosine from 1/25 to 1 in the first 30 %, then falls to 1/250000."""
    rise, start, end = 0.3, 1 / 25, 1 / 250_000
    if progress < rise:
        return start + (1 - start) * 0.5 * (1 - math.cos(math.pi * progress / rise))
    fall = (progress - rise) / (1 - rise)
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * fall))


def _constant(progress: float, done: int, milestones: Sequence[int], gamma: float) -> float:
    return 1.0


SCHEDULES: dict[str, ScheduleFunction] = {
    "steps": _steps,
    "cosine": _cosine,
    "linear": _linear,
    "one-cycle": _one_cycle,
    "constant": _constant,
}
LENGTH_FREE = ("steps", "constant")
"""Schedules that give a step the same learning rate whatever the length of the run."""


_SNAPSHOTS = 50
"""Epochs at most after which the parameters of activations are recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The course of a run over a training set of a given size."""

    config: Config
    steps_per_epoch: int
    steps: int
    """Of the whole run."""
    epochs: int
    """Of the whole run; the last may be incomplete."""
    unit: int
    """Steps in the unit that milestones, warm-up and test_every count."""

    @classmethod
    def of(cls, config: Config, train_count: int) -> Schedule:
        """The schedule for a number of training images."""
        per_epoch = -(-train_count // config.batch_size)
        steps, unit = config.iterations, 1
        if steps is None:
            assert config.epochs is not None
            steps, unit = config.epochs * per_epoch, per_epoch
        epochs = -(-steps // per_epoch)
        return cls(config=config, steps_per_epoch=per_epoch, steps=steps, epochs=epochs, unit=unit)

    def epoch(self, step: int) -> int:
        """The epoch a step belongs to."""
        return -(-step // self.steps_per_epoch)

    def position(self, step: int) -> int:
        """Steps of the current epoch done after a step: 0 at the end of an epoch."""
        return step % self.steps_per_epoch

    def lr(self, step: int) -> float:
        """Learning rate of a step, before multipliers."""
        config, done = self.config, (step - 1) // self.unit
        before = config.warmup * self.unit
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
        return step == self.steps or step % (self.unit * self.config.test_interval) == 0

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
