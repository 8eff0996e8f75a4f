"""Checkpoints that are damaged, or meant to harm."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from refusals import refusal
from safetensors.torch import load_file
from train_helpers import equal, final, small, status

from mpelu.lab.run import checkpoint
from mpelu.lab.run.folder import CHECKPOINTS
from mpelu.lab.training.display import Lines
from mpelu.lab.training.launch import resume, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(small(), run)
    return run


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """The run as if it had been killed just before its end."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "model.safetensors").unlink()
    text = (run / "status.json").read_text()
    (run / "status.json").write_text(text.replace('"finished"', '"running"'))
    return run


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / CHECKPOINTS).mkdir(parents=True)
    for step in (1, 2, 3, 4, 5):
        contents = {"format": 1, "model": {"weight": torch.full((2,), float(step))}}
        checkpoint.save(run, step, contents, best=step in (1, 2))
    assert checkpoint.steps_of(run) == [4, 5]
    names = {"step-00000004", "step-00000005", "best"}
    assert {path.stem for path in (run / CHECKPOINTS).glob("*.pt")} == names
    assert {path.stem for path in (run / CHECKPOINTS).glob("*.safetensors")} == names
    assert checkpoint.load(run / CHECKPOINTS / "best.pt")["model"]["weight"][0] == 2
    weights = load_file(checkpoint.path_of(run, 5).with_suffix(".safetensors"))
    assert weights["weight"].tolist() == [5.0, 5.0]


def test_what_a_checkpoint_holds(whole: Path) -> None:
    contents = torch.load(checkpoint.path_of(whole, 10), weights_only=True)
    assert (contents["epoch"], contents["position"], contents["state"]["step"]) == (2, 0, 10)
    assert contents["logs"]["metrics.jsonl"]["length"] < (whole / "metrics.jsonl").stat().st_size
    weights = load_file(checkpoint.path_of(whole, 10).with_suffix(".safetensors"))
    assert equal(dict(contents["model"]), weights)


def test_any_changed_byte_is_found(whole: Path, tmp_path: Path) -> None:
    data = checkpoint.path_of(whole, 15).read_bytes()
    before = checkpoint.load(checkpoint.path_of(whole, 15))
    chance = random.Random(0)
    path = tmp_path / "changed.pt"
    found = 0
    for _ in range(150):
        place = chance.randrange(len(data))
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            after = checkpoint.load(path)
        except checkpoint.CheckpointError:
            found += 1
        else:  # a byte that holds nothing, such as padding
            assert equal(after, before), place
    assert found > 75


def test_any_shorter_file_is_found(whole: Path, tmp_path: Path) -> None:
    data = checkpoint.path_of(whole, 15).read_bytes()
    path = tmp_path / "short.pt"
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.load(path)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    whole: Path, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(checkpoint.path_of(stopped, 15))
    resume(stopped, display=Lines())
    captured = capsys.readouterr()
    assert "step-00000015.pt can't be used: the checksum of" in captured.err
    assert "resuming after step 10" in captured.out
    assert checkpoint.path_of(stopped, 15).with_name("step-00000015.pt.damaged").exists()
    assert equal(final(stopped), final(whole))


def test_no_checkpoint_that_can_be_used(stopped: Path) -> None:
    for path in (stopped / CHECKPOINTS).glob("*.pt"):
        damage(path)
    before = sorted(stopped.rglob("*"))
    with refusal("no usable checkpoint"):
        resume(stopped)
    assert sorted(stopped.rglob("*")) == before


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("form", ["pickle", "torch", "archive"])
def test_a_malicious_checkpoint_is_refused_and_its_payload_does_not_run(
    whole: Path, stopped: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, harm = checkpoint.path_of(stopped, 15), tmp_path / "harm"
    contents = {**checkpoint.load(path), "state": Harm(harm)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(contents))
    elif form == "torch":
        torch.save(contents, path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(contents, protocol=2))
            archive.writestr("archive/version", "3\n")
    resume(stopped, display=Lines())
    assert "step-00000015.pt can't be used" in capsys.readouterr().err
    assert not harm.exists()
    assert equal(final(stopped), final(whole))


def test_a_checkpoint_of_another_run_is_not_used(
    tmp_path: Path, whole: Path, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small(lr=0.2), tmp_path / "other")
    shutil.copy(checkpoint.path_of(tmp_path / "other", 15), checkpoint.path_of(stopped, 15))
    resume(stopped, display=Lines())
    assert "it belongs to a run with other settings" in capsys.readouterr().err
    assert equal(final(stopped), final(whole))


def test_a_log_that_lost_lines_is_told(
    whole: Path, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (stopped / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))
    resume(stopped, display=Lines())
    assert "metrics.jsonl is shorter than it was then" in capsys.readouterr().err
    assert equal(final(stopped), final(whole))


def test_killed_between_the_last_checkpoint_and_the_end(whole: Path, stopped: Path) -> None:
    resume(stopped)
    assert status(stopped)["state"] == "finished"
    assert equal(final(stopped), final(whole))


def test_weights_of_a_save_that_was_cut_off_go_with_the_next(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    alone = checkpoint.path_of(tmp_path, 2).with_suffix(".safetensors")
    alone.write_bytes(b"")
    kept = alone.with_name("step-00000001.pt.damaged")
    kept.write_bytes(b"")
    checkpoint.save(tmp_path, 3, {"model": {}}, best=False)
    assert not alone.exists()
    assert kept.exists()
    assert checkpoint.steps_of(tmp_path) == [3]
