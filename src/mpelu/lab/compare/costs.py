"""What a training step of each arm costs, in time and memory, and what fits in a budget."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpelu.lab.config import Config

if TYPE_CHECKING:
    from torch import Tensor

    from mpelu.lab.compare.comparison import Arm
    from mpelu.lab.training.trainer import Trainer

_STEPS = 8
_ENOUGH = 4.0
"""Seconds after which no further step of an arm is measured."""
_START = 4.0
"""Seconds that a run takes to start: imports, data, network."""
_SAFETY = 1.25
"""Runs side by side are slower than one that was measured alone."""
_TESTS = 11
ROUNDS = (3, 1, 1, 1, 2)
"""Runs that search for an arm's learning rate, at most: three rates, each 4 times the one before;
up to three more beyond the best, while it is at the edge; and half and twice the best."""
SHARE = 0.25
"""Length of a run of the search, as a share of that of the others."""
FEWEST_STEPS = 10
"""Of any run."""

Say = Callable[[str], None]
_Parts = list[tuple["Tensor", "Tensor"]]
"""Images and labels of the parts of a batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmCost:
    """What an arm costs on this machine."""

    step: float
    """Seconds per training step, without reading images."""
    test: float
    """Seconds per test."""
    memory: float
    """MiB that a step keeps for its backward pass, each storage once."""
    parameters: int
    start: float = 0.0
    """Seconds for data and network, before the first step."""
    reading: float = 0.0
    """Seconds per training step for reading images, with as many runs at a time as there are."""


def measure(config: Config, arms: Sequence[Arm], jobs: int, say: Say) -> dict[str, ArmCost]:
    """The cost of each arm, by name.

    Raises:
        UserError: if an arm doesn't fit the model or the data.
    """
    from mpelu.lab.training.process import session
    from mpelu.lab.training.trainer import Trainer

    threads = max(1, (os.cpu_count() or 1) // jobs)
    costs = {}
    for arm in arms:
        say(f"measuring a step with {arm.title}")
        chosen = replace(arm.config(config), epochs=None, iterations=1000, threads=threads)
        with session(chosen) as world:
            begun = time.perf_counter()
            trainer = Trainer(chosen, Path(), world)
            costs[arm.name] = _cost(trainer, time.perf_counter() - begun, jobs)
    return costs


def steps_of_search(steps: int) -> int:
    """Steps of a run that searches for a learning rate, where the others have so many."""
    return max(FEWEST_STEPS, int(steps * SHARE))


def steps_within(
    seconds: float, costs: dict[str, ArmCost], runs: int, jobs: int, searched: int = 0
) -> int:
    """Steps per run so that all runs end in time, if each were as slow as the slowest.

    Args:
        seconds: the time.
        costs: of the arms.
        runs: number of runs, without those that search for learning rates.
        jobs: runs at a time.
        searched: arms whose learning rate is searched for first.
    """
    fixed, step, turns, searches = _slowest(costs, runs, jobs, searched)
    return int((seconds - (turns + searches) * fixed) / ((turns + searches * SHARE) * step))


def seconds_for(
    steps: int, costs: dict[str, ArmCost], runs: int, jobs: int, searched: int = 0
) -> float:
    """The time within which all runs end, if each were as slow as the slowest.

    The arguments are those of `steps_within`.
    """
    fixed, step, turns, searches = _slowest(costs, runs, jobs, searched)
    return turns * (fixed + steps * step) + searches * (fixed + steps_of_search(steps) * step)


def _slowest(
    costs: dict[str, ArmCost], runs: int, jobs: int, searched: int
) -> tuple[float, float, int, int]:
    """Seconds of the slowest run besides its training steps, and of a step; and how many times runs
    start side by side until all have ended, and before that until all rates are found."""
    start = _START + max(cost.start for cost in costs.values())
    fixed = start + _TESTS * max(cost.test for cost in costs.values())
    step = _SAFETY * max(cost.step + cost.reading for cost in costs.values())
    searches = sum(math.ceil(searched * each / jobs) for each in ROUNDS)
    return fixed, step, math.ceil(runs / jobs), searches


def _cost(trainer: Trainer, start_up: float, jobs: int) -> ArmCost:
    import torch

    from mpelu.lab.sweep.estimate import fastest
    from mpelu.lab.training.process import derive, epoch_batches
    from mpelu.lab.training.step import evaluate, set_lr

    config = trainer.config
    epoch = epoch_batches(trainer.dataset.train_count, config.batch_size, config.seed, 1)[:_STEPS]
    reading, first = _read(trainer, epoch, derive(config.seed, 1, "augment"))
    saved: dict[int, int] = {}
    trainer.model.train()

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step() -> None:
        set_lr(trainer.optimizer, trainer.schedule.lr(1))
        trainer.optimizer.zero_grad(set_to_none=True)
        sums = trainer.gradient_step.gradients(1, epoch[0], iter(first))
        sums.values.tolist()  # waits for a GPU
        trainer.optimizer.step()

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        step()
    parameters = list(trainer.model.parameters())
    for each in parameters:
        saved.pop(each.untyped_storage().data_ptr(), None)
    best = fastest(step, _STEPS, _ENOUGH)
    start = time.perf_counter()
    evaluate(trainer.result, trainer.dataset, config, trainer.world)
    return ArmCost(
        step=best,
        # Runs that go on at a time read with the same processors.
        test=time.perf_counter()
        - start
        + (jobs - 1) * reading * trainer.dataset.test_count / config.batch_size,
        memory=sum(saved.values()) / 2**20,
        parameters=sum(each.numel() for each in parameters),
        start=start_up,
        reading=jobs * reading,
    )


def _read(trainer: Trainer, batches: Sequence[Tensor], seed: int) -> tuple[float, _Parts]:
    """Seconds to read a batch at the start of an epoch, and what was read of the first."""

    def read(batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        parts = (part for batch in batches for part in trainer.gradient_step.parts(batch))
        return iter(trainer.dataset.train(parts, seed))

    first = list(read(batches[:1]))  # images in memory are preprocessed when they are first read
    stream, count, begun = read(batches), 0, time.perf_counter()
    for batch in batches:
        for _ in trainer.gradient_step.parts(batch):
            next(stream)
        count += 1
        if time.perf_counter() - begun > _ENOUGH:
            break
    return (time.perf_counter() - begun) / count, first
