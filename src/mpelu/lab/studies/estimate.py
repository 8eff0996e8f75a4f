"""How long runs would take, from a few measured steps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from mpelu.lab.config import Config
from mpelu.lab.data.registry import find, image_sizes
from mpelu.lab.studies.recipe import NamedRun, Options, Recipe

SAMPLE = 16
"""Images in a measured step; time is taken to grow with their number."""
_STEPS = 3
_ENOUGH = 5.0
"""Seconds after which no further step is measured."""


class Cost(NamedTuple):
    """Seconds an image."""

    training: float
    testing: float


def plan_lines(recipes: Sequence[Recipe], options: Options, jobs: int) -> Iterator[str]:
    """What would be run and how long it would take, for --dry-run; each line once it is known."""
    everything = 0.0
    for recipe in recipes:
        named = recipe.runs(options)
        if not named:
            yield f"{recipe.name}, {options.scale}: nothing is trained; some minutes at most"
            continue
        times = seconds(named, threads=max(1, (os.cpu_count() or 1) // jobs))
        total = max(sum(times.values()) / jobs, *times.values())
        everything += total
        yield (
            f"{recipe.name}, {options.scale}: {len(named)} runs, {shown(total)} "
            f"with {jobs} at a time"
        )
        yield from (f"  {shown(times[run.name]):>9}  {run.name}" for run in named)
    yield (
        f"all: {shown(everything)} on this machine ({os.cpu_count()} cores), estimated "
        f"from a few steps of at most {SAMPLE} images"
    )


def seconds(runs: Sequence[NamedRun], threads: int) -> dict[str, float]:
    """Seconds each run would take on this machine, by its name; networks alike count once.

    Data are made up, so none are needed.

    Args:
        runs: to be estimated.
        threads: that each would have.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _seconds(runs)
    finally:
        torch.set_num_threads(before)


def _seconds(runs: Sequence[NamedRun]) -> dict[str, float]:
    costs: dict[str, Cost] = {}
    found = {}
    for run in runs:
        key = str(_what_costs(run.config))
        if key not in costs:
            costs[key] = measure(run.config)
        found[run.name] = _total(run.config, costs[key])
    return found


def _what_costs(config: Config) -> Config:
    """The config with what doesn't change the time of a step left out."""
    return Config(
        data=config.data,
        image_size=config.image_size,
        crop=config.crop,
        model=config.model,
        model_options=config.model_options,
        activation=config.activation,
        precision=config.precision,
        gradient_checkpointing=config.gradient_checkpointing,
        batch_size=config.batch_size,
    )


def measure(config: Config) -> Cost:
    """Time of a few steps on noise: forward, backward and update, and forward alone."""
    import torch
    from torch.nn.functional import cross_entropy

    from mpelu.lab.training import network
    from mpelu.lab.training.optimizers import build_optimizer

    classes, channels = find(config.data).num_classes, find(config.data).channels
    _, side = image_sizes(config)
    count = min(SAMPLE, config.batch_size)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Any initialization costs the same afterwards, and some need data to begin with.
    model = network.build(replace(config, init="own", linear_std=None), classes, channels, side)
    sgd = build_optimizer(model, config, channels, side)
    model.to(device)
    images = torch.randn(count, channels, side, side, device=device)
    labels = torch.zeros(count, dtype=torch.long, device=device)

    def train() -> None:
        sgd.zero_grad()
        output = model(images)
        loss = cross_entropy(output[0] if isinstance(output, tuple) else output, labels)
        loss.backward()
        sgd.step()
        loss.item()  # waits for a GPU

    @torch.no_grad()
    def test() -> None:
        output = model(images)
        (output[0] if isinstance(output, tuple) else output)[0, 0].item()

    training = _fastest(train)
    model.eval()
    return Cost(training / count, _fastest(test) / count)


def _fastest(step: Callable[[], None]) -> float:
    """Of a few steps after a first, which also prepares what is kept for the others."""
    begun = time.perf_counter()
    best = math.inf
    for _ in range(1 + _STEPS):
        start = time.perf_counter()
        step()
        now = time.perf_counter()
        best = min(best, now - start)
        if now - begun > _ENOUGH:
            break
    return best


def shown(duration: float) -> str:
    """Seconds in words.

    Example:
        >>> shown(8.2), shown(600), shown(7200), shown(3e6)
        ('8 s', '10 min', '2.0 h', '34.7 days')
    """
    if duration < 90:
        return f"{duration:.0f} s"
    if duration < 5400:
        return f"{duration / 60:.0f} min"
    if duration < 2 * 86400:
        return f"{duration / 3600:.1f} h"
    return f"{duration / 86400:.1f} days"


def _total(config: Config, cost: Cost) -> float:
    data = find(config.data)
    train_count = min(data.train_count, config.train_limit or data.train_count)
    test_count = min(data.test_count, config.test_limit or data.test_count)
    if config.iterations is None:
        assert config.epochs is not None
        images, tests = config.epochs * train_count, math.ceil(config.epochs / config.test_interval)
    else:
        images = config.iterations * config.batch_size
        tests = math.ceil(config.iterations / config.test_interval)
    return images * cost.training + tests * test_count * cost.testing
