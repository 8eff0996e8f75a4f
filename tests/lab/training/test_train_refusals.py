"""What can't work is told before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from train_helpers import small

from mpelu.lab.errors import UserError
from mpelu.lab.training.launch import train


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model": "resnet-21"}, "this CIFAR network has 6n"),
        ({"model": "resmet-20"}, "did you mean a name like 'resnet-20'"),
        ({"model_options": {"depth": 3}}, "resnet-8: unknown option 'depth'"),
        ({"model_options": {"num_classes": 100}}, "expected num_classes=10, as the data has"),
        ({"model_options": {"in_channels": 3}}, "expected in_channels=1, as the data has"),
        ({"model_options": {"alpha": 1}}, "give alpha as --alpha instead"),
        ({"model": "all-cnn-c", "model_options": {}}, "of 9x9 or larger"),
        ({"model": "plain-15", "model_options": {}}, "input_size"),
        (
            {"model": "nin", "model_options": {}, "gradient_checkpointing": True},
            "expected a residual",
        ),
        ({"activation": "gellu"}, "unknown activation 'gellu'; did you mean 'gelu'?"),
        ({"activation": "relu", "beta": 1.0}, "beta: relu takes no beta"),
        ({"linear_std": (0.1, 0.1)}, "linear_std: expected 1 number, one per linear layer, got 2"),
        ({"device": "cuda"}, "device: no CUDA device available"),
        ({"device": "mps"}, "device: no MPS device available"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_written(
    tmp_path: Path, values: dict[str, Any], expected: str
) -> None:
    if "device" in values and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=expected) as told:
        train(small(**values), tmp_path / "run")
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_one_where_batch_norm_needs_more(tmp_path: Path) -> None:
    config = small(
        model="plain-15", model_options={"width": 2, "fc_width": 8}, image_size=19, augment="none",
        train_limit=41,
    )  # fmt: skip
    with pytest.raises(UserError, match="can't take a batch of 1 image of 1 x 19 x 19"):
        train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UserError, match="expected a new or empty directory, got one"):
        train(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UserError, match=r"expected a directory for the run, got a file"):
        train(small(), tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "precious"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert train(small(epochs=1), tmp_path / "run").state == "finished"


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be made"):
        train(small(epochs=1), tmp_path / "file" / "run")


def test_tensorboard_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install '\.\[tensorboard\]'"):
        train(small(), tmp_path / "run", tensorboard=True)
    assert list(tmp_path.iterdir()) == []
