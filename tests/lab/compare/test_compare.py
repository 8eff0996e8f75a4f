"""`mpelu compare`: the same places, weights and batches for every activation, and the verdict."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_helpers import refused
from PIL import Image
from refusals import refusal
from torch import nn
from torch.nn import functional as F

import mpelu
from mpelu.lab import Config, cli, files, load_network, train
from mpelu.lab.compare import comparison
from mpelu.lab.compare.comparison import Arm, ModelComparison, parse_budget, plan
from mpelu.lab.compare.costs import ArmCost, seconds_for, steps_within
from mpelu.lab.compare.verdict import summarize, verdict
from mpelu.lab.data.registry import image_sizes
from mpelu.lab.run.folder import Run
from mpelu.lab.sweep import executors
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.statistics import pair_seeds
from mpelu.lab.sweep.study import Job, Options
from mpelu.lab.tables import Result
from mpelu.lab.training import network
from mpelu.lab.training.network import swap_activations

NETWORK = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.one = nn.Conv2d(width, out, 3, padding=1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.two = nn.Conv2d(out, out, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.relu(self.norm(self.one(x)))
        return self.relu(self.two(x))


class Net(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.blocks = nn.Sequential(Block(in_channels, 8), Block(8, 16))
        self.hidden = nn.Linear(16, 32)
        self.relu = nn.ReLU()
        self.head = nn.Linear(32, num_classes)

    def forward(self, x):
        x = self.blocks(x).mean((2, 3))
        return self.head(self.relu(self.hidden(x)))


class Swish(nn.Module):
    def __init__(self, channels):
        super().__init__()

    def forward(self, x):
        return x * torch.sigmoid(x)


def takes(num_classes, in_channels, activation=Swish):
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3), activation(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, num_classes),
    )


def given(num_classes, in_channels, activation):
    return takes(num_classes, in_channels, activation)


def plain(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"compare_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Runs in this process, which is quicker.
    monkeypatch.setattr(executors, "local", lambda jobs, **_: executors.inline(jobs))
    return name


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", F.relu),
        ("elu", F.elu),
        ("silu", F.silu),
        ("prelu", lambda x: F.leaky_relu(x, 0.25)),
        ("mpelu", F.elu),
    ],
)
def test_every_activation_comes_to_the_same_places(name: str, function: object) -> None:
    inputs = torch.randn(2, 3, 8, 8)
    swapped = swap_activations(model(), inputs, name).model
    assert callable(function)
    plain = model()
    values = plain[2](function(plain[0](inputs)))
    expected = plain[5](function(values).flatten(1))
    torch.testing.assert_close(swapped(inputs), expected)
    learned = {row.parameter.numel() for row in mpelu.activations.learnable_parameters(swapped)}
    assert learned == ({8, 4} if name in ("prelu", "mpelu") else set())


def test_channels_of_tokens_are_the_last_dimension() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.act, self.two = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.two(self.act(self.one(x)))
            return out

    inputs = torch.randn(2, 5, 6)
    swapped = swap_activations(Tokens(), inputs, "prelu").model
    (slope,) = [each.parameter for each in mpelu.activations.learnable_parameters(swapped)]
    with torch.no_grad():
        slope.copy_(torch.linspace(0, 1, 8))
    before = swapped.one(inputs)  # type: ignore[operator]
    expected = swapped.two(torch.where(before > 0, before, slope * before))  # type: ignore[operator]
    torch.testing.assert_close(swapped(inputs), expected)


def test_an_activation_whose_input_is_read_afterwards_stays_in_place() -> None:
    class Overwriting(nn.Module):
        def __init__(self, activation: nn.Module) -> None:
            super().__init__()
            self.activation, self.layer = activation, nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * 1
            output: torch.Tensor = self.layer(self.activation(x)) + x
            return output

    inputs = torch.randn(16, 8)
    swapped = swap_activations(Overwriting(nn.ReLU(inplace=True)), inputs, "silu").model
    expected = Overwriting(nn.SiLU(inplace=True))
    expected.layer.load_state_dict(swapped.layer.state_dict())  # type: ignore[union-attr]
    assert torch.allclose(swapped(inputs), expected(inputs))
    swapped(inputs).sum().backward()


def test_arms_with_the_same_seed_have_the_same_weights(mine: str) -> None:
    base = Config(model=f"{mine}:Net", data="digits", seed=3)
    configs = [
        Arm(activation=name, init=init).config(base)
        for init in ("own", "exact")
        for name in ("own", "relu", "mpelu")
    ]
    built = [dict(network.build(each, 10, 1, 8).named_parameters()) for each in configs]
    for one, other in ((0, 1), (0, 2)):
        for name, value in built[one].items():
            assert torch.equal(value, built[other][name]), name
    # The exact initialization gives other scales, of the same numbers.
    for name, value in built[3].items():
        if value.dim() > 1:
            ratio = value / built[5][name]
            torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-4, atol=0)
    assert torch.equal(
        network.build(replace(configs[2], seed=4), 10, 1, 8).state_dict()["head.weight"],
        network.build(replace(configs[0], seed=4), 10, 1, 8).state_dict()["head.weight"],
    )


@pytest.mark.parametrize("text", ["", "m", "0m", "-5m", "5 days", "1.5 steps", "steps", "30"])
def test_a_budget_is_a_time_or_steps(text: str) -> None:
    with refusal(repr(text), field="budget"):
        parse_budget(text)


def test_time_becomes_steps_that_the_slowest_arm_has_time_for() -> None:
    fast, slow = (ArmCost(step=step, test=0.1, memory=1, parameters=1) for step in (0.01, 0.02))
    costs = {"fast": fast, "slow": slow}
    both = steps_within(600, costs, runs=10, jobs=2)
    assert both == steps_within(600, {"slow": slow}, runs=10, jobs=2)
    assert both < steps_within(600, {"fast": fast}, runs=10, jobs=2)
    # All runs, each as slow as the slowest, end in time.
    assert 5 * both * slow.step < 600 < 5 * 2 * both * slow.step
    assert steps_within(1, costs, runs=10, jobs=2) < 0


def test_the_time_of_a_number_of_steps_is_the_inverse() -> None:
    cost = ArmCost(step=0.01, test=0.1, memory=1, parameters=1, start=2.0, reading=0.02)
    steps = steps_within(600, {"one": cost}, runs=9, jobs=2)
    assert 590 < seconds_for(steps, {"one": cost}, runs=9, jobs=2) <= 600
    # Reading and starting take their part.
    plain = replace(cost, start=0.0, reading=0.0)
    assert steps < steps_within(600, {"one": plain}, runs=9, jobs=2) / 2


def photographs(folder: Path, sizes: list[tuple[int, int]]) -> None:
    for split in ("train", "val"):
        for label, color in (("cat", 40), ("dog", 200)):
            (folder / split / label).mkdir(parents=True)
            for number, size in enumerate(sizes):
                shade = (color, 10 * number, 0)
                Image.new("RGB", size, shade).save(folder / split / label / f"{number}.png")


@pytest.mark.parametrize(
    ("sizes", "seen", "said"),
    [
        (
            [(20, 32), (24, 24), (40, 28)],
            24,
            "images are scaled to 24 x 24; the smaller sides of the training images have 20 to 28 "
            "pixels, with a median of 24",
        ),
        (
            [(300, 400), (260, 300)],
            224,
            "images are scaled to 256 x 256, of which the network sees 224 x 224; the smaller "
            "sides of the training images have 260 to 300 pixels, with a median of 280",
        ),
    ],
)
def test_small_photographs_keep_their_size_and_the_size_is_said(
    mine: str,
    sizes: list[tuple[int, int]],
    seen: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost = ArmCost(step=0.01, test=0.1, memory=1, parameters=1)
    monkeypatch.setattr(comparison, "measure", lambda _, arms, *__: {a.name: cost for a in arms})
    photographs(Path("photos"), sizes)
    config = Config(model=f"{mine}:Net", batch_size=4, data="folder", data_dir="photos")
    told: list[str] = []
    asked = (["relu", "mpelu"], ["own"], "2 steps")
    options = Options(seeds=1, jobs=1, out=Path("out"))
    planned = plan(config, *asked, options, told.append)
    assert told[0] == said
    assert said in planned.notes
    assert image_sizes(planned.config)[1] == seen
    assert plan(config, *asked, options, told.append) == planned  # resumed
    with refusal("--image-size", field="out"):
        plan(replace(config, image_size=16), *asked, options, told.append)
    chosen, other = replace(config, image_size=20, crop=16), replace(options, out=Path("other"))
    assert image_sizes(plan(chosen, *asked, other, told.append).config) == (20, 16)


MPELU, RELU = Arm(activation="mpelu", init="own"), Arm(activation="relu", init="own")


def errors(*values: float | None) -> dict[int, float | None]:
    return dict(enumerate(values))


def test_the_verdict_says_only_what_the_interval_does() -> None:
    clear = pair_seeds(errors(5.0, 5.2, 4.9), errors(7.0, 7.1, 7.2))
    assert verdict(MPELU, RELU, clear).startswith(
        "MPELU has a lower test error than ReLU: by 2.07 percentage points (between "
    )
    unclear = pair_seeds(errors(5.0, 8.0, 6.0), errors(7.0, 7.1, 5.2))
    said = verdict(MPELU, RELU, unclear)
    assert "MPELU and ReLU: no difference found" in said
    assert f"3 seeds could show {unclear.detectable:.2f}" in said
    assert "more seeds are needed" in verdict(MPELU, RELU, pair_seeds({0: 5.0}, {0: 7.0}))
    assert "no pair of runs that ended" in verdict(MPELU, RELU, pair_seeds({0: 5.0}, {1: 7.0}))


def compared(mpelu: dict[int, float | None], relu: dict[int, float | None]) -> Result:
    """What a comparison says of runs with these test errors; None for one that diverged."""
    arms = (RELU, MPELU)
    comparison = ModelComparison(
        config=Config(model="resnet-8", data="digits", epochs=None, iterations=2),
        arms=arms,
        seeds=5,
        budget="2 steps",
        costs={arm.name: ArmCost(step=0.01, test=0.1, memory=1, parameters=1) for arm in arms},
        notes=(),
        asked={},
    )
    study, options = comparison.study(summarize), comparison.options(Options())
    runs: dict[str, list[Job]] = {arm.name: [] for arm in arms}
    for job in study.runs(options):
        error = (relu if job.setting == RELU.name else mpelu)[job.seed]
        status = {"state": "diverged"} if error is None else {"state": "finished"}
        tests = [{"step": 1, "test_error": 90.0}]
        tests += [] if error is None else [{"step": 2, "test_error": error}]
        run = Run(
            path=study.folder(options) / job.name, config={"data": "digits"},
            status={**status, "test_error": error}, environment={}, data={"classes": ["a"]},
            steps=[], tests=tests, problems=(),
        )  # fmt: skip
        runs[job.setting].append(replace(job, state="ended", found=run))
    rows = [replace(each, ended=tuple(runs[each.name])) for each in study.at_scale(options)]
    gathered = Gathered(study=study, options=options, rows=tuple(rows), left_out=())
    return summarize(comparison, gathered)


@pytest.mark.parametrize(
    ("mpelu", "relu", "first", "difference"),
    [
        (
            (5.0, 5.1, None, None, None), (10.0, 10.2, 10.1, 9.9, 10.0),
            "MPELU wins 2 of 5 pairs and ReLU 3, which is not enough to call either better "
            "(sign test, p = 1)",
            "wins 2 of 5 pairs, loses 3",
        ),
        (
            (5.0, 5.1, 4.9, None, 5.2), (10.0, 10.2, 10.1, 9.9, 10.0),
            "MPELU wins 4 of 5 pairs and ReLU 1, which is not enough to call either better "
            "(sign test, p = 0.38)",
            "wins 4 of 5 pairs, loses 1",
        ),
        (
            (5.0, 5.1, 4.9, 5.3, 5.2), (10.0, None, 10.1, 9.9, 10.0),
            "MPELU wins 5 of 5 pairs and ReLU 0, which is not enough to call either better "
            "(sign test, p = 0.062)",
            "wins 5 of 5 pairs, loses 0",
        ),
        (
            (None,) * 5, (None,) * 5, "MPELU and ReLU: both diverged with every seed",
            "wins 0 of 5 pairs, loses 0",
        ),
        (
            (None,) * 5, (10.0, 10.2, 10.1, 9.9, 10.0),
            "MPELU wins 0 of 5 pairs and ReLU 5, which is not enough to call either better "
            "(sign test, p = 0.062)",
            "wins 0 of 5 pairs, loses 5",
        ),
    ],
)  # fmt: skip
def test_a_diverged_run_loses_its_pair_and_the_verdict_starts_with_it(
    mpelu: tuple[float | None, ...],
    relu: tuple[float | None, ...],
    first: str,
    difference: str,
) -> None:
    found = compared(errors(*mpelu), errors(*relu))
    start, said, rate = found.headline.split("; ")
    assert rate.startswith("learning rate 0.1 for all, which may favor an activation")
    counts = [sum(each is None for each in values) for values in (relu, mpelu)]
    words = [f"{count} of 5 runs" if count else "none" for count in counts]
    mine = f" and MPELU in {words[1]}" if counts[1] else ""
    assert start == f"ReLU diverged in {words[0]}{mine}"
    assert said == first
    assert "lower" not in " ".join([found.headline, *found.notes])
    assert found.rows[1][2].text == difference
    assert found.rows[1][2].value is None
    assert any(note.startswith("a run that diverged") for note in found.notes)
    # A mean ends where a run diverged.
    curves = {each.name: list(each.x) for each in found.plots[0].series}
    assert curves == {
        "ReLU": [1] if counts[0] else [1, 2],
        "MPELU": [1] if counts[1] else [1, 2],
    }


def test_nothing_that_diverged_more_often_is_called_better() -> None:
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    ten = errors(*[10.0 + seed / 10 for seed in range(10)])
    better = {seed: None if value is None else value - 5 for seed, value in ten.items()}
    # Nine of ten pairs won, but one run diverged.
    found = pair_seeds({**better, 3: None}, ten)
    assert found.chance == pytest.approx(float(binomtest(9, 10).pvalue))
    assert found.chance < 0.05
    assert "not enough to call either better" in verdict(MPELU, RELU, found)
    assert "not enough to call either better" in verdict(
        MPELU, RELU, pair_seeds(ten, {**better, 3: None})
    )
    # The other way round the ten pairs decide, and the same as often is no reason against it.
    found = pair_seeds(better, {**ten, 3: None})
    p = f"sign test, p = {float(binomtest(10, 10).pvalue):.2g}"
    assert verdict(MPELU, RELU, found) == f"MPELU does better than ReLU: in 10 of 10 pairs ({p})"
    found = pair_seeds({**ten, 3: None}, better)
    assert verdict(MPELU, RELU, found) == f"MPELU does worse than ReLU: in 10 of 10 pairs ({p})"
    assert pair_seeds({**better, 3: None}, {**ten, 3: None, 4: None}).found == -1
    # Nor by the intervals of the pairs that are left, where a run without a partner diverged.
    alone = pair_seeds({**better, 11: None}, ten)
    assert alone.excludes_zero
    assert "MPELU has a lower" not in verdict(MPELU, RELU, alone)
    # Several differences that are reported together need more.
    assert pair_seeds(better, {**ten, 3: None}, comparisons=30).found == 0


def test_a_run_folder_imports_no_activation_that_was_not_vouched_for(mine: str) -> None:
    config = Config(
        model="resnet-8", data="digits", convert=f"{mine}:Swish", iterations=1, batch_size=16,
        train_limit=16, test_limit=16,
    )  # fmt: skip
    train(config, "run")
    with refusal(f"--convert {mine}:Swish"):
        load_network("run")
    trained = load_network("run", trust=True).model
    assert sum(type(each).__name__ == "Swish" for each in trained.modules()) == 7


ARGUMENTS = ["--data", "digits", "--activations", "relu,mpelu", "--seeds", "2", "--budget"]
ARGUMENTS += ["30 steps", "--batch-size", "64", "--train-limit", "512", "--test-limit", "100"]


@pytest.mark.timeout(240)
def test_killed_half_way_it_goes_on_and_ends_with_a_verdict(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", f"{mine}:Net", *ARGUMENTS, "--out", "out", "--jobs", "1"]
    started = subprocess.Popen(
        [sys.executable, "-m", "mpelu.lab", *command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert started.stderr is not None
    for line in started.stderr:
        if "compare 1/4" in line:  # a run has ended, the next one is on its way
            break
    workers = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(started.pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    for number in (started.pid, *map(int, workers)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    started.wait()
    started.stderr.close()
    first = Path("out/compare-full/runs/relu-seed0/status.json")
    before, plan = first.read_text(), Path("out/comparison.json").read_text()
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    assert "compare, full: 3 runs, 1 finished before" in printed.err
    assert first.read_text() == before
    assert Path("out/comparison.json").read_text() == plan
    found = json.loads(Path("out/compare-full/result.json").read_text())
    assert [row[0]["text"] for row in found["rows"]] == ["ReLU", "MPELU"]
    # The difference in the table is that of the runs.
    errors = {
        path.parent.name: json.loads(path.read_text())["test_error"]
        for path in Path("out/compare-full/runs").glob("*/status.json")
    }
    assert len(errors) == 4
    pairs = [[errors[f"{name}-seed{seed}"] for seed in (0, 1)] for name in ("mpelu", "relu")]
    expected = pair_seeds(*(dict(enumerate(each)) for each in pairs))
    assert found["rows"][1][2]["value"] == pytest.approx(expected.difference)
    assert ("no difference found" in found["headline"]) == (not expected.excludes_zero)
    assert found["headline"].split(";")[0] in printed.out.replace("\n", " ")
    assert printed.out.rstrip().endswith("out/index.html")
    assert "compare" in Path("out/index.html").read_text()
    # The whole again, planned by a version whose warm-up had a rate: nothing is left to do.
    planned = json.loads(plan)
    planned["config"]["warmup_lr"] = 0.01
    del planned["sha256"]
    files.write_json(Path("out/comparison.json"), planned)
    assert cli.main([*command, "--quiet"]) == 0
    capsys.readouterr()
    said = refused([*command, "--lr", "0.5"], capsys)
    assert said == (
        "--out: out holds a comparison with --lr 0.1, not 0.5; choose another directory"
    )


def test_a_factory_that_takes_an_activation_is_given_it(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--data", "digits", "--seeds", "1", "--budget", "2 steps", "--train-limit", "32"]
    few += ["--test-limit", "16", "--jobs", "1", "--quiet"]
    for name, arms in (("takes", ["own", "mpelu"]), ("given", ["relu", "mpelu"])):
        names = ",".join(arms)
        command = ["compare", f"{mine}:{name}", *few, "--activations", names, "--out", name]
        assert cli.main(command) == 0
        assert "MPELU" in capsys.readouterr().out
        for arm in arms:
            trained = load_network(f"{name}/compare-full/runs/{arm}-seed0", trust=True)
            assert trained.config.activation == (None if arm == "own" else arm)
            assert trained.config.convert is None
            found = sum(isinstance(each, mpelu.MPELU) for each in trained.model.modules())
            assert found == (arm == "mpelu")


def test_help_names_every_initialization_and_the_schedule_in_force(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compare", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "own, exact, taylor, critical, deep, msra, xavier, gaussian, lsuv (default: own)" in said
    assert "package.module:factory (default: cosine)" in said
    assert "milestones" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}:Net"], "--data"),
        (["{}:Net", "--data", "nowhere"], "--data: "),
        (["{}:nix", "--data", "digits"], "'nix'"),
        (["{}:Net", "--data", "digits", "--activations", "rlu"], "'relu'"),
        (["{}:Net", "--data", "digits", "--activations", ","], "--activations: "),
        (["{}:Net", "--data", "digits", "--activations", "own"], "at least two arms"),
        (["{}:Net", "--data", "digits", "--inits", "best"], "--inits: "),
        (["{}:Net", "--data", "digits", "--seeds", "0"], "--seeds: "),
        (["{}:Net", "--data", "digits", "--budget", "soon"], "--budget: "),
        (["{}:Net", "--data", ".", "--data-dir", "."], "--data-dir: "),
        (["{}:Net", "--data", "digits", "--budget", "3s"], "--budget: "),
        (["{}:given", "--data", "digits"], "--activations: {}:given "),
        (["{}:plain", "--data", "digits"], "def net"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(
    mine: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    given = [each.format(mine) for each in arguments]
    assert said.format(mine) in refused(["compare", *given, "--quiet"], capsys)
    assert not Path("out").exists()
