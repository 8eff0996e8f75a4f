"""Damage in a run folder: found by `mpelu verify`, and by every command that reads the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_helpers import refused
from PIL import Image
from refusals import refusal
from torture.bit_flips import flip
from train_helpers import small, status

from mpelu.lab import cli, files
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.run.verification import verify
from mpelu.lab.training.launch import resume, train
from mpelu.lab.training.trained import load_network

OLD = Path(__file__).parents[2] / "run_folders"
FILES = (
    "config.json", "environment.json", "data.json", "status.json", "inspect.json", "inspect.png",
    "preprocess.safetensors", "metrics.jsonl", "speed.jsonl", "metrics.csv",
    "model.safetensors", "activations/epoch-0001.safetensors", "checkpoints/best.pt",
    "checkpoints/best.safetensors", "checkpoints/step-00000015.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    train(small(), run)
    assert cli.main(["inspect", str(run), "--images", "8", "--quiet"]) == 0
    return run


@pytest.fixture
def run(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "run"))


def flip_in_the_middle(path: Path) -> None:
    flip(path, 8 * (path.stat().st_size // 2) + 1)


def test_a_run_is_intact(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(run)]) == 0
    count = sum(path.is_file() for path in run.rglob("*")) - 1  # the lock is empty
    assert capsys.readouterr().out == f"{run}: intact ({count} files)\n"


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_in_every_kind_of_file(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_in_the_middle(run / name)
    assert cli.main(["verify", str(run)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{run}: damaged"
    assert [line for line in lines if line.startswith(f"  {name}")]
    assert lines[-1].startswith("  usable weights: ")


@pytest.mark.parametrize(
    "name",
    ["environment.json", "data.json", "status.json", "metrics.jsonl", "speed.jsonl",
     "preprocess.safetensors", "model.safetensors", "checkpoints/step-00000015.safetensors"],
)  # fmt: skip
def test_a_missing_file_is_found(run: Path, name: str) -> None:
    (run / name).unlink()
    assert verify(run).damage == (f"{name} is missing",)


def test_what_can_still_be_used(run: Path) -> None:
    assert verify(run).usable == ("final", "best", "step 10", "step 15")
    flip_in_the_middle(run / "model.safetensors")
    flip_in_the_middle(checkpoint.path_of(run, 15))
    found = verify(run)
    assert found.usable == ("best", "step 10")
    assert [*found.lines()][-1] == "  usable weights: best and step 10"


def test_a_tree_of_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, tmp_path / "other" / "run")
    old = Path(shutil.copytree(OLD / "version3-interrupted", tmp_path / "old"))
    older = Path(shutil.copytree(old, tmp_path / "older"))
    (older / "config.json").write_text('{"lr": 0.1}')
    flip_in_the_middle(run / "data.json")
    assert cli.main(["verify", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"{tmp_path / 'other' / 'run'}: intact" in out
    assert f"{old}: intact" in out
    assert f"{older}: damaged\n  config.json: expected a schema from 3 to 4, got 1; mpelu at" in out
    assert "data.json is damaged: its checksum is wrong" in out
    assert out.endswith("2 of 4 runs damaged\n")
    (tmp_path / "empty").mkdir()
    assert "empty: expected a run folder" in refused(["verify", str(tmp_path / "empty")], capsys)


def test_damaged_weights_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_in_the_middle(run / "model.safetensors")
    line = refused(["eval", str(run)], capsys)
    assert line.startswith(f"{run}: model.safetensors is damaged: its checksum is wrong")
    assert cli.main(["eval", str(run), "--weights", "best"]) == 0


def test_predict_names_no_wrong_class(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((run / "data.json").read_text())
    data["classes"].reverse()
    (run / "data.json").write_text(json.dumps(data, indent=1) + "\n")
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    line = refused(["predict", str(run), str(tmp_path / "image.png")], capsys)
    assert line == f"{run}: data.json is damaged: its checksum is wrong"


def test_a_resume_keeps_no_garbage_in_the_log(run: Path) -> None:
    log = run / "metrics.jsonl"
    data = bytearray(log.read_bytes())
    data[40:70] = b"x" * 30
    log.write_bytes(data)
    before = log.read_bytes()
    with refusal("no usable checkpoint"):
        resume(run, changes={"epochs": 4})
    assert log.read_bytes() == before
    assert load_network(run, "last").source.name == "step-00000015.pt"


def test_a_report_marks_a_damaged_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run / "metrics.jsonl", 8 * (run / "metrics.jsonl").read_text().index("0.") + 17)
    assert cli.main(["report", str(run), "-o", str(run.parent / "page.html")]) == 0
    assert "metrics.jsonl" in capsys.readouterr().err


def test_rows_after_the_last_status_are_not_read(run: Path) -> None:
    """They were being written when the run was killed, and nothing vouches for them."""
    values = {**status(run), "state": "running"}
    del values["sha256"]
    files.write_json(run / "status.json", values)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "test", "step": 99}\n')
    assert [row["step"] for row in folder.read(run).tests] == [5, 10, 15]
    assert verify(run).damage == ()


def test_a_removed_checksum_is_damage(run: Path) -> None:
    values = files.read_json(run / "environment.json")
    (run / "environment.json").write_text(json.dumps(values))
    assert verify(run).damage == ("environment.json is damaged: its checksum is missing",)


@pytest.mark.parametrize(
    "leave",
    [
        lambda run: (run / "checkpoints" / "best.pt.tmp").write_bytes(b"half"),
        lambda run: (run / "activations" / "epoch-0003.safetensors.tmp").write_bytes(b"half"),
        lambda run: (run / "status.json.tmp").write_bytes(b"half"),
        lambda run: shutil.copytree(run, run.with_name(f".{run.name}.4000000")),
        lambda run: shutil.copy(
            checkpoint.path_of(run, 15), run / "checkpoints" / "step-00000003.pt"
        ),
        lambda run: (run / "lock.json").write_text("{}"),
    ],
    ids=["best", "snapshot", "status", "hidden folder", "third checkpoint", "holder of the lock"],
)
def test_what_killed_processes_left_is_swept(run: Path, leave: Callable[[Path], object]) -> None:
    before = sorted(run.parent.rglob("*"))
    leave(run)
    assert sorted(run.parent.rglob("*")) != before
    assert resume(run).state == "finished"
    assert sorted(run.parent.rglob("*")) == before


def test_errors_about_a_run_s_config_name_the_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = files.read_json(run / "config.json")
    files.write_json(run / "config.json", {**config, "model_options": {"depth": "deep"}})
    assert refused(["eval", str(run)], capsys).startswith(f"{run}: model_options: resnet-8: ")
    files.write_json(run / "status.json", {**status(run), "state": "interrupted"})
    with refusal(run, "model_options", "resnet-8"):
        resume(run)


def test_an_empty_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["train", "--out", ""], ["reproduce", "figure1", "--out", ""]):
        assert refused(words, capsys) == "--out: expected a path, got ''"
    assert list(tmp_path.iterdir()) == []


def test_an_edited_copy_of_a_config_starts_a_run_and_an_edited_run_is_damaged(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = (run / "config.json").read_text().replace('"epochs": 3', '"epochs": 1')
    assert '"sha256": "' in edited
    without = json.loads(edited)
    without.pop("sha256")
    for number, text in enumerate((edited, json.dumps(without))):
        (tmp_path / "mine.json").write_text(text)
        out = tmp_path / f"new{number}"
        words = ["train", "--config", str(tmp_path / "mine.json"), "--out", str(out), "--quiet"]
        assert cli.main(words) == 0
        assert folder.read_config(out).epochs == 1
        assert verify(out).damage == ()
    (run / "config.json").write_text(edited)
    said = f"{run}: config.json is damaged: its checksum is wrong"
    assert refused(["train", "--resume", str(run), "--epochs", "4"], capsys) == said
    assert cli.main(["verify", str(run)]) == 1
