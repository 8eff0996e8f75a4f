"""`mpelu compare --lr auto`: each activation gets a learning rate that suits it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from command_helpers import refused
from refusals import shows

from mpelu.lab import Config, cli, files, train
from mpelu.lab.compare.comparison import plan
from mpelu.lab.compare.costs import ROUNDS, ArmCost, seconds_for, steps_within
from mpelu.lab.compare.rates import Score, best_place, next_places
from mpelu.lab.run import folder
from mpelu.lab.sweep import Options, executors
from mpelu.lab.training.process import derive

UNLUCKY = tuple(derive(seed, "network") for seed in (1, 3))
NETWORK = f"""
import torch
from torch import nn


class Net(nn.Module):
    '''A linear classifier of features that don't learn.'''

    def __init__(self, num_classes, activation):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("fixed", torch.randn(64, 128, generator=generator) / 8)
        self.activation = activation(128)
        self.head = nn.Linear(128, num_classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(self.activation(x.flatten(1) @ self.fixed))


class Small(nn.Module):
    factor = 1.0

    def __init__(self, channels):
        super().__init__()
        self.breaks = torch.initial_seed() in {UNLUCKY} and self.factor == 3.0
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return self.factor * torch.relu(x) + (torch.inf if self.calls > 4 and self.breaks else 0)


class Large(Small):
    '''With features twice as large, a quarter of the learning rate gives the same outputs.'''

    factor = 2.0


class Breaking(Small):
    factor = 3.0
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"rates_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(executors, "local", lambda jobs, **_: executors.inline(jobs))
    return name


def command(mine: str, activations: str, *more: str) -> list[str]:
    names = ",".join(f"{mine}:{each}" for each in activations.split(","))
    few = ["--train-limit", "400", "--test-limit", "100", "--batch-size", "50"]
    return [
        "compare", f"{mine}:Net", "--data", "digits", "--activations", names, "--weight-decay", "0",
        "--jobs", "1", "--out", "out", *few, *more,
    ]  # fmt: skip


def status(path: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((Path("out") / path / "status.json").read_text())
    return told


def test_two_activations_whose_best_rates_differ_by_four_both_get_theirs(
    mine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full = command(mine, "Small,Large", "--seeds", "2", "--budget", "40 steps")
    assert cli.main([*full, "--lr", "auto"]) == 0
    printed = capsys.readouterr()
    assert (
        "at most 16 runs of 10 steps to find learning rates, then 4 runs of 40 steps" in printed.err
    )
    found = json.loads(Path("out/compare-full/result.json").read_text())
    small, large = (row[-1]["value"] for row in found["rows"])
    assert small == 4 * large
    assert f"learning rates found: {small:g} for Small and {large:g} for Large" in found["headline"]
    assert "no difference found between Small and Large" in found["headline"]
    for name, rate in (("Small", small), ("Large", large)):
        run = folder.read(Path(f"out/compare-full/runs/{mine}.{name}-seed0"))
        assert run.config["lr"] == rate

    # By hand: every rate for each, at the full length.
    config = folder.read_config(Path(f"out/compare-full/runs/{mine}.Small-seed0"))
    grid = [0.1 * 4.0**power for power in (-2, -1, 0, 1, 2)]
    errors: dict[str, dict[float, float | None]] = {"Small": {}, "Large": {}}
    best = {}
    for name, tested in errors.items():
        validated = {}
        for rate in grid:
            values = {"activation": f"{mine}:{name}", "lr": rate, "validation": 0.1}
            chosen = Config.from_values({**as_values(config), **values})
            outcome = train(chosen, tmp_path / f"{name}{rate}")
            tested[rate] = outcome.test_error
            validated[rate] = outcome.validation_error or 0.0
        best[name] = min(validated, key=lambda rate: validated[rate])
    assert best["Small"] == 4 * best["Large"]
    for name, rate in (("Small", small), ("Large", large)):
        assert 1 / 4 <= rate / best[name] <= 4
    # With its own rate neither is better; with one for both, one of them is.
    assert errors["Small"][best["Small"]] == errors["Large"][best["Large"]]
    assert any(errors["Small"][rate] != errors["Large"][rate] for rate in grid)

    # The command again has nothing to do, and another rate is another comparison.
    before = status(f"rates-full/runs/{mine}.Small-lr0.1-seed10000")
    assert cli.main([*full, "--quiet"]) == 0
    assert status(f"rates-full/runs/{mine}.Small-lr0.1-seed10000") == before
    capsys.readouterr()
    said = refused([*full, "--lr", "0.1"], capsys)
    assert said == (
        "--out: out holds a comparison with --lr auto, not 0.1; choose another directory"
    )


def as_values(config: Config) -> dict[str, Any]:
    return json.loads(config.to_json())  # type: ignore[no-any-return]


def test_the_search_has_a_seed_of_its_own_and_uses_validation_images(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command(mine, "Small,Large", "--seeds", "1", "--budget", "40 steps")) == 0
    searched = [folder.read(path) for path in folder.find([Path("out/rates-full")])]
    others = [folder.read(path) for path in folder.find([Path("out/compare-full")])]
    assert {run.config["seed"] for run in searched} == {10_000}
    assert {run.config["validation"] for run in searched} == {0.1}
    assert {run.config["validation"] for run in others} == {0}
    table = json.loads(Path("out/rates-full/result.json").read_text())
    assert sum(row[-1]["text"] == "best" for row in table["rows"]) == 2
    # The lowest validation error is chosen, whatever the test error is.
    for row in table["rows"]:
        if row[-1]["text"] == "best":
            same = [other for other in table["rows"] if other[0] == row[0]]
            assert row[2]["value"] == min(other[2]["value"] for other in same)
    assert "rates-full" in Path("out/index.html").read_text()


def test_an_activation_that_diverges_on_two_of_five_seeds_is_called_so(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--seeds", "5", "--budget", "10 steps"]
    assert cli.main(command(mine, "Small,Breaking", *few)) == 0
    found = json.loads(Path("out/compare-full/result.json").read_text())
    assert found["headline"].startswith("Small diverged in none and Breaking in 2 of 5 runs; ")
    assert "which is not enough to call either better" in found["headline"]
    # There was no room for a search, so both had the same rate, which the verdict warns of.
    assert found["headline"].endswith(
        "learning rate 0.1 for all, which may favor an activation that it suits (--lr auto finds "
        "one for each)"
    )
    assert "2 of 5 diverged" in found["rows"][1][1]["text"]


def searched(score: Any) -> dict[int, Score]:
    scores: dict[int, Score] = {}
    while places := next_places(scores):
        scores |= {place: score(place) for place in places}
    return scores


@pytest.mark.parametrize("best", range(-7, 8))
def test_the_search_goes_on_while_the_best_is_at_the_edge_and_then_closes_in(best: int) -> None:
    scores = searched(lambda place: (abs(place - best), 0.0))
    assert best_place(scores) == best
    assert len(scores) <= sum(ROUNDS)


@pytest.mark.parametrize("side", [-1, 1])
def test_the_search_stops_within_its_budget_however_far_the_best_is(side: int) -> None:
    scores = searched(lambda place: (100.0 - side * place, 0.0))
    assert len(scores) == sum(ROUNDS)
    assert best_place(scores) == (max if side > 0 else min)(scores)


def test_divergence_is_the_worst_and_smaller_rates_are_tried() -> None:
    scores = searched(lambda place: (math.inf, math.inf) if place > -6 else (50.0, 1.0))
    assert best_place(scores) <= -6
    nothing = searched(lambda place: (math.inf, math.inf))
    assert best_place(nothing) == min(nothing)
    assert len(nothing) == sum(ROUNDS)


def test_the_search_is_part_of_the_budget() -> None:
    costs = {"one": ArmCost(step=0.01, test=0.1, memory=1, parameters=1)}
    steps = steps_within(3600, costs, runs=10, jobs=2, searched=2)
    assert steps < steps_within(3600, costs, runs=10, jobs=2)
    assert 3550 < seconds_for(steps, costs, runs=10, jobs=2, searched=2) <= 3600


def test_a_comparison_that_an_earlier_version_planned_keeps_its_rate(mine: str) -> None:
    config = Config(model=f"{mine}:Net", data="digits", train_limit=100, test_limit=50)
    names = [f"{mine}:Small", f"{mine}:Large"]
    options = Options(seeds=1, jobs=1, out=Path("out"))
    asked = (config, names, ["own"], "40 steps", options, lambda text: None)
    assert plan(*asked, search=None).search_steps == 10
    planned = files.read_json(Path("out/comparison.json"))
    for name in ("search_steps", "has_validation", "sha256"):
        planned.pop(name, None)
    files.write_json(Path("out/comparison.json"), planned)
    assert plan(*asked, search=None).search_steps == 0


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ("fast", "'fast'"),
        ("0", "> 0"),
        ("auto", "40 steps"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(
    mine: str, capsys: pytest.CaptureFixture[str], rate: str, said: str
) -> None:
    few = ["--seeds", "1", "--budget", "20 steps", "--lr", rate]
    shows(refused(command(mine, "Small,Large", *few), capsys), "--lr: ", said)


def test_arrays_that_are_no_squares_need_an_image_size(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("arrays").mkdir()
    for split in ("train", "test"):
        images = numpy.arange(20 * 60, dtype=numpy.int64).reshape(20, 10, 6) % 256
        labels = numpy.arange(20) % 2
        numpy.savez(f"arrays/{split}.npz", images=images.astype(numpy.uint8), labels=labels)
    asked = command(mine, "Small,Large", "--seeds", "1", "--budget", "2 steps")
    asked[asked.index("digits")] = "arrays"
    assert "--image-size: required for images of 10 x 6" in refused([*asked, "--quiet"], capsys)
    more = ["--image-size", "8", "--momentum", "0.5", "--precision", "bf16", "--device", "cpu"]
    assert cli.main([*asked, *more]) == 0
    config = folder.read_config(Path(f"out/compare-full/runs/{mine}.Small-seed0"))
    assert (config.image_size, config.momentum, config.precision) == (8, 0.5, "bf16")
