"""`mpelu inspect` on a real small run, on networks before training, and on bad input."""

import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from refusals import refusal, shows
from rich.console import Console
from torch import nn

import mpelu
from mpelu.lab import cli
from mpelu.lab.config import Config
from mpelu.lab.inspecting import inspect_config, inspect_run, learned_parameters
from mpelu.lab.inspecting.inspection import initial_network, measure
from mpelu.lab.inspecting.plots import draw_inspection, to_png
from mpelu.lab.inspecting.tables import inspection_tables
from mpelu.lab.training.launch import train

SMALL: dict[str, Any] = {
    "model": "nopre-resnet-11",
    "model_options": {"width": 4},
    "train_limit": 128,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(Config(**SMALL, epochs=2, batch_size=64, test_limit=40, threads=1), folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "small"))


def printed(found: dict[str, Any], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in inspection_tables(found, width):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_examples_of_the_help_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["inspect", "--help"])
    examples = re.findall(r"^  mpelu (inspect --model .*)$", capsys.readouterr().out, re.MULTILINE)
    assert examples
    for example in examples:
        cli.main([*example.split(), "--images", "8", "--quiet"])


def test_images_are_resized_and_cropped_as_in_training(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--image-size", "24", "--crop", "20"]
    options = ["--model-options", "width=4", "fc_width=8"]
    cli.main(["inspect", "--model", "plain-15", *options, *sizes, "--images", "8"])
    assert "plain-15" in capsys.readouterr().out


def refuse(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["inspect", *arguments])
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def strict(path: Path) -> Any:
    def no_number(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(path.read_text(), parse_constant=no_number)


def test_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "model.safetensors").read_bytes()
    assert cli.main(["inspect", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nopre-resnet-11, final weights of small, 40 images of digits"
    assert lines[-2:] == [str(run / "inspect.json"), str(run / "inspect.png")]
    found = strict(run / "inspect.json")
    assert (found["format"], found["which"], found["images"]) == (2, "final", 40)
    names = [layer["name"] for layer in found["layers"]]
    assert len(set(names)) == len(names)
    kinds = {layer["kind"] for layer in found["layers"]}
    assert {"conv", "norm", "activation", "linear"} <= kinds
    for layer in found["layers"]:
        assert any(line.startswith(f"{layer['name']} ") for line in lines)
        assert layer["gradient"] > 0
        assert (layer["positive"] is not None) == (layer["kind"] == "activation")
    assert found["activations"]["epochs"] == [0, 1, 2]
    first = found["activations"]["layers"][0]
    assert first["history"]["alpha"]["mean"][0] == 0.25
    assert first["history"]["alpha"]["mean"][-1] == pytest.approx(
        sum(first["alpha"]) / len(first["alpha"])
    )
    assert len(found["residual"]["layers"]) == len(found["activations"]["layers"])
    assert found["gradients"]["parameters"]["classifier.weight"] > 0
    assert (run / "model.safetensors").read_bytes() == before
    assert [path.name for path in run.glob("*.tmp")] == []


def test_the_figure_shows_something(run: Path) -> None:
    cli.main(["inspect", str(run), "--quiet"])
    image = Image.open(run / "inspect.png").convert("L")
    assert image.width > 1000
    dark = sum(image.histogram()[:200]) / (image.width * image.height)
    assert 0.01 < dark < 0.5


def test_quiet_out_and_weights(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    for weights in ("best", "last"):
        command = ["inspect", str(run), "--weights", weights, "--out", str(out), "--quiet"]
        assert cli.main([*command, "--images", "7"]) == 0
        found = strict(out / "inspect.json")
        assert (found["which"], found["images"]) == (weights, 7)
    assert capsys.readouterr() == ("", "")
    assert not (run / "inspect.json").exists()


def test_a_diverged_run_is_told_in_valid_json(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(run / "model.safetensors")
    spoilt = {
        name: torch.full_like(value, math.nan) if value.is_floating_point() else value
        for name, value in weights.items()
    }
    save_file(spoilt, run / "model.safetensors")
    assert cli.main(["inspect", str(run)]) == 0
    found = strict(run / "inspect.json")
    assert found["layers"][-1]["variance"] is None
    assert found["gradients"]["loss"] is None
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--init", "lsuv"], ["--init", "gaussian"]])
def test_before_training(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["inspect", "--model", "resnet-8", "--model-options", "width=4", "--images", "32"]
    assert cli.main([*command, *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith("resnet-8, initial weights, 32 images of digits\n")
    assert list(tmp_path.iterdir()) == []
    norms = [row for line in text.splitlines() if (row := line.split())[1:2] == ["norm"]]
    assert norms
    # Batch norm over the batch: its outputs have unit variance whatever the weights.
    assert all(float(row[3]) == pytest.approx(1, abs=0.02) for row in norms)
    assert cli.main([*command, *options]) == 0
    assert capsys.readouterr().out == text


def test_options_reach_the_network(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--model", "nopre-resnet-11", "--model-options", "width=4", "--quiet"]
    cli.main(["inspect", *options, "--alpha", "0.5", "--out", str(out), "--images", "8"])
    layers = strict(out / "inspect.json")["activations"]["layers"]
    assert {value for layer in layers for value in layer["alpha"]} == {0.5}


def test_it_is_the_network_a_run_starts_with(trained: Path) -> None:
    config = Config(**SMALL, epochs=2, batch_size=64, test_limit=40)
    now = learned_parameters(initial_network(config, 4)[0]).final
    at_start = {name: values[0] for name, values in learned_parameters(trained).history.items()}
    assert now.keys() == at_start.keys()
    assert all(torch.equal(now[name], values) for name, values in at_start.items())
    for init in ("own", "lsuv"):
        config = Config(**SMALL, init=init)
        one, two = (initial_network(config, images)[0].state_dict() for images in (4, 9))
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_bad_input(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    file = tmp_path / "file"
    file.write_text("")
    for arguments, shown in (
        ([str(empty)], str(empty)),
        ([], "got neither"),
        ([str(run), "--images", "0"], "images: "),
        ([str(run), "--model", "nin"], "got both"),
        (["--model", "nin", "--weights", "best"], "weights: "),
        (["--model", "resnet-21"], "20"),
        ([str(run), "--out", str(file / "below")], str(file)),
    ):
        shows(refuse(arguments, capsys), shown)
    assert not (run / "inspect.json").exists()


def test_runs_that_are_not_whole(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "model.safetensors").write_bytes(b"torn")
    assert "model.safetensors is damaged" in refuse([str(run)], capsys)
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "checkpoints")
    assert "readable checkpoint" in refuse([str(run)], capsys)
    (run / "config.json").write_text("{")
    assert "config.json" in refuse([str(run)], capsys)
    assert not (run / "inspect.json").exists()


def test_networks_without_learnable_or_any_activations() -> None:
    batches = [(torch.randn(8, 4), torch.arange(8) % 2)]
    for parts in ([nn.ReLU()], [nn.Tanh()], [nn.PReLU(4)], []):
        model = nn.Sequential(nn.Linear(4, 4), *parts, nn.Linear(4, 2))
        found = measure(model, batches, weights="initial", network="own")
        assert (found["residual"] is None) == (not parts)
        assert len(inspection_tables(found, 80)) == (3 if parts else 1)
        assert len(printed(found).splitlines()) >= 1 + len(model)
        assert to_png(draw_inspection(found, "own")).startswith(b"\x89PNG")
        json.dumps(found, allow_nan=False)


def test_a_module_called_twice_is_told_apart_in_the_table() -> None:
    act = mpelu.MPELU(4)
    model = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act, nn.Linear(4, 2))
    batches = [(torch.randn(8, 4), torch.arange(8) % 2)]
    text = printed(measure(model, batches, weights="initial", network="own"))
    starts = [line.split("  ")[0] for line in text.splitlines()]
    assert starts.count("1 #2") == 3  # in the table of layers and in both tables of activations


@pytest.mark.parametrize("width", [80, 60])
def test_tables_fit_the_terminal_and_cut_nothing(width: int) -> None:
    names = [f"stages.{index}.residual.{'a' * 30}.activation" for index in range(2)]
    model = nn.Sequential()
    for name in names:
        model.add_module(name.replace(".", "_"), nn.Sequential(nn.Linear(4, 4), mpelu.MPELU(4)))
    batches = [(torch.randn(8, 4), torch.arange(8) % 2)]
    found = measure(model, batches, weights="initial", network="own")
    text = printed(found, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    whole = printed(found, 500)
    for layer in found["layers"]:
        assert f"{layer['name']} " in whole


def test_python_functions_print_and_write_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    found = inspect_run(run, images=1)
    assert found.title == "nopre-resnet-11, final weights of small, 1 image of digits"
    assert (found.values["images"], found.files) == (1, ())
    initial = inspect_config(Config(**SMALL, test_limit=8), images=8)
    assert initial.values["which"] == "initial"
    with refusal("got 0", field="images"):
        inspect_config(Config(**SMALL), images=0)
    assert sorted(tmp_path.rglob("*")) == before
    assert capsys.readouterr() == ("", "")


def test_help_needs_no_torch() -> None:
    program = (
        "import sys; from mpelu.lab import cli\n"
        "try: cli.main(['inspect', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "--images" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
