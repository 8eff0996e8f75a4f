"""`mpelu train`, `eval` and `predict`: where runs go, their length, and what is printed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import data_files
import pytest
import torch
from command_helpers import SETTINGS, refused
from PIL import Image
from refusals import shows

from mpelu.lab import cli
from mpelu.lab.commands import train
from mpelu.lab.config import Config
from mpelu.lab.paper.settings import preset
from mpelu.lab.run import folder
from mpelu.lab.training import trained
from mpelu.lab.training.trainer import Outcome


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    assert cli.main(["train", *SETTINGS, "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "digits-resnet-20-seed0"),
        ({"activation": "mpelu", "init": "exact", "seed": 3}, "digits-resnet-20-mpelu-exact-seed3"),
        ({"lr": 0.2}, "digits-resnet-20-lr0.2-seed0"),
        ({"batch_size": 64}, "digits-resnet-20-batch-size64-seed0"),
        ({"iterations": 60}, "digits-resnet-20-iterations60-seed0"),
        ({"nesterov": True}, "digits-resnet-20-nesterov-seed0"),
        ({"augment": "crop-flip"}, "digits-resnet-20-augment-crop-flip-seed0"),
        ({"threads": 2, "device": "cpu", "data_dir": "d"}, "digits-resnet-20-seed0"),
        ({"data": "folder", "data_dir": "images/flowers/"}, "flowers-resnet-20-seed0"),
    ],
)
def test_the_default_directory_tells_the_setting(values: dict[str, Any], name: str) -> None:
    assert train.default_directory(Config(**values)) == Path("runs", name)


def test_runs_of_different_settings_have_different_directories() -> None:
    settings: list[dict[str, Any]] = [
        {"lr": 0.2, "epochs": 3},
        {"lr": 0.2, "epochs": 4},
        {"lr": 0.2, "iterations": 3},
        {"lr": 0.3, "epochs": 3},
        {"model_options": {"width": 8}},
        {"model_options": {"width": 16}},
        {"milestones": (3, 5)},
        {"milestones": (3, 6)},
        {"lr": 0.12345678},
        {"lr": 0.12345679},
    ]
    names = [train.default_directory(Config(**values)).name for values in settings]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"digits-resnet-20-[0-9a-f]{8}-seed0", name) for name in names[:8])
    again = train.default_directory(Config(seed=1, **settings[0])).name
    assert again == names[0].replace("seed0", "seed1")


def test_a_second_run_with_another_learning_rate_needs_no_other_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for lr in ("0.1", "0.2"):
        assert cli.main(["train", *SETTINGS, "--quiet", "--lr", lr]) == 0
    first, second = sorted(Path("runs").iterdir())
    assert first != second
    assert capsys.readouterr() == ("", "")
    line = refused(["train", *SETTINGS, "--lr", "0.1"], capsys)
    assert re.fullmatch(
        r"(\S+): a run is already here; continue it with --resume \1, or choose another "
        r"directory with --out",
        line,
    )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configs of runs that `mpelu train` would have started."""
    configs: list[Config] = []

    def fake(config: Config, out: Path, **how: object) -> Outcome:
        configs.append(config)
        return Outcome(
            state="finished", message="", step=1, test_error=0, best_error=0, exit_code=0
        )

    monkeypatch.setattr("mpelu.lab.training.launch.train", fake)
    return configs


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # The preset's own unit: another length, the same milestones.
        ("resnet-cifar --epochs 100", {"epochs": 100, "milestones": (80, 121)}),
        ("nin-cifar10 --iterations 60", {"iterations": 60, "milestones": (100_000,)}),
        # The other unit: the same fractions of the run.
        ("resnet-cifar --iterations 60", {"iterations": 60, "milestones": (24, 36)}),
        ("nin-cifar10 --epochs 12", {"epochs": 12, "milestones": (10,)}),
        ("plain-imagenet --epochs 15", {"epochs": 15, "milestones": (2, 12), "test_every": None}),
        ("resnet-cifar --iterations 1", {"iterations": 1, "milestones": (1,)}),
        # What is given is taken as it is.
        ("resnet-cifar --iterations 60 --milestones 7", {"iterations": 60, "milestones": (7,)}),
        (
            "plain-imagenet --epochs 15 --test-every 5",
            {"epochs": 15, "milestones": (2, 12), "test_every": 5},
        ),
    ],
)
def test_a_preset_takes_another_length(
    arguments: str, expected: dict[str, Any], started: list[Config]
) -> None:
    assert cli.main(["train", "--quiet", "--preset", *arguments.split()]) == 0
    (config,) = started
    assert (config.epochs is None) != (config.iterations is None)
    name = arguments.split()[0]
    changed = {"epochs": None, "iterations": None, **preset(name), **expected}
    changed[f"{'iteration' if 'epochs' in expected else 'epoch'}s"] = None
    assert config == Config.from_values(changed)


def test_warm_up_keeps_its_fraction_too(tmp_path: Path, started: list[Config]) -> None:
    path = tmp_path / "config.json"
    path.write_text(Config(epochs=10, warmup=2, milestones=(5, 8), test_every=3).to_json())
    cli.main(["train", "--quiet", "--config", str(path), "--iterations", "1000"])
    assert started == [Config(iterations=1000, warmup=200, milestones=(500, 800))]


def test_the_settings_show_the_scaled_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--preset resnet-cifar --data digits --model resnet-8 --train-limit 32"
    arguments += f" --test-limit 16 --threads 1 --iterations 10 --out {tmp_path / 'run'}"
    assert cli.main(["train", *arguments.split()]) == 0
    out = capsys.readouterr().out
    assert f"\nwriting to {tmp_path / 'run'}\n" in out
    assert "10 steps" in out
    assert "milestones 4 and 6" in out


def test_resume_gets_only_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, object]] = []

    def fake(run: Path, *, changes: object, **how: object) -> Outcome:
        calls.append((run, changes))
        return Outcome(
            state="interrupted", message="", step=1, test_error=0, best_error=0, exit_code=130
        )

    monkeypatch.setattr("mpelu.lab.training.launch.resume", fake)
    command = ["train", "--resume", "run", "--quiet"]
    assert cli.main([*command, "--epochs", "10", "--data-dir", "d"]) == 130
    assert cli.main(command) == 130
    assert calls == [(Path("run"), {"epochs": 10, "data_dir": "d"}), (Path("run"), {})]


def test_a_finished_run_is_extended(run: Path, tmp_path: Path) -> None:
    longer = Path(shutil.copytree(run, tmp_path / "longer"))
    assert cli.main(["train", "--resume", str(longer), "--iterations", "2", "--quiet"]) == 0
    assert folder.read_config(longer).iterations == 2
    assert folder.read(longer).status["step"] == 2


# Trained networks


def test_eval_prints_the_test_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(run)]) == 0
    error = folder.read(run).status["test_error"]
    out, err = capsys.readouterr()
    assert re.fullmatch(
        rf"{re.escape(str(run))}: test error {error:.2f} %, loss \d+\.\d{{4}}, "
        r"16 images of digits\n",
        out,
    )
    assert err == ""


def test_eval_counts_one_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    cli.main(["train", *SETTINGS, "--test-limit", "1", "--out", out, "--quiet"])
    cli.main(["eval", out, "--weights", "best"])
    assert capsys.readouterr().out.endswith(", 1 image of digits\n")


def test_predict_prints_the_likeliest_classes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "digit.png"
    pixels = torch.arange(64, dtype=torch.uint8).reshape(8, 8) * 4
    Image.fromarray(pixels.numpy()).save(path)
    assert cli.main(["predict", str(run), str(path), "--top", "2"]) == 0
    network = trained.load_network(run, device="cpu")
    with torch.no_grad():
        shares = network.model(network.preprocess(pixels[None, None])).softmax(1)[0]
    best = shares.argsort(descending=True)[:2]
    assert capsys.readouterr().out.splitlines() == [
        str(path),
        *(f"  {100 * shares[each]:5.1f} %  {network.classes[each]}" for each in best),
    ]


def test_what_is_no_image_and_no_weights_is_told_in_words(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "README.md"
    text.write_text("# Not an image\n")
    said = refused(["predict", str(run), str(text)], capsys)
    shows(said, text)
    said = refused(["predict", str(run), str(tmp_path)], capsys)
    shows(said, tmp_path, "a directory")
    damaged = Path(shutil.copytree(run, tmp_path / "damaged"))
    weights = damaged / "model.safetensors"
    weights.write_bytes(bytes([8, 0, 0, 0, 0, 0, 0, 0]) + b"scrambled")
    shows(refused(["eval", str(damaged)], capsys), "model.safetensors is damaged")
    assert cli.main(["verify", str(damaged)]) == 1
    assert "  model.safetensors is damaged" in capsys.readouterr().out


def test_eval_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published = data_files.cifar("cifar10")
    data_files.publish(monkeypatch, "cifar10", published)
    there, empty, run = tmp_path / "there", tmp_path / "empty", str(tmp_path / "run")
    data_files.unpack(there, published)
    empty.mkdir()
    settings = ["--data", "cifar10", "--train-limit", "8", "--test-limit", "4", "--batch-size", "4"]
    directory = ["--data-dir", str(there), "--out", run, "--quiet"]
    assert cli.main(["train", *SETTINGS, *settings, *directory]) == 0
    assert cli.main(["eval", run]) == 0
    capsys.readouterr()
    line = refused(["eval", run, "--data-dir", str(empty)], capsys)
    shows(line, "--data-dir: ", empty)
    assert list(empty.iterdir()) == []


def test_a_run_in_progress_is_evaluated_with_a_warning(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    going = Path(shutil.copytree(run, tmp_path / "going"))
    (going / folder.WEIGHTS).unlink()
    assert cli.main(["eval", str(going)]) == 0
    newest = going / folder.CHECKPOINTS / "step-00000001.pt"
    err = capsys.readouterr().err
    assert err == f"warning: {going} has no final weights yet; using {newest}\n"
