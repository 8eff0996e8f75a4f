"""A run as one value: defaults, JSON, bad values, and the options made from it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from mpelu.lab import cli
from mpelu.lab.commands import train
from mpelu.lab.commands.options import NAMES, add_config, given
from mpelu.lab.config import Config, difference
from mpelu.lab.errors import UserError
from mpelu.lab.paper import PRESETS, preset


def test_json_there_and_back() -> None:
    config = Config(model_options={"width": 8}, milestones=(3, 5), linear_std=(0.1, 0.2), lr=1)
    assert Config.from_json(config.to_json()) == config


def test_a_length_of_training() -> None:
    assert Config().epochs == 30
    assert Config(iterations=5).epochs is None
    with pytest.raises(UserError, match="expected epochs or iterations, got both: 2 and 5"):
        Config(epochs=2, iterations=5)


def test_a_test_each_epoch_or_each_thousand_iterations() -> None:
    assert Config().test_every == 1
    assert Config(iterations=5000).test_every == 1000
    assert Config(iterations=10).test_every == 10
    assert Config(iterations=10, test_every=3).test_every == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected a number >= 1, got 0"),
        ({"lr": -0.1}, "lr: expected a number > 0, got -0.1"),
        ({"lr": float("nan")}, "lr: expected a finite number, got nan"),
        ({"lr": "fast"}, "lr: expected float, got 'fast'"),
        ({"seed": True}, "seed: expected int, got True"),
        ({"seed": 1.5}, "seed: expected int, got 1.5"),
        ({"data": "cifar"}, "data: expected one of .*; got 'cifar' .closest: 'cifar10'."),
        ({"milestones": (5, 3)}, r"milestones: expected rising numbers >= 1, got \(5, 3\)"),
        ({"momentum": 1.0}, "momentum: expected a number from 0 to below 1, got 1"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov: expected a momentum > 0, got 0"),
        ({"accumulate": 200}, "accumulate: expected at most the batch size, 128, got 200"),
        ({"epochs": 0}, "epochs: expected a number >= 1, got 0"),
        ({"weight_decay": -1.0}, "weight_decay: expected a number >= 0, got -1.0"),
        ({"linear_std": (0.1, float("inf"))}, "linear_std: expected a finite number, got inf"),
        ({"linear_std": (-0.1,)}, r"linear_std: expected numbers >= 0, got \(-0.1,\)"),
        ({"milestones": ("a",)}, "milestones: expected int, got 'a'"),
        ({"threads": 100_000}, "threads: expected a number <= 1024, got 100000"),
        ({"seed": 2**63}, "seed: expected a number <= 9223372036854775807, got"),
        ({"batch_size": 10**20}, "batch_size: expected a number of at most 1,000,000,000, got 1"),
        ({"lr": 1e300}, r"lr: expected a number of at most 1,000,000,000, got 1e\+300"),
        ({"alpha": -1e38}, r"alpha: expected a number of at most 1,000,000,000, got -1e\+38"),
    ],
)
def test_bad_values(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config: expected JSON"),
        ("[]", "config: expected an object, got list"),
        ('{"learning": 1}', "config: expected one of .*; got 'learning'"),
    ],
)
def test_bad_json(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config.from_json(text)


def test_difference_names_old_and_new() -> None:
    old = Config()
    assert difference(old, replace(old, lr=0.2)) == ["lr: 0.1 in the run, 0.2 given"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configs(name: str) -> None:
    Config.from_values(preset(name))


def test_every_field_has_an_option_in_one_group_of_train() -> None:
    grouped = [*train.EVERYDAY, *(name for names in train.GROUPS.values() for name in names)]
    assert sorted(grouped) == sorted(each.name for each in fields(Config))


def test_options_give_back_what_was_given_and_nothing_else() -> None:
    parser = argparse.ArgumentParser()
    add_config(parser)
    arguments = parser.parse_args(
        [
            "--lr",
            "0.2",
            "--milestones",
            "3",
            "5",
            "--model-options",
            "width=8",
            "shortcut=B",
            "--no-nesterov",
            "--linear-std",
            "0.1",
            "--data-dir",
            "x",
        ]
    )
    values = given(arguments)
    assert values == {
        "lr": 0.2,
        "milestones": (3, 5),
        "model_options": {"width": 8, "shortcut": "B"},
        "nesterov": False,
        "linear_std": (0.1,),
        "data_dir": "x",
    }
    assert given(parser.parse_args([])) == {}


def test_every_option_has_help_and_a_default_in_brackets() -> None:
    parser = argparse.ArgumentParser()
    add_config(parser)
    options = [action for action in parser._actions if action.dest in NAMES]
    assert len(options) == len(NAMES)
    for option in options:
        assert option.help
        assert option.help.endswith("]")
        assert "[none]" not in option.help or option.dest in (
            "data_dir", "model_options", "milestones", "iterations", "augment",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "invalid choice: 'dance'"),
        (["train", "--dance"], "unrecognized arguments: --dance"),
        (["train", "--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
        (["train", "--lr", "-1"], "lr: expected a number > 0, got -1"),
        (["train", "--batch-size", "0"], "batch_size: expected a number >= 1, got 0"),
        (["train", "--data", "mnist"], "data: expected one of digits"),
        (["train", "--preset", "resnet"], "preset: expected one of nin-cifar10"),
        (["train", "--preset", "nin-cifar10", "--epochs", "3"], "--epochs: expected --iterations"),
        (["train", "--config", "none.json"], "--config: expected a readable file"),
        (["train", "--model-options", "width"], "expected NAME=VALUE, got 'width'"),
        (["train", "--resume", "x", "--out", "y"], "--resume: expected no --out beside it"),
        (["predict", "run", "a.png", "--top", "0"], "--top: expected a number >= 1, got 0"),
    ],
)
def test_bad_command_lines_end_with_one_line(
    arguments: list[str], message: str, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "mpelu: interrupted\n"),
        (OSError(36, "File name too long", "a"), 2, "mpelu: error: a: File name too long\n"),
        (OSError("lost"), 2, "mpelu: error: lost\n"),
        (
            RuntimeError("you tried to allocate 9 bytes.\nstack"),
            2,
            "mpelu: error: out of memory: you tried to allocate 9 bytes.\n",
        ),
    ],
)
def test_what_the_system_says_is_one_line(monkeypatch, capsys, error, code, told) -> None:
    def failing(arguments: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr("mpelu.lab.commands.models.run", failing)
    with pytest.raises(SystemExit) as stop:
        cli.main(["models"])
    assert stop.value.code == code
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_needs_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom mpelu.lab import cli\n"
        "try:\n    cli.main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'numpy', 'matplotlib', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
