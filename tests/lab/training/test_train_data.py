"""`--data` names a data set, a directory or a function, alike in every command."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from command_helpers import refused
from PIL import Image

from mpelu.lab import cli
from mpelu.lab.data.registry import named
from mpelu.lab.run.folder import read_config


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where photos/ has images and arrays/ has arrays."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            folder = Path("photos", split, label)
            folder.mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(folder / f"{number}.png")
    Path("arrays").mkdir()
    for split in ("train", "test"):
        images = numpy.arange(8 * 64, dtype=numpy.uint8).reshape(8, 8, 8)
        numpy.savez(f"arrays/{split}.npz", images=images, labels=numpy.arange(8) % 2)


@pytest.mark.parametrize(("given", "kind"), [("photos/", "folder"), ("arrays", "npz")])
def test_train_and_doctor_take_a_directory(
    places: None, given: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model-options", "width=2", "--data", given]
    few = ["--model", "resnet-8", "--batch-size", "4", "--iterations", "1", "--image-size", "8"]
    assert cli.main(["train", *model, *few, "--out", "run", "--quiet"]) == 0
    config = read_config(Path("run"))
    assert (config.data, config.data_dir) == (kind, given.rstrip("/"))
    assert cli.main(["doctor", "resnet-8", *model, "--samples", "4"]) in (0, 1)
    assert "resnet-8" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train --model resnet-8", "doctor resnet-8", "compare a:b"])
def test_what_is_neither_is_refused_alike(
    places: None, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused([*command.split(), "--data", "photoes"], capsys)
    assert said.startswith("--data: unknown data set or directory 'photoes'")
    said = refused([*command.split(), "--data", "photos", "--data-dir", "."], capsys)
    assert said == "--data-dir: can't be combined with the directory --data photos"


def test_a_data_set_is_not_hidden_by_a_directory_of_its_name(places: None) -> None:
    Path("digits").mkdir()
    assert named("digits") == {"data": "digits"}
    assert named("./digits")["data"] == "folder"
