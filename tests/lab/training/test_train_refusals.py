"""What can't work is told before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from train_helpers import small

from mpelu.lab.training.launch import train


@pytest.mark.parametrize(
    ("values", "field", "shown"),
    [
        ({"model": "resnet-21"}, "model", "20"),
        ({"model": "resmet-20"}, "model", "'resnet-20'"),
        ({"model_options": {"depth": 3}}, "model_options", "'depth'"),
        ({"model_options": {"num_classes": 100}}, "model_options", "num_classes=10"),
        ({"model_options": {"in_channels": 3}}, "model_options", "in_channels=1"),
        ({"model_options": {"alpha": 1}}, "model_options", "--alpha"),
        ({"model": "all-cnn-c", "model_options": {}}, "model", "9x9"),
        ({"model": "plain-15", "model_options": {}}, "model", "input_size"),
        (
            {"model": "nin", "model_options": {}, "gradient_checkpointing": True},
            "gradient_checkpointing",
            "nin",
        ),
        ({"activation": "gellu"}, "activation", "'gelu'"),
        ({"activation": "relu", "beta": 1.0}, "beta", "relu"),
        ({"linear_std": (0.1, 0.1)}, "linear_std", "got 2"),
        ({"device": "cuda"}, "device", "CUDA"),
        ({"device": "mps"}, "device", "MPS"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_written(
    tmp_path: Path, values: dict[str, Any], field: str, shown: str
) -> None:
    if "device" in values and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with refusal(shown, field=field):
        train(small(**values), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_one_where_batch_norm_needs_more(tmp_path: Path) -> None:
    config = small(
        model="plain-15", model_options={"width": 2, "fc_width": 8}, image_size=19, augment="none",
        train_limit=41,
    )  # fmt: skip
    with refusal("1 image", "19 x 19", field="model"):
        train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with refusal(tmp_path, "empty"):
        train(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with refusal(tmp_path / "mine", "got a file"):
        train(small(), tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "precious"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert train(small(epochs=1), tmp_path / "run").state == "finished"


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refusal(tmp_path / "file" / "run"):
        train(small(epochs=1), tmp_path / "file" / "run")


def test_tensorboard_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with refusal("pip install '.[tensorboard]'", field="tensorboard"):
        train(small(), tmp_path / "run", tensorboard=True)
    assert list(tmp_path.iterdir()) == []
