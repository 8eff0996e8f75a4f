"""All that can fail before anything is written: data, network, optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mpelu.lab import data
from mpelu.lab.config import Config
from mpelu.lab.data.download import show_progress
from mpelu.lab.training import events, memory, network, optimizer
from mpelu.lab.training.distributed import World, join
from mpelu.lab.training.order import batches_of
from mpelu.lab.training.randomness import mix
from mpelu.lab.training.schedule import Schedule
from mpelu.lab.training.step import Stepper

_EXAMPLES = 128
"""Images for an initialization that measures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    config: Config
    dataset: data.Dataset
    stepper: Stepper
    optimizer: torch.optim.Optimizer
    schedule: Schedule


@contextlib.contextmanager
def session(config: Config) -> Iterator[World]:
    """Leaves random numbers, threads and settings of the caller as they were."""
    threads = torch.get_num_threads()
    deterministic = torch.backends.cudnn.deterministic
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(join(config.device))
        devices = [world.device] if world.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(memory.kept())
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        torch.backends.cudnn.deterministic = True
        try:
            yield world
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.deterministic = deterministic


def prepare(
    config: Config, world: World, mirror: str | None, quiet: bool, tensorboard: bool
) -> Prepared:
    """All that can fail, before anything is written."""
    if tensorboard:
        events.check()
    # The network's name is looked up before what may be a long download.
    network.check_name(config)
    dataset = world.in_turn(
        lambda: data.load(
            config,
            world.device,
            download=True,
            mirror=mirror,
            progress=None if quiet or not world.is_main else show_progress,
        )
    )
    example = example_for(config, dataset) if config.init == "lsuv" else None
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
    return Prepared(
        config=config, dataset=dataset, stepper=stepper, optimizer=sgd, schedule=schedule
    )


def example_for(config: Config, dataset: data.Dataset) -> torch.Tensor:
    """Images of the first training batch, for an initialization that measures."""
    first = batches_of(dataset.train_count, config.batch_size, config.seed, 1)[0][:_EXAMPLES]
    seed = mix(config.seed, 1, "augment")
    images, _ = next(iter(dataset.train([first], seed)))
    return images.cpu()


def _smallest_part(config: Config, dataset: data.Dataset, world: World) -> int:
    """Images in the smallest part of a batch that some process computes at a time."""
    last = dataset.train_count % config.batch_size or config.batch_size
    smallest = min(last, config.batch_size, dataset.train_count)
    return max(1, smallest // world.size // config.accumulate)
