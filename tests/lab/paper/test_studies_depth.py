"""Learning rates that a study chooses on a seed of its own, and plain networks of any depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mpelu import models
from mpelu.lab.config import Config
from mpelu.lab.sweep import executors, gather, runner
from mpelu.lab.sweep.study import TUNING_SEED, Options, Setting, Study


def options(out: Path) -> Options:
    return Options(scale="small", out=out)


def small_study(*rates: float) -> Study:
    config = Config(
        data="digits", model="plain-2", model_options={"small_maps": True, "width": 4},
        init="deep", iterations=6, batch_size=16, train_limit=64, test_limit=32, threads=1,
        lr=0.5, log_every=1,
    )  # fmt: skip
    return Study(
        name="tuned",
        title="A study with rates",
        needs="nothing",
        labels=("network",),
        settings=lambda source: [Setting(name="two", labels=("2",), paper="", config=config)],
        seeds={"small": 1},
        rates=rates,
    )


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process, which is quicker."""
    monkeypatch.setattr(executors, "local", lambda jobs, **options: executors.inline(jobs))


def run(study: Study, out: Path) -> list[str]:
    return [event.text for event in runner.run([study], options(out))]


def losses(folder: Path) -> dict[str, float]:
    found = {}
    for path in folder.iterdir():
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        found[path.name] = [row["test_loss"] for row in rows if "test_loss" in row][-1]
    return found


@pytest.mark.usefixtures("inline")
def test_runs_take_the_rate_of_the_lowest_test_loss(tmp_path: Path) -> None:
    study = small_study(1e-6, 0.05)
    texts = run(study, tmp_path)
    assert "tuned, small: 2 runs to choose learning rates" in texts
    folder = tmp_path / "tuned-small"
    tried = losses(folder / gather.TUNING)
    assert tried["two-lr0.05"] < tried["two-lr1e-06"]
    assert gather.chosen_rates(study, options(tmp_path)) == {"two": 0.05}
    config = json.loads((folder / gather.RUNS / "two-seed0" / "config.json").read_text())
    assert (config["lr"], config["seed"]) == (0.05, 0)
    tuning = json.loads((folder / gather.TUNING / "two-lr0.05" / "config.json").read_text())
    assert tuning["seed"] == TUNING_SEED
    again = run(study, tmp_path)
    assert "tuned, small: 0 runs to choose learning rates, 2 finished before" in again
    assert "tuned, small: 0 runs, 1 finished before" in again


@pytest.mark.usefixtures("inline")
def test_a_rate_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    study = small_study(0.01, 1e9)
    run(study, tmp_path)
    assert gather.chosen_rates(study, options(tmp_path)) == {"two": 0.01}


def test_without_tuning_runs_there_is_no_choice(tmp_path: Path) -> None:
    assert gather.chosen_rates(small_study(0.1, 0.2), options(tmp_path)) == {}


def test_smoke_tests_choose_nothing() -> None:
    assert small_study(0.1, 0.2).tuning_runs(Options(scale="smoke")) == []


class TestSmallMaps:
    def test_any_depth_will_do(self) -> None:
        for layers in (1, 2, 7, 40):
            network: Any = models.create(
                f"plain-{layers}", small_maps=True, width=6, input_size=15, num_classes=5
            )
            weights = [each for each in network if isinstance(each, (nn.Conv2d, nn.Linear))]
            assert len(weights) == layers
            assert network(torch.zeros(2, 3, 15, 15)).shape == (2, 5)

    def test_one_layer_is_softmax_regression(self) -> None:
        network = models.create("plain-1", small_maps=True, input_size=16, num_classes=10)
        assert sum(each.numel() for each in network.parameters()) == (3 * 16 * 16 + 1) * 10

    def test_maps_are_half_the_size(self) -> None:
        network: Any = models.create("plain-9", small_maps=True, width=4, input_size=16)
        assert network[:-2](torch.zeros(1, 3, 16, 16)).shape == (1, 4, 8, 8)

    def test_dropout_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no dropout with small_maps"):
            models.create("plain-9", small_maps=True, input_size=16, dropout=0.5)
