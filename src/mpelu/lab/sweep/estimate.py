"""Times: of steps that take turns, of a step on random images, and so of runs not yet made.

No data is read, except for data of your own, whose size isn't known otherwise.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mpelu.lab.config import FIELDS, Config
from mpelu.lab.data import registry
from mpelu.lab.errors import plural
from mpelu.lab.sweep.study import Job, Options, Study

SAMPLE = 16
"""Images in a measured step. The time is assumed to be proportional to their number."""
_STEPS = 3
_ENOUGH = 5.0
"""Seconds after which no further step is measured."""

Step = Callable[[], None]


class DataFacts(NamedTuple):
    """What the time of a run depends on."""

    classes: int
    channels: int
    size: int
    """Width and height of the images that the network sees."""
    train_count: int
    test_count: int


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds a call, taken in turns.

    The order is shuffled each round: what ran before leaves the caches in its own state, and a
    candidate that always follows the same other would be charged or paid for that.

    Example:
        >>> times = interleaved({"sum": lambda: sum(range(1000))}, rounds=3)
        >>> len(times["sum"])
        3
    """
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for turn in range(-warmup, rounds):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            candidates[name]()
            elapsed = time.perf_counter() - start
            if turn >= 0:
                times[name].append(elapsed)
    return times


def dry_run(studies: Sequence[Study], options: Options) -> Iterator[str]:
    """Yields lines that say what would be run and how long it would take, as they are known."""
    everything, jobs = 0.0, options.at_a_time
    for study in studies:
        named = [*study.tuning_runs(options), *study.runs(options)]
        if not named:
            yield f"{study.name}, {options.scale}: trains nothing; takes a few minutes at most"
            continue
        times = seconds(named, threads=max(1, (os.cpu_count() or 1) // jobs))
        total = max(sum(times.values()) / jobs, *times.values())
        everything += total
        yield (
            f"{study.name}, {options.scale}: {plural(len(named), 'run')}, {duration(total)} "
            f"with {jobs} at a time"
        )
        yield from (f"  {duration(times[run.name]):>9}  {run.name}" for run in named)
    yield (
        f"total: {duration(everything)} on this machine ({plural(os.cpu_count() or 1, 'core')}), "
        f"estimated from a few steps with at most {SAMPLE} images"
    )


def seconds(runs: Sequence[Job], threads: int) -> dict[str, float]:
    """The seconds of each run on this machine, by name. Equal networks are measured once."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        costs: dict[str, tuple[float, float]] = {}
        facts: dict[str, DataFacts] = {}
        found = {}
        for run in runs:
            config = run.config
            source = str((config.data, config.data_dir, config.image_size, config.crop))
            if source not in facts:
                facts[source] = data_facts(config)
            # The fields that the time of a step depends on.
            costly = [getattr(config, name) for name, info in FIELDS.items() if info.costs]
            key = str((costly, facts[source]))
            if key not in costs:
                costs[key] = measure(config, facts[source])
            found[run.name] = _total(config, *costs[key], facts[source])
        return found
    finally:
        torch.set_num_threads(before)


def data_facts(config: Config) -> DataFacts:
    """The facts of a config's data. It is read only if they aren't known otherwise.

    Raises:
        UserError: if the data has to be read, and can't be.
    """
    import torch

    from mpelu.lab import data

    info = registry.find(config.data)
    if info.image_size:
        _, size = registry.image_sizes(config)
        return DataFacts(info.num_classes, info.channels, size, info.train_count, info.test_count)
    found = data.load(config, torch.device("cpu"))
    counts = (found.train_count, found.test_count)
    return DataFacts(len(found.classes), found.channels, found.size, *counts)


def measure(config: Config, facts: DataFacts) -> tuple[float, float]:
    """Seconds per image of a training step and of a test, from a few steps."""
    count = min(SAMPLE, config.batch_size)
    train, test = steps_on_noise(config, count, facts)
    return fastest(train) / count, fastest(test) / count


def steps_on_noise(config: Config, batch_size: int, facts: DataFacts) -> tuple[Step, Step]:
    """Functions that do a training step and a test step on random images.

    They run on the GPU if there is one. The images are the same in every step.
    """
    import torch

    from mpelu.lab.optimization import build_optimizer
    from mpelu.lab.training import network
    from mpelu.lab.training.process import World
    from mpelu.lab.training.step import GradientStep, autocast, to_memory_format

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Every initialization makes steps equally fast, and some need data.
    chosen = replace(config, init="own", init_distribution=None, init_shape=None, linear_std=None)
    model = network.build(chosen, facts.classes, facts.channels, facts.size)
    last = network.last_layer(model, config, facts.channels, facts.size)
    sgd = build_optimizer(model, config, last)
    model.to(device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, facts.channels, facts.size, facts.size)
    images = torch.randn(shape, generator=generator).to(device)
    labels = torch.randint(0, facts.classes, (batch_size,), generator=generator).to(device)

    whole = torch.arange(batch_size)
    gradient_step = GradientStep.of(model, config, World(device=device), steps=1)
    parts = [(images[part], labels[part]) for part in gradient_step.parts(whole)]

    def train() -> None:
        if not model.training:
            model.train()
        sgd.zero_grad(set_to_none=True)
        sums = gradient_step.gradients(1, whole, iter(parts))
        gradient_step.scaler.step(sgd)
        gradient_step.scaler.update()
        sums.values.tolist()  # waits for a GPU

    @torch.no_grad()
    def test() -> None:
        if model.training:
            model.eval()
        with autocast(config, device):
            model(to_memory_format(images, config))[0, 0].item()

    return train, test


def fastest(step: Step, most: int = 1 + _STEPS, enough: float = _ENOUGH) -> float:
    """Seconds of the fastest of a few steps, of which the first also allocates memory.

    Args:
        step: does a step, and waits for the device.
        most: number of steps.
        enough: seconds after which no further step is begun.
    """
    begun = time.perf_counter()
    best = math.inf
    for _ in range(most):
        start = time.perf_counter()
        step()
        now = time.perf_counter()
        best = min(best, now - start)
        if now - begun > enough:
            break
    return best


def duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> duration(8.2), duration(600), duration(7200), duration(3e6)
        ('8 s', '10 min', '2.0 h', '34.7 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def _total(config: Config, training: float, testing: float, facts: DataFacts) -> float:
    """Seconds of a run whose training and tests take so many seconds per image."""
    train_count = min(facts.train_count, config.train_limit or facts.train_count)
    test_count = min(facts.test_count, config.test_limit or facts.test_count)
    length = config.iterations or config.epochs or 0
    images = length * (config.batch_size if config.iterations else train_count)
    tests = math.ceil(length / config.test_interval)
    return images * training + tests * test_count * testing
