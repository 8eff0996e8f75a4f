"""Validation images: what is chosen is chosen on them, and the test images wait for the end."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from command_helpers import refused
from PIL import Image
from refusals import refusal
from torch import nn
from train_helpers import rows, small, status

from mpelu.lab import Config, cli, load_network, resume, train
from mpelu.lab.data import load
from mpelu.lab.reporting.runs import read_run
from mpelu.lab.training.display import Lines
from mpelu.lab.training.trainer import Outcome

CPU = torch.device("cpu")
CLASSES = 4


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """96 training and 20 test images; the first pixels of each are its number."""
    for name, first, count in (("train", 0, 96), ("test", 96, 20)):
        images = numpy.zeros((count, 8, 8), dtype=numpy.uint8)
        images[:, 0, 0] = first + numpy.arange(count)
        labels = numpy.arange(count) % CLASSES
        numpy.savez(tmp_path / f"{name}.npz", images=images, labels=labels)
    return tmp_path


def config(folder: Path, **values: Any) -> Config:
    return Config(**{
        "data": "npz", "data_dir": str(folder), "preprocess": "none", "batch_size": 16,
        "validation": 0.25, "epochs": 2, "threads": 1, **values,
    })  # fmt: skip


def numbers(images: torch.Tensor) -> list[int]:
    return [round(each) for each in (images[:, 0, 0, 0] * 255).tolist()]


class Watching(nn.Module):
    """Notes the numbers of the images it sees, in training and in evaluation."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, num_classes)
        self.seen: list[tuple[bool, list[int]]] = []
        made.append(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.any():  # not the check of shapes
            self.seen.append((self.training, numbers(images)))
        logits: torch.Tensor = self.layer(images.flatten(1))
        return logits


made: list[Watching] = []


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    module = types.ModuleType("watching_networks")
    module.Watching = Watching  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "watching_networks", module)
    yield "watching_networks:Watching"
    made.clear()


def test_no_validation_image_is_trained_on_and_no_test_image_is_seen_before_the_end(
    arrays: Path, watching: str, tmp_path: Path
) -> None:
    train(config(arrays, model=watching), tmp_path / "run")
    data = load(config(arrays), CPU)
    held = {each for images, _ in data.validation([torch.arange(24)]) for each in numbers(images)}
    assert len(held) == 24
    (network,) = made
    trained = [each for training, images in network.seen if training for each in images]
    assert sorted(trained) == sorted([*(set(range(96)) - held)] * 2)
    tested = [each for training, images in network.seen if not training for each in images]
    # Two tests on the validation images, then one on the test images.
    assert set(tested[:48]) == held
    assert tested[48:] == list(range(96, 116))


def test_each_class_gives_its_share_by_the_seed(arrays: Path) -> None:
    drawn: dict[int, list[int]] = {}
    for seed in (0, 0, 1):
        data = load(config(arrays, seed=seed), CPU)
        assert (data.train_count, data.validation_count, data.test_count) == (72, 24, 20)
        ((images, labels),) = data.validation([torch.arange(24)])
        assert labels.bincount().tolist() == [6] * CLASSES
        found = numbers(images)
        assert drawn.setdefault(seed, found) == found
        assert data.describe()["validation_count"] == 24
    assert drawn[0] != drawn[1]


def test_preprocessing_is_fitted_without_the_validation_images(arrays: Path) -> None:
    data = load(config(arrays, preprocess="channel"), CPU)
    kept = [
        number for number in range(96)
        if number not in numbers(torch.cat([
            images for images, _ in load(config(arrays), CPU).validation([torch.arange(24)])
        ]))
    ]  # fmt: skip
    mean = data.preprocess.state()["mean"].item()
    assert mean == pytest.approx(sum(kept) / len(kept) / 64)


def test_the_best_weights_are_those_of_the_lowest_validation_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    outcome = train(small(validation=0.5, epochs=5, lr=0.05), run, display=Lines())
    tests = [row for row in rows(run) if row["kind"] == "test"]
    assert ["test_error" in row for row in tests] == [False] * 4 + [True]
    best = min(tests, key=lambda row: row["validation_error"])
    told = status(run)
    assert (told["best_error"], told["best_step"]) == (best["validation_error"], best["step"])
    assert told["validation_error"] == outcome.validation_error == tests[-1]["validation_error"]
    assert told["test_error"] == outcome.test_error == tests[-1]["test_error"]
    printed = capsys.readouterr().out
    assert "on the validation images (0.5 of the training" in printed
    shown = "validation loss {validation_loss:.4f}, error {validation_error:.2f} %"
    assert all(shown.format(**row) in printed for row in tests)
    assert f"(lowest {best['validation_error']:.2f} % after step {best['step']})" in printed
    # The page shows the validation error over time.
    entry = read_run(run)
    assert entry["curves"]["on"] == "validation"
    assert entry["curves"]["test_error"]["y"] == [
        pytest.approx(row["validation_error"], rel=1e-3) for row in tests
    ]
    assert load_network(run, weights="best").source.stem == "best"
    assert cli.main(["eval", str(run), "--split", "validation"]) == 0
    error = tests[-1]["validation_error"]
    assert f"validation error {error:.2f} %" in capsys.readouterr().out
    assert cli.main(["eval", str(run)]) == 0
    assert f"test error {outcome.test_error:.2f} %" in capsys.readouterr().out


def test_without_validation_images_the_run_says_that_the_test_images_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(small(epochs=1), run, display=Lines())
    printed = " ".join(capsys.readouterr().out.split())
    assert "on the test images; the best weights are chosen on them too" in printed
    assert "validation_error" not in status(run)
    assert "validation_count" not in (run / "data.json").read_text()
    said = refused(["eval", str(run), "--split", "validation"], capsys)
    assert said == "--split: the run has no validation images"


def test_a_run_that_is_extended_is_tested_again_at_its_new_end(tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    settings: dict[str, Any] = {"validation": 0.25, "train_limit": 60}
    train(small(**settings, epochs=1), run)
    assert resume(run, changes={"epochs": 2}).state == "finished"
    outcome: Outcome = train(small(**settings, epochs=2), whole)
    assert status(run)["test_error"] == outcome.test_error
    first, second = ((each / "model.safetensors").read_bytes() for each in (run, whole))
    assert first == second
    with refusal("0.25", "0.5", field="validation"):
        resume(run, changes={"validation": 0.5})


def photographs(folder: Path, *splits: str) -> Path:
    for place, split in enumerate(splits):
        for label in ("cat", "dog"):
            (folder / split / label).mkdir(parents=True)
            for number in range(4 + place):
                color = (100 * place, 60 * number, 50 if label == "cat" else 200)
                Image.new("RGB", (8, 8), color).save(folder / split / label / f"{number}.png")
    return folder


def of_photographs(folder: Path, **values: Any) -> Config:
    return Config(**{
        "data": "folder", "data_dir": str(folder), "image_size": 8, "model": "resnet-8",
        "model_options": {"width": 2}, "epochs": 2, "batch_size": 8, "threads": 1, **values,
    })  # fmt: skip


def test_val_is_the_validation_set_where_there_is_a_test_set_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = of_photographs(photographs(tmp_path / "images", "train", "val", "test"))
    data = load(settings, CPU)
    assert (data.train_count, data.validation_count, data.test_count) == (8, 10, 12)
    train(settings, tmp_path / "run", display=Lines())
    printed = " ".join(capsys.readouterr().out.split())
    assert "on the validation images (val/), on which the best weights are chosen" in printed
    with refusal("val", field="validation"):
        load(of_photographs(tmp_path / "images", validation=0.1), CPU)


@pytest.mark.parametrize("has_unlabeled", [False, True])
def test_val_is_the_test_set_where_there_is_no_other_and_the_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_unlabeled: bool
) -> None:
    """ImageNet comes with a directory test/ whose images have no labels."""
    folder = photographs(tmp_path / "images", "train", "val")
    if has_unlabeled:
        (folder / "test").mkdir()
        Image.new("RGB", (8, 8)).save(folder / "test" / "ILSVRC2012_test_00000001.png")
    assert load(of_photographs(folder), CPU).validation_count == 0
    settings = of_photographs(folder, validation=0.25)
    data = load(settings, CPU)
    assert (data.train_count, data.validation_count, data.test_count) == (6, 2, 10)
    train(settings, tmp_path / "run", display=Lines())
    lacks = "has no directories of classes" if has_unlabeled else "doesn't exist"
    assert f"val/, because test/ {lacks}" in " ".join(capsys.readouterr().out.split())


def test_test_files_are_not_opened_before_the_end(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "images", "train", "test")
    for path in (folder / "test").rglob("*.png"):
        path.write_bytes(b"damaged")
    with refusal("images are damaged"):
        train(of_photographs(folder, validation=0.25), tmp_path / "run")
    tests = [row for row in rows(tmp_path / "run") if row["kind"] == "test"]
    assert len(tests) == 1
    assert "validation_error" in tests[0]


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_a_share_that_leaves_no_images_on_one_side_is_refused(share: float) -> None:
    with refusal(share, "96", field="validation"):
        load(small(validation=share), CPU)


def test_a_run_without_validation_has_the_fingerprint_of_before_there_was_any() -> None:
    assert Config(validation=0).fingerprint() == Config().fingerprint()
    assert Config(validation=0.1).fingerprint() != Config().fingerprint()
