"""`mpelu doctor` at the terminal: sentence, exit code, JSON, page and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_helpers import refused
from PIL import Image

from mpelu.lab import cli

MINE = """
import torch
from torch import nn

def sigmoid():
    torch.manual_seed(0)
    layers = [each for _ in range(50) for each in (nn.Linear(32, 32), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(32, 5))

def gaussian(num_classes=10, in_channels=3):
    torch.manual_seed(0)
    sizes = [in_channels] + 12 * [16]
    layers = [
        each
        for one, other in zip(sizes, sizes[1:])
        for each in (nn.Conv2d(one, other, 3, padding=1), nn.ReLU(inplace=True))
    ]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes)
    model = nn.Sequential(*layers, *head)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.01)
    return model

class Text(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.tokens = nn.Embedding(50, 16)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x)).mean(1))

def small(num_classes, in_channels, input_size):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * input_size**2, num_classes))

def nothing():
    return 5
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of models in the current directory."""
    name = f"doctor_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def first_line(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int) -> str:
    assert cli.main(["doctor", *arguments]) == code
    return capsys.readouterr().out.splitlines()[0]


def test_the_first_line_says_what_is_wrong(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = first_line([f"{mine}:sigmoid", "--input", "32"], capsys, 1)
    assert "the signal's variance falls to" in said
    assert "with MPELU for Sigmoid, initialize_(model, inputs, 'exact')" in said
    said = first_line([f"{mine}:gaussian", "--data", "digits", "--samples", "16"], capsys, 1)
    assert "the signal's variance falls to" in said
    assert "initialize_(model, inputs, 'exact') would hold it at" in said


def test_a_healthy_network_ends_with_zero(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["resnet-8", "--input", "3x16x16", "--samples", "8"]
    assert first_line(arguments, capsys, 0).startswith("healthy: ")
    # A model that takes no real numbers gets tokens of its vocabulary.
    assert first_line([f"{mine}:Text", "--input", "12"], capsys, 0).startswith("healthy: ")


def test_a_factory_gets_options_and_what_the_shape_of_an_image_says(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"{mine}:small", "--input", "3x8x8", "--model-options", "num_classes=4", "--json"]
    assert cli.main(["doctor", *arguments]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1
    # So does a network of the package, which would be built for other images otherwise.
    arguments = ["resnet-8", "--input", "1x8x8", "--model-options", "width=4", "--samples", "4"]
    assert first_line(arguments, capsys, 0).startswith("healthy: ")


def test_json_figure_and_page(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{mine}:gaussian", "--input", "3x8x8", "--json", "--out", "found"]
    assert cli.main(["doctor", *arguments]) == 1
    values = json.loads(capsys.readouterr().out)
    assert values["healthy"] is False
    assert values["findings"][0]["kind"] == "signal dies"
    assert values["findings"][0]["layer"] == "2"
    assert len(values["rows"]) == 25
    assert json.loads(Path("found/diagnosis.json").read_text()) == values
    assert json.loads(Path("found/result.json").read_text())["headline"] == values["sentence"]
    assert "the signal" in Path("found/index.html").read_text()
    assert Path("found/figure.png").stat().st_size > 10_000


@pytest.mark.parametrize(("options", "count"), [([], 16), (["--samples", "24"], 24)])
def test_a_batch_of_large_images_has_as_many_samples_as_its_page_advises(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], count: int
) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number in range(12):
                picture = Image.new("RGB", (8, 8), (20 * number, 0, 50))
                picture.save(tmp_path / "photos" / split / name / f"{number}.png")
    data = ["--data", "folder", "--data-dir", str(tmp_path / "photos")]
    cli.main(["doctor", f"{mine}:small", *data, *options])
    assert f"{mine}:small, {count} images of folder" in capsys.readouterr().out
    random = ["--input", "3x224x224", "--model-options", "num_classes=2"]
    cli.main(["doctor", f"{mine}:small", *random, *options])
    assert f"{count} random samples of 3x224x224" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}:sigmoid"], "got neither"),
        (["{}:sigmoid", "--input", "3", "--data", "digits"], "got both"),
        (["{}:nix", "--input", "3"], "has no 'nix'"),
        (["not_there:net", "--input", "3"], "can't import not_there"),
        (["{}:nothing", "--input", "3"], "got int"),
        (["{}:sigmoid", "--input", "3xa"], "--input: "),
        (["{}:sigmoid", "--input", "7"], "--input: the model "),
        (["{}:sigmoid", "--input", "32", "--samples", "1"], "--samples: "),
        (["{}:small", "--input", "3x8x8"], "--model-options num_classes=VALUE"),
        (["{}:small", "--input", "192"], "num_classes, in_channels and input_size"),
        (["{}:sigmoid", "--input", "32", "--model-options", "a=1"], "argument a"),
        (["{}:sigmoid", "--input", "32", "--seed", "1"], "--seed: "),
        (["resnet-x", "--input", "3x8x8"], "resnet-x"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    mine: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(["doctor", *(each.format(mine) for each in arguments)], capsys)
