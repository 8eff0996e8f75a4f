"""A run that is stopped and resumed ends as one that never was."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn

import pytest
from refusals import refusal
from train_helpers import AtStep, Stop, begin, equal, final, rows, small, status, stopped_after

from mpelu.lab import files
from mpelu.lab.run import checkpoint, writer
from mpelu.lab.run.folder import read_rows
from mpelu.lab.training.display import Lines
from mpelu.lab.training.launch import resume, train
from mpelu.lab.training.trainer import Trainer

VARIANTS: dict[str, dict[str, Any]] = {
    "batch norm": {},
    "stochastic depth": {"model": "stochastic-resnet-8", "activation": "rrelu"},
    "accumulated": {"accumulate": 3, "nesterov": True},
    "by iterations": {"epochs": None, "iterations": 13, "test_every": 6, "milestones": (5,)},
    "validation": {"validation": 0.2, "ema": 0.5},
    "half precision": {"precision": "bf16", "channels_last": True},
    "loss scaling": {"precision": "fp16"},
    "lsuv": {"init": "lsuv", "gradient_checkpointing": True},
    "dropout": {
        "model": "plain-15",
        "model_options": {"width": 2, "fc_width": 8, "dropout": 0.3},
        "image_size": 20,
        "crop": 19,
        "augment": "crop-flip",
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_in_the_middle_of_an_epoch(tmp_path: Path, variant: str) -> None:
    config = small(checkpoint_every=3, **VARIANTS[variant])
    train(config, tmp_path / "whole")
    stopped_after(8, train, config, tmp_path / "broken")
    assert checkpoint.steps_of(tmp_path / "broken")[-1] == 6
    stopped_after(12, resume, tmp_path / "broken")
    outcome = resume(tmp_path / "broken")
    assert outcome.state == "finished"
    assert equal(final(tmp_path / "broken"), final(tmp_path / "whole"))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(small(seed=seed, epochs=1), tmp_path / name)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]


def test_stopped_before_the_first_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small()
    train(config, tmp_path / "whole")
    stopped_after(4, train, config, tmp_path / "broken")
    assert status(tmp_path / "broken")["state"] == "failed"
    resume(tmp_path / "broken", display=Lines())
    assert "starting again: there is no checkpoint yet" in capsys.readouterr().out
    assert equal(final(tmp_path / "broken"), final(tmp_path / "whole"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(small(checkpoint_every=3), run)
    return final(run)


@pytest.mark.parametrize("stage", ["open", "write", "fsync", "replace", "folder"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_save_interrupted_at_each_stage_leaves_a_run_that_goes_on(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, suffix: str
) -> None:
    config = small(checkpoint_every=3)
    path = checkpoint.path_of(tmp_path / "broken", 6).with_suffix(suffix)
    with monkeypatch.context() as patch:
        break_write(patch, path, stage, Stop())
        with pytest.raises(Stop):
            train(config, tmp_path / "broken")
    found = checkpoint.steps_of(tmp_path / "broken")
    assert found == ([3, 5, 6] if (suffix, stage) == (".pt", "folder") else [3, 5])
    for step in found:
        checkpoint.load(checkpoint.path_of(tmp_path / "broken", step))
    resume(tmp_path / "broken")
    assert equal(final(tmp_path / "broken"), whole)


def break_write(patch: pytest.MonkeyPatch, target: Path, stage: str, error: Exception) -> None:
    """Writing the target file comes to its end at a stage, with part of the data written."""
    temporary = str(target) + files.TEMPORARY
    real_open = open
    at_work: list[bool] = []

    class Broken:
        def __init__(self, file: BinaryIO) -> None:
            self.file = file

        def __enter__(self) -> Broken:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            if stage == "write":
                self.file.write(data[: len(data) // 2])
                raise error
            self.file.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    def opening(path: Path, mode: Literal["wb"]) -> BinaryIO | Broken:
        at_work[:] = [str(path) == temporary]
        if at_work == [True] and stage == "open":
            raise error
        file = real_open(path, mode)
        return Broken(file) if at_work == [True] else file

    def failing(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if at_work == [True] and stage == name:
                raise error
            real(*arguments)

        return call

    patch.setattr(files, "open", opening, raising=False)
    patch.setattr(os, "fsync", failing("fsync", os.fsync))
    patch.setattr(os, "replace", failing("replace", os.replace))
    patch.setattr(files, "sync_directory", failing("folder", files.sync_directory))


@pytest.mark.parametrize("stage", ["open", "write", "fsync"])
def test_a_full_disk_is_told_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        break_write(patch, checkpoint.path_of(run, 6), stage, full)
        with refusal("No space left on device", run):
            train(small(checkpoint_every=3), run)
    assert not list(run.rglob(f"*{files.TEMPORARY}"))
    assert status(run)["state"] == "failed"
    assert resume(run).state == "finished"


def test_a_full_disk_while_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: writer.Log, row: dict[str, Any]) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer.Log, "write", write)
    with refusal("No space left on device", tmp_path / "run"):
        train(small(), tmp_path / "run")


def test_a_run_folder_lost_on_the_way(tmp_path: Path) -> None:
    run = tmp_path / "run"
    losing = AtStep(7, lambda: run.rename(tmp_path / "elsewhere"))
    with refusal(run, "gone"):
        train(small(), run, display=losing)
    assert not run.exists()


def test_killed_at_random_moments(tmp_path: Path) -> None:
    config = small(epochs=8, checkpoint_every=2, log_every=1)
    train(config, tmp_path / "whole")
    run = tmp_path / "broken"
    chance = random.Random(0)
    kills = 0
    while kills < 3:
        before = newest(run)
        process = begin(run, config)
        while process.is_alive() and newest(run) <= before:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert newest(run) > 0
    assert resume(run).state == "finished"
    assert equal(final(run), final(tmp_path / "whole"))
    assert [row["step"] for row in rows(run) if row["kind"] == "step"] == [*range(1, 41)]


def newest(run: Path) -> int:
    return max(checkpoint.steps_of(run), default=0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_run_after_its_step(
    whole: dict[str, Any],
    tmp_path: Path,
    number: signal.Signals,
    code: int,
) -> None:
    run = tmp_path / "run"
    signalling = AtStep(6, lambda: os.kill(os.getpid(), number))
    outcome = train(small(checkpoint_every=3), run, display=signalling)
    assert (outcome.state, outcome.step, outcome.exit_code) == ("interrupted", 7, code)
    told = status(run)
    assert (told["state"], told["step"]) == ("interrupted", 7)
    assert number.name in told["message"]
    assert checkpoint.steps_of(run)[-1] == 7
    assert resume(run).state == "finished"
    assert equal(final(run), whole)


def signal_twice() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    process = begin(tmp_path / "run", small(), AtStep(6, signal_twice))
    process.join()
    assert process.exitcode == -signal.SIGTERM


def test_handlers_are_as_before(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train(small(epochs=1), tmp_path / "run")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_run_that_has_ended_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    first = train(small(epochs=1), run)
    monkeypatch.setattr(Trainer, "fit", None)
    assert resume(run, display=Lines()) == first
    assert "has already ended: finished after 5 steps" in capsys.readouterr().out


def test_another_config_is_refused_with_the_difference(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small(epochs=1), run)
    before = sorted(run.rglob("*"))
    with refusal("0.1", "0.2", field="lr"):
        resume(run, changes={"lr": 0.2, "seed": 0, "data_dir": "elsewhere"})
    assert sorted(run.rglob("*")) == before


def test_other_data_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped_after(8, train, small(), run)
    data = run / "data.json"
    files.write_json(data, {**files.read_json(data), "fingerprint": "0"})
    with refusal(run, "data"):
        resume(run)


@pytest.mark.parametrize("text", [b"\xff", b"{", b"[]", b'{"lr": 1e999}'])
def test_a_config_that_can_not_be_read(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with refusal(tmp_path):
        resume(tmp_path)


def test_folders_that_are_gone_are_made_again(whole: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped_after(8, train, small(checkpoint_every=3), run)
    for name in ("checkpoints", "activations"):
        shutil.rmtree(run / name)
    resume(run)
    assert equal(final(run), whole)


def test_other_threads_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    stopped_after(8, train, small(), run)
    path = run / "environment.json"
    files.write_json(path, {**files.read_json(path), "threads": 7})
    resume(run, display=Lines())
    assert capsys.readouterr().err == (
        "warning: results may not be bit-identical, because the environment changed: "
        "threads was 7, is 1\n"
    )


def test_no_run_folder(tmp_path: Path) -> None:
    with refusal(tmp_path, "config.json"):
        resume(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 2, "milestones": (1,)},
        {"epochs": None, "iterations": 10, "test_every": 5, "milestones": (7,)},
    ],
)
def test_an_extended_run_equals_one_that_was_longer_from_the_start(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    longer = {"epochs": 3} if values["epochs"] else {"iterations": 15}
    train(small(**values), tmp_path / "extended")
    train(small(**{**values, **longer}), tmp_path / "whole")
    outcome = resume(tmp_path / "extended", changes=longer)
    assert (outcome.state, outcome.step) == ("finished", 15)
    assert equal(final(tmp_path / "extended"), final(tmp_path / "whole"))
    (event,) = read_rows(tmp_path / "extended" / "history.jsonl")[0]
    assert (event["event"], event["step"], event["changes"]) == ("extended", 10, longer)


def test_an_extension_killed_at_its_start_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small(epochs=2), run)
    stopped_after(11, resume, run, changes={"epochs": 3})
    assert not (run / "model.safetensors").exists()
    assert resume(run).step == 15
    train(small(epochs=3), tmp_path / "whole")
    assert equal(final(run), final(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("changes", "field", "shown"),
    [
        ({"epochs": None}, "epochs", "None"),
        ({"epochs": 1}, "epochs", "the run has 2"),
        ({"iterations": 30}, "iterations", "--epochs"),
        ({"epochs": 3, "seed": 1}, "seed", "the run has 0"),
        ({"speed": 3}, "config", "'speed'"),
    ],
)
def test_changes_a_run_can_not_take(
    tmp_path: Path, changes: dict[str, Any], field: str, shown: str
) -> None:
    run = tmp_path / "run"
    train(small(epochs=2), run)
    with refusal(shown, field=field):
        resume(run, changes=changes)
    assert not (run / "history.jsonl").exists()
    assert resume(run).step == 10


def test_what_does_not_decide_the_result_may_change(tmp_path: Path) -> None:
    run, config = tmp_path / "run", small(checkpoint_every=3)
    train(config, tmp_path / "whole")
    stopped_after(8, train, config, run)
    assert resume(run, changes={"checkpoint_every": 7, "data_dir": "elsewhere"}).step == 15
    found, expected = final(run), final(tmp_path / "whole")
    assert b'"checkpoint_every": 7' in found.pop("config.json")
    expected.pop("config.json")
    assert equal(found, expected)
