"""Code of the user's own, one of each kind in a file outside the package, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_helpers import refused
from refusals import refusal, shows
from safetensors.torch import load_file
from train_helpers import equal, final, stopped_after

from mpelu.lab import Config, cli, files, load_network, resume, train
from mpelu.lab.run import folder
from mpelu.lab.sweep import executors

MINE = '''
import torch
from torch import nn
from torch.utils.data import TensorDataset

from mpelu.lab.config import Config
from mpelu.lab.sweep import Setting, Study

loaded = True

class Swishy(nn.Module):
    """A learnable activation."""

    def __init__(self, channels):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return x * torch.sigmoid(self.slope.view(shape) * x)

def network(num_classes, in_channels, activation=None, width=4):
    act = activation or (lambda channels: nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1), act(width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes),
    )

def small_weights(model):
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.01)

def optimizer(groups, lr):
    return torch.optim.NAdam(groups, lr=lr)

def schedule(progress):
    return 1 - progress / 2

def data(data_dir=None):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.arange(60) % 4
    return TensorDataset(images[:40], labels[:40]), TensorDataset(images[40:], labels[40:])

def study():
    config = Config(model="mine:network", data="mine:data", iterations=2, batch_size=20, threads=1)
    return Study(
        name="mine", title="My study", needs="nothing", labels=("network",),
        settings=lambda source: [Setting(name="a", labels=("a",), paper="", config=config)],
    )

number = 3

def leaves():
    raise SystemExit(0)

def broken():
    raise RuntimeError("it is\\nbroken")

def not_a_module(num_classes):
    return num_classes

def wants_more(num_classes, depth):
    return nn.Linear(1, 1)

def seven(in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, 7))
'''
TINY = ["--train-limit", "40", "--test-limit", "20", "--batch-size", "20", "--threads", "1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the user's module in it."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def run(*arguments: str) -> int:
    return cli.main([*arguments])


@pytest.mark.parametrize(
    "options",
    [
        ["--activation", "mine:Swishy"],
        ["--model", "mine:network"],
        ["--model", "mine:network", "--activation", "mpelu"],
        ["--model", "mine:network", "--activation", "mine:Swishy", "--model-options", "width=6"],
        ["--init", "mine:small_weights"],
        ["--model", "mine:network", "--init", "exact"],
        ["--optimizer", "mine:optimizer"],
        ["--optimizer", "torch.optim:Adagrad", "--lr", "0.01"],
        ["--schedule", "mine:schedule"],
        ["--data", "mine:data"],
    ],
    ids=" ".join,
)
def test_one_of_each_kind_trains_resumes_and_evaluates(
    here: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    limits = [] if "mine:data" in options else TINY[:4]
    arguments = ["--model", "resnet-8", *options, *limits, *TINY[4:], "--epochs", "2"]
    assert run("train", *arguments, "--out", "run", "--quiet") == 0
    assert run("train", "--resume", "run", "--epochs", "3", "--trust", "--quiet") == 0
    assert run("eval", "run", "--trust") == 0
    assert run("inspect", "run", "--trust", "--images", "8", "--quiet") == 0
    assert run("report", "run", "-o", "page") == 0
    assert capsys.readouterr().err == ""
    described = json.loads((here / "run" / "environment.json").read_text())["code"]
    for field, name in folder.read_config(here / "run").references.items():
        assert described[field]["name"] == name


def test_a_study_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "mine:study", "--scale", "full", "--seeds", "2", "--out", "out") == 0
    result = json.loads((here / "out" / "mine-full" / "result.json").read_text())
    assert len(result["rows"]) == 1
    assert "My study" in capsys.readouterr().out
    assert run("reproduce", "mine:study", "--scale", "full", "--seeds", "2", "--out", "out") == 0


def test_a_study_of_ones_own_has_a_smoke_test_and_no_column_of_the_paper(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (here / "mine.py").read_text().replace("iterations=2,", "epochs=9,")
    (here / "mine.py").write_text(source)
    assert run("reproduce", "mine:study", "--scale", "smoke", "--out", "out", "--jobs", "1") == 0
    said = capsys.readouterr().out
    assert "SMOKE TEST" in said
    assert "paper" not in said
    assert "finished after 3 steps" in said
    found = json.loads(Path("out/mine-smoke/result.json").read_text())
    assert found["smoke"] is True
    assert found["header"] == ["network", "measured, test error %", "n", "diverged"]
    assert found["compare"] == []


@pytest.mark.parametrize(
    "values",
    [
        {"model": "mine:network", "activation": "mine:Swishy", "optimizer": "mine:optimizer"},
        {"optimizer": "adamw", "schedule": "cosine", "warmup": 1},
        {"schedule": "one-cycle", "label_smoothing": 0.1, "clip_norm": 0.5},
        {"ema": 0.9, "activation": "mpelu"},
        {"ema": 0.9, "precision": "fp16", "clip_norm": 1.0},
    ],
)
def test_resumed_to_the_bit(here: Path, values: dict[str, object]) -> None:
    config = Config.from_values(
        {
            "model": "resnet-8", "train_limit": 96, "test_limit": 32, "batch_size": 20,
            "epochs": 3, "checkpoint_every": 3, "log_every": 4, "threads": 1, **values,
        }
    )  # fmt: skip
    train(config, here / "whole")
    stopped_after(8, train, config, here / "broken")
    assert resume(here / "broken", trust=True).state == "finished"
    assert equal(final(here / "broken"), final(here / "whole"))


def test_the_moving_average_is_what_is_kept(here: Path) -> None:
    config = Config(
        model="resnet-8", train_limit=40, test_limit=20, batch_size=20, epochs=1, ema=0.5,
        log_every=1, threads=1, seed=3,
    )  # fmt: skip
    train(config, here / "averaged")
    train(Config.from_values({**json.loads(config.to_json()), "ema": None}), here / "plain")
    contents = torch.load(here / "averaged" / "checkpoints" / "step-00000002.pt")
    plain = load_file(here / "plain" / "model.safetensors")
    kept = load_file(here / "averaged" / "model.safetensors")
    assert equal(dict(contents["model"]), plain)
    assert equal(dict(contents["averaged"]), kept)
    first = torch.load(here / "averaged" / "checkpoints" / "best.pt")  # the same step
    assert equal(dict(first["averaged"]), kept)
    assert not equal(plain, kept)
    trained = load_network(here / "averaged", "last", "cpu")
    assert equal(dict(trained.model.state_dict()), kept)


def test_clipping_limits_the_step(here: Path) -> None:
    """With plain SGD, the update of a step is the learning rate times a gradient of this norm."""
    base = {
        "model": "mine:network", "train_limit": 20, "test_limit": 5, "batch_size": 20,
        "iterations": 1, "momentum": 0.0, "weight_decay": 0.0, "lr": 1.0, "threads": 1,
    }  # fmt: skip
    from mpelu.lab.training import network

    start = network.build(Config.from_values(base), 10, 1, 8).state_dict()
    train(Config.from_values({**base, "clip_norm": 0.01}), here / "run")
    end = load_file(here / "run" / "model.safetensors")
    moved = torch.cat([(end[name] - start[name]).flatten() for name in end]).norm()
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


def test_schedules() -> None:
    from mpelu.lab.optimization import Schedule

    def rates(**values: object) -> list[float]:
        config = Config.from_values({"iterations": 10, "lr": 1.0, "batch_size": 10, **values})
        schedule = Schedule.of(config, 100)
        return [schedule.lr(step) for step in range(1, 11)]

    assert rates(schedule="constant") == [1.0] * 10
    assert rates(schedule="linear") == pytest.approx([1 - k / 10 for k in range(10)])
    half = [0.5 * (1 + np.cos(np.pi * k / 10)) for k in range(10)]
    assert rates(schedule="cosine") == pytest.approx(half)
    cycle = rates(schedule="one-cycle")
    assert cycle[0] == pytest.approx(1 / 25)
    assert max(cycle) == cycle[3] == pytest.approx(1)
    assert cycle[-1] < 0.06
    warm = rates(schedule="linear", warmup=5, warmup_lr=0.5)
    assert warm == pytest.approx([0.5] * 5 + [1, 0.8, 0.6, 0.4, 0.2])
    reference = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    torch_cycle = torch.optim.lr_scheduler.OneCycleLR(reference, max_lr=1.0, total_steps=1000)
    ours = Schedule.of(Config(iterations=1000, lr=1.0, batch_size=1, schedule="one-cycle"), 1000)
    for step in range(1, 1000):
        assert ours.lr(step) == pytest.approx(torch_cycle.get_last_lr()[0], abs=0.006)
        reference.step()
        torch_cycle.step()


def test_the_default_learning_rate_follows_the_optimizer() -> None:
    assert Config().lr == 0.1
    assert Config(optimizer="adamw").lr == 0.001
    assert Config(optimizer="adamw", lr=0.01).lr == 0.01
    with refusal("adamw", field="nesterov"):
        Config(optimizer="adamw", nesterov=True)
    with refusal("cosine", field="milestones"):
        Config(schedule="cosine", milestones=(3,))


def test_extending_a_schedule_that_depends_on_the_length_warns(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--model", "resnet-8", *TINY, "--schedule", "cosine", "--out", "run"]
    assert run(*arguments, "--epochs", "1", "--quiet") == 0
    assert run("train", "--resume", "run", "--epochs", "2") == 0
    assert "warning: the cosine schedule depends on the length" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("--model nowhere:network", "can't import nowhere"),
        ("--model mine:nothing", "'nothing'"),
        ("--model mine:number", "int"),
        ("--model mine:broken", "RuntimeError: it is"),
        ("--model mine:not_a_module", "int"),
        ("--model mine:wants_more", "--model-options depth=VALUE"),
        ("--model mine:seven", "[20, 7]"),
        ("--model mine:seven --activation mpelu", "--convert mpelu"),
        ("--model mine:network --model-options deep=3", "deep"),
        ("--model mine:network --alpha 2", "mine:network"),
        ("--optimizer mine:number", "int"),
        ("--optimizer mine:data", "TypeError"),
        ("--optimizer math:sqrt", "TypeError"),
        ("--schedule math:log", "ValueError"),
        ("--schedule builtins:str", "finite factor"),
        ("--data mine:number", "int"),
        ("--data mine:Swishy", "TypeError"),
        ("--data builtins:list", "pair of data sets"),
        ("--init mine:broken", "TypeError"),
        ("--optimizer torch.optim:LBFGS", "TypeError"),
        ("--optimizer torch.optim:SparseAdam", "step"),
        ("--model torch.nn:Flatten", "network with"),
        ("--model mine:network --alpha 0", "mine:network"),
        ("--model mine:leaves", "SystemExit"),
        ("--optimizer adam", "'adamw'"),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_written(
    here: Path, options: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the last of the options and, unless the network is at fault, its value."""
    arguments = ["train", "--model", "resnet-8", *TINY, *options.split(), "--out", "run"]
    told = refused(arguments, capsys)
    option = options.split()[-2]
    assert told.startswith(f"{option}: "), told
    shows(told, shown)
    assert not (here / "run").exists()


HARMFUL = "open('harm', 'w').close()\ndef net(*_, **__): ...\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    train(Config(model="resnet-8", train_limit=20, test_limit=5, epochs=1, threads=1), run)
    return run


@pytest.mark.parametrize("name", ["os:abort", "harmful:net"])
@pytest.mark.parametrize("field", ["model", "activation", "optimizer", "schedule", "init", "data"])
def test_a_run_folder_imports_no_code_that_was_not_vouched_for(
    here: Path,
    trained: Path,
    name: str,
    field: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(trained, here / "run")
    (here / "harmful.py").write_text(HARMFUL)
    monkeypatch.delitem(sys.modules, "harmful", raising=False)
    monkeypatch.setattr(os, "abort", lambda *_, **__: (here / "harm").touch())
    for path, changes in (
        ("config.json", {field: name}),
        ("status.json", {"state": "interrupted"}),
    ):
        file = here / "run" / path
        files.write_json(file, {**files.read_json(file), **changes})  # with the right checksum
    (here / "cat.png").write_bytes(b"")
    needed = {
        "eval run": ("model", "activation", "data"),
        "predict run cat.png": ("model", "activation"),
        "inspect run": ("model", "activation", "data"),
        "train --resume run": ("model", "activation", "optimizer", "schedule", "init", "data"),
        "train --config run/config.json --out new": (
            "model", "activation", "optimizer", "schedule", "init", "data",
        ),
    }  # fmt: skip
    for command, fields in needed.items():
        if field not in fields:
            continue
        shows(refused(command.split(), capsys), "--trust", f"--{field} {name}")
        assert "harmful" not in sys.modules
    assert run("report", "run", "-o", "page") == 0
    assert not (here / "harm").exists()
    assert not (here / "new").exists()


@pytest.mark.parametrize("option", ["--activation", "--model", "--data", "--convert"])
@pytest.mark.parametrize("command", ["eval", "predict", "inspect"])
def test_a_trained_network_takes_no_settings_that_would_not_count(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    given = [command, "run", *(["cat.png"] if command == "predict" else []), option, "mine:network"]
    told = refused(given, capsys)
    shows(told, option)


def test_code_that_a_folder_names_needs_trust_whatever_the_command_line_names(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "mine:network", *TINY, "--epochs", "1", "--out", "run", "--quiet"]
    assert run("train", *arguments) == 0
    again = ["train", "--resume", "run", "--model", "mine:network", "--epochs", "2", "--quiet"]
    assert "if you trust it, add --trust" in refused(again, capsys)
    assert run(*again, "--trust") == 0
    other = ["--config", "run/config.json", "--model", "resnet-8", "--out", "other", "--quiet"]
    assert run("train", *other) == 0
    with refusal("mine:network", "--trust"):
        load_network(here / "run")
    assert load_network(here / "run", trust=True).config.model == "mine:network"
    assert resume(here / "run", trust=True).state == "finished"


def test_resume_says_what_changed_in_the_code(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--model", "mine:network", *TINY, "--epochs", "1", "--out", "run", "--quiet"]
    assert run("train", *arguments) == 0
    mine = here / "mine.py"
    mine.write_text(MINE + "\n# another line\n")
    monkeypatch.delitem(sys.modules, "mine")
    assert run("train", "--resume", "run", "--epochs", "2", "--trust") == 0
    assert "mine:network changed since the run began (mine.py)" in capsys.readouterr().err
    mine.write_text(MINE.replace("width=4", "width=5"))
    monkeypatch.delitem(sys.modules, "mine")
    with pytest.raises(SystemExit):
        run("train", "--resume", "run", "--epochs", "3", "--trust")
    told = capsys.readouterr().err
    assert "parameter 0.weight had shape [4, 1, 3, 3], now [5, 1, 3, 3]" in told


def write_npz(path: Path, count: int, **changes: object) -> None:
    generator = np.random.default_rng(count)
    arrays = {
        "images": generator.integers(0, 256, (count, 9, 9, 3), dtype=np.uint8),
        "labels": np.arange(count) % 3,
        **changes,
    }
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})  # type: ignore[arg-type]


def test_npz_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_npz(here / "train.npz", 40, classes=np.array(["cat", "dog", "cow"]))
    write_npz(here / "test.npz", 10)
    arguments = ["--data", "npz", "--data-dir", ".", "--model", "resnet-8", "--epochs", "1"]
    assert run("train", *arguments, "--batch-size", "20", "--out", "run", "--quiet") == 0
    about = json.loads((here / "run" / "data.json").read_text())
    assert (about["channels"], about["size"], about["classes"]) == (3, 9, ["cat", "dog", "cow"])
    assert about["image_size"] == 9
    assert run("eval", "run") == 0
    from PIL import Image

    Image.new("RGB", (20, 20)).save(here / "cat.png")
    assert run("predict", "run", "cat.png") == 0
    assert "cow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"images": None}, "got no images"),
        ({"labels": np.arange(7)}, "int64 [7]"),
        ({"labels": np.full(40, 0.5)}, "float64 [40]"),
        ({"labels": np.full(40, -1)}, "-1 to -1"),
        ({"labels": np.full(40, 10**12)}, "1000000000000"),
        ({"images": np.full((40, 9, 9, 3), "x")}, "<U1"),
        ({"images": np.zeros((40, 0, 9, 3), np.uint8)}, "images with pixels"),
        ({"classes": np.array("cat")}, "shape []"),
        ({"images": np.zeros((40, 9, 9, 3))}, "float64"),
        ({"images": np.zeros((40, 9, 9, 5), np.uint8)}, "[40, 9, 9, 5]"),
        ({"images": np.array([{}] * 40)}, "Object arrays"),
        ({"classes": np.array(["cat"])}, "3 classes, got 1"),
        ({"images": np.zeros((40, 9, 8, 3), np.uint8)}, "test images of the size"),
    ],
)
def test_npz_files_that_do_not_fit(
    here: Path, changes: dict[str, object], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_npz(here / "train.npz", 40, **changes)
    write_npz(here / "test.npz", 10)
    arguments = ["--data", "npz", "--data-dir", ".", "--model", "resnet-8", "--out", "run"]
    shows(refused(["train", *arguments], capsys), shown)
    assert not (here / "run").exists()


def test_the_page_about_it_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its code is one module; its commands run, with fewer images and steps."""
    page = (Path(__file__).parents[3] / "docs" / "yours.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    (tmp_path / "mine.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(executors, "local", lambda jobs, **_: executors.inline(jobs))
    commands = [line.strip() for line in page.splitlines() if line.startswith("    mpelu ")]
    assert len(commands) == 7
    limits = ["--train-limit", "40", "--test-limit", "10", "--batch-size", "20", "--epochs", "1"]
    for command in commands:
        arguments = command.split()[1:]
        if arguments[0] == "train":
            arguments += [*limits, "--quiet"]
        if arguments[0] == "reproduce":
            import mine  # type: ignore[import-not-found]

            monkeypatch.setattr(
                mine, "Config", lambda **values: Config(**{**values, "train_limit": 40})
            )
            arguments[-1] = "1"
        assert run(*arguments) == 0, command


@pytest.mark.parametrize("content", [b"", b"PK garbage", b"\x93NUMPY", None])
def test_npz_files_that_are_damaged(
    here: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    write_npz(here / "test.npz", 10)
    if content is None:
        write_npz(here / "train.npz", 40)
        content = (here / "train.npz").read_bytes()[:-200]
    (here / "train.npz").write_bytes(content)
    arguments = ["--data", "npz", "--data-dir", ".", "--model", "resnet-8", "--out", "run"]
    shows(refused(["train", *arguments], capsys), "train.npz")


def test_a_single_array_is_no_npz(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(here / "train.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(SystemExit):
        run("train", "--data", "npz", "--data-dir", ".", "--out", "run")
    assert "it holds a single array" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(3, 8, 3), (3, 8, 8), (1, 8, 8), (8, 8)])
def test_tensors_have_channels_first(shape: tuple[int, ...]) -> None:
    from mpelu.lab.data.own import _image

    image = torch.randint(0, 256, shape, dtype=torch.uint8)
    assert torch.equal(_image("mine:data", image), image if len(shape) == 3 else image[None])
    if shape == (3, 8, 8):
        array = image.permute(1, 2, 0).numpy()
        assert torch.equal(_image("mine:data", array), image)
        scaled = image.float() / 255
        assert torch.equal(_image("mine:data", scaled), image)


def test_labels_must_be_integers(here: Path) -> None:
    from mpelu.lab.data.own import _collect

    pairs = [(torch.zeros(1, 4, 4, dtype=torch.uint8), 0.5)]
    with refusal("mine:data", "TypeError", field="data"):
        _collect("mine:data", pairs)
