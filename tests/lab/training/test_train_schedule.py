"""What happens at which step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_helpers import small

from mpelu.lab.optimization import Schedule
from mpelu.lab.paper import table11
from mpelu.lab.training.process import World, derive, epoch_batches
from mpelu.lab.training.step import GradientStep
from research import depth


def test_lr_by_epochs() -> None:
    config = small(batch_size=25, epochs=6, milestones=(2, 4), gamma=0.5, lr=0.2)
    schedule = Schedule.of(config, 100)
    assert (schedule.steps, schedule.steps_per_epoch, schedule.epochs) == (24, 4, 6)
    rates = [schedule.lr(step) for step in range(1, 25)]
    assert rates == [0.2] * 8 + [0.1] * 8 + [0.05] * 8


def rates(count: int, **values: Any) -> list[float]:
    schedule = Schedule.of(small(**values), count)
    return [schedule.lr(step) for step in range(1, schedule.steps + 1)]


def test_lr_by_iterations() -> None:
    found = rates(1000, epochs=None, iterations=6, milestones=(5,), gamma=0.1, lr=1.0)
    assert found == pytest.approx([1.0] * 5 + [0.1])


def test_warm_up_rises_linearly_from_zero_to_the_peak_rate_at_its_last_step() -> None:
    steps = {"epochs": None, "iterations": 8, "milestones": (5,), "gamma": 0.1}
    found = rates(1000, **steps, optimizer="adamw", warmup=4)
    assert found == pytest.approx([0.00025, 0.0005, 0.00075, 0.001, 0.001, 1e-4, 1e-4, 1e-4])
    by_epochs = rates(101, batch_size=50, epochs=3, warmup=2, lr=0.3)
    assert by_epochs == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.3, 0.3, 0.3])
    assert by_epochs[5] == 0.3  # to the bit
    assert rates(101, batch_size=50, epochs=3, warmup=2, lr=0.3, accumulate=5) == by_epochs
    assert rates(101, batch_size=50, epochs=9, warmup=2, lr=0.3)[:9] == by_epochs


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "one-cycle"])
def test_a_schedule_starts_where_warm_up_ends(schedule: str) -> None:
    whole = rates(100, epochs=None, iterations=10, schedule=schedule, lr=0.2)
    warm = rates(100, epochs=None, iterations=13, schedule=schedule, lr=0.2, warmup=3)
    assert warm == [pytest.approx(0.2 / 3), pytest.approx(0.4 / 3), 0.2, *whole]


def test_a_run_that_is_shorter_than_its_warm_up_only_rises() -> None:
    found = rates(100, epochs=None, iterations=3, lr=0.4, warmup=8, schedule="cosine")
    assert found == pytest.approx([0.05, 0.1, 0.15])


def test_a_warm_up_at_a_constant_rate_as_in_the_paper() -> None:
    steps = {"epochs": None, "iterations": 8, "milestones": (5,), "gamma": 0.1, "lr": 1.0}
    found = rates(1000, **steps, warmup=2, warmup_lr=0.01)
    assert found == pytest.approx([0.01] * 2 + [1.0] * 3 + [0.1] * 3)
    by_epochs = rates(101, batch_size=50, epochs=3, warmup=1, warmup_lr=0.01, lr=0.1)
    assert by_epochs == [0.01] * 3 + [0.1] * 6
    (warm,) = (each for each in table11.settings("paper") if each.name == "nopre-bn-resnet-warmup")
    assert warm.config is not None
    first = Schedule.of(warm.config, 50_000)
    assert {first.lr(step) for step in (1, 200, 391)} == {0.01}
    assert {Schedule.of(depth.base(), 20_000).lr(step) for step in (1, 20)} == {0.002}


def test_epochs_and_positions_count_steps_done() -> None:
    schedule = Schedule.of(small(batch_size=50), 101)
    assert [schedule.epoch(step) for step in range(8)] == [0, 1, 1, 1, 2, 2, 2, 3]
    assert [schedule.position(step) for step in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]


def due(what: Callable[[int], bool], steps: int) -> list[int]:
    return [step for step in range(1, steps + 1) if what(step)]


def test_tests_checkpoints_and_lines_by_epochs() -> None:
    config = small(batch_size=50, epochs=5, test_every=2, checkpoint_every=4, log_every=7)
    schedule = Schedule.of(config, 101)
    assert due(schedule.tests, 15) == [6, 12, 15]
    assert due(schedule.saves, 15) == [4, 6, 8, 12, 15]
    assert due(schedule.logs, 15) == [7, 14]
    assert due(schedule.resets_means, 15) == [3, 6, 9, 12, 15]


def test_tests_by_iterations() -> None:
    schedule = Schedule.of(small(epochs=None, iterations=10, test_every=4, batch_size=50), 101)
    assert due(schedule.tests, 10) == [4, 8, 10]
    assert due(schedule.resets_means, 10) == [4, 8, 10]
    assert schedule.epochs == 4


def test_at_most_fifty_snapshots_and_the_first_and_last() -> None:
    schedule = Schedule.of(small(batch_size=100, epochs=164), 100)
    kept = [step for step in range(165) if schedule.snapshots(step)]
    assert kept == [*range(0, 164, 4), 164]
    short = Schedule.of(small(batch_size=50, epochs=None, iterations=5), 100)
    assert [step for step in range(6) if short.snapshots(step)] == [0, 2, 4, 5]


@given(
    count=st.integers(1, 300),
    batch_size=st.integers(1, 320),
    size=st.integers(1, 5),
    accumulate=st.integers(1, 6),
    seed=st.integers(0, 3),
)
def test_every_sample_once_whoever_computes_it(
    count: int, batch_size: int, size: int, accumulate: int, seed: int
) -> None:
    batches = epoch_batches(count, batch_size, seed, 1)
    assert len(batches) == -(-count // batch_size)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    seen = []
    config = small(batch_size=320, accumulate=accumulate)
    cpu, model = torch.device("cpu"), torch.nn.Linear(1, 1)
    worlds = [World(device=cpu, rank=rank, size=size) for rank in range(size)]
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    steps = [
        GradientStep(config=config, model=model, wrapped=model, scaler=scaler, world=world, steps=1)
        for world in worlds
    ]
    for batch in batches:
        shares = [world.share(batch) for world in worlds]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        parts = []
        for mine, step in zip(shares, steps, strict=True):
            if len(mine):
                parts += [part.tolist() for part in step.parts(batch)]
            else:
                assert step.parts(batch)[0].tolist() == batch[:1].tolist()
        assert all(parts)
        assert [index for part in parts for index in part] == batch.tolist()
        seen += batch.tolist()
    assert sorted(seen) == list(range(count))


def test_each_epoch_has_an_order_of_its_own() -> None:
    orders = {
        tuple(epoch_batches(50, 50, seed, epoch)[0].tolist()) for seed in (0, 1) for epoch in (1, 2)
    }
    assert len(orders) == 4


def test_seeds_are_the_same_in_every_process() -> None:
    assert derive(0, 1, "augment") == 585545271812402559
    assert derive(1, 11) != derive(11, 1) != derive(1, 1, 1)
