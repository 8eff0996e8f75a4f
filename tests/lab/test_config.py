"""The configuration of a run: defaults, JSON, bad values, and the options made from its fields."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest
from refusals import refusal

from mpelu.lab.commands.options import add_config, given
from mpelu.lab.config import FIELDS, GROUPS, Config, differing, label
from mpelu.lab.paper.settings import PRESETS, preset


def test_a_config_survives_json() -> None:
    config = Config(model_options={"width": 8}, milestones=(3, 5), linear_std=(0.1, 0.2), lr=1)
    assert Config.from_json(config.to_json()) == config


def test_the_length_is_30_epochs_unless_given() -> None:
    assert (Config().epochs, Config().length_unit) == (30, "epoch")
    assert (Config(iterations=5).epochs, Config(iterations=5).length_unit) == (None, "iteration")


def test_there_is_a_test_each_epoch_or_each_thousand_iterations() -> None:
    assert Config().test_interval == 1
    assert Config(iterations=5000).test_interval == 1000
    assert Config(iterations=10).test_interval == 10
    assert Config(iterations=10, test_every=3).test_interval == 3


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 0},
        {"lr": -0.1},
        {"lr": float("nan")},
        {"lr": "fast"},
        {"seed": True},
        {"seed": 1.5},
        {"nesterov": 1},
        {"threads": "all"},
        {"momentum": 1.0},
        {"epochs": 0},
        {"weight_decay": -1.0},
        {"linear_std": (0.1, float("inf"))},
        {"linear_std": (-0.1,)},
        {"milestones": ("a",)},
        {"milestones": (5, 3)},
        {"milestones": (3, 3)},
        {"milestones": (0,)},
        {"threads": 100_000},
        {"seed": 2**63},
        {"lr": 1e300},
        {"alpha": -1e38},
        {"data": "cifar"},
        {"data": "imagenet"},
        {"device": "opencl"},
        {"nesterov": True, "momentum": 0.0},
        {"accumulate": 200},
        {"epochs": 2, "iterations": 5},
    ],
)
def test_a_bad_value_is_refused(values: dict[str, Any]) -> None:
    field, value = next(iter(values.items()))
    items = value if isinstance(value, tuple) else [value]
    came = values["momentum"] if field == "nesterov" and "momentum" in values else items[-1]
    with refusal(f"{came:g}" if isinstance(came, float) and came == 0 else came, field=field):
        Config(**values)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("{", "Expecting"), ("[]", "list"), ('{"epoch": 1}', "'epochs'"), ('{"zzz": 1}', "'zzz'")],
)
def test_bad_json_is_refused(text: str, shown: str) -> None:
    with refusal(shown, field="config"):
        Config.from_json(text)


def test_differing_fields_are_named() -> None:
    one = Config(threads=1)
    assert differing(one, replace(one, lr=0.2, threads=2)) == ["lr", "threads"]
    assert differing(one, replace(one, lr=0.2, threads=2), deciding=True) == ["lr"]


def test_the_fingerprint_covers_what_decides_the_result_but_not_the_length() -> None:
    print_of = Config().fingerprint()
    assert Config(lr=0.2).fingerprint() != print_of
    assert Config(epochs=3, data_dir="x", threads=2, device="cpu").fingerprint() == print_of


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configs(name: str) -> None:
    Config.from_values(preset(name))


def test_every_field_has_a_group_and_a_help_that_reads_on() -> None:
    for name, info in FIELDS.items():
        assert info.group in GROUPS
        assert info.help
        assert not info.help.endswith(".")
        assert "_" not in label(name)


def test_options_give_back_what_was_given_and_nothing_else() -> None:
    parser = argparse.ArgumentParser()
    add_config(parser)
    text = "--lr 0.2 --milestones 3 5 --model-options width=8 shortcut=B --no-nesterov"
    text += " --linear-std 0.1 --data-dir x"
    assert given(parser.parse_args(text.split())) == {
        "lr": 0.2,
        "milestones": (3, 5),
        "model_options": {"width": 8, "shortcut": "B"},
        "nesterov": False,
        "linear_std": (0.1,),
        "data_dir": "x",
    }
    assert given(parser.parse_args([])) == {}


def test_every_field_has_an_option_that_shows_its_default() -> None:
    parser = argparse.ArgumentParser()
    add_config(parser)
    options = {action.dest: action for action in parser._actions if action.dest != "help"}
    assert list(options) == list(FIELDS)
    texts = {name: str(option.help) for name, option in options.items()}
    for text in texts.values():
        assert text.endswith(")")
        assert text.count(" (default: ") == 1
    assert texts["lr"] == "learning rate (default: 0.1 for sgd, otherwise 0.001)"
    assert texts["activation_lr_mult"].endswith("(default: 5)")
    assert texts["nesterov"].endswith("(default: no)")
    assert texts["train_limit"].endswith("(default: all)")
    assert texts["data"] == (
        "data set: digits, cifar10, cifar100, folder or npz, a directory of images or arrays, or "
        "package.module:factory (default: digits)"
    )
    assert all(choice in texts["precision"] for choice in ("fp32", "bf16", "fp16"))
