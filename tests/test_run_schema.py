"""Run folders of older schemas are read as if they were new; newer ones are refused.

run_folders/version1-* were written by the first version: one finished, one interrupted after step
7 of 200, in the middle of an epoch. version3-interrupted is of schema 3: AdamW with two epochs of
warm-up and weight decay 0.05, interrupted after step 7 of 15.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mpelu.lab import cli
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.run import checkpoint, folder, snapshots
from mpelu.lab.training.launch import resume
from mpelu.lab.training.trained import load_network
from mpelu.lab.training.trainer import Trainer

FOLDERS = Path(__file__).parent / "run_folders"


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDERS / "version1-finished", tmp_path / "finished"))


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDERS / "version1-interrupted", tmp_path / "interrupted"))


def test_the_first_schema_has_no_version(finished: Path) -> None:
    values = json.loads((finished / "config.json").read_text())
    assert "schema" not in values
    assert "checkpointing" in values


def test_a_config_is_migrated(finished: Path, interrupted: Path) -> None:
    assert folder.read_config(finished) == Config(
        model="resnet-8",
        model_options={"width": 2},
        activation="mpelu",
        augment="pad-crop-flip",
        train_limit=96,
        test_limit=32,
        batch_size=20,
        iterations=6,
        log_every=2,
        threads=1,
    )
    assert folder.read_config(interrupted).test_every is None


def test_an_interrupted_run_resumes(interrupted: Path) -> None:
    before = (interrupted / "metrics.jsonl").read_bytes()
    outcome = resume(interrupted)
    assert (outcome.state, outcome.step) == ("finished", 200)
    assert (interrupted / "metrics.jsonl").read_bytes().startswith(before)
    run = folder.read(interrupted)
    assert run.problems == ()
    assert [row["step"] for row in run.steps] == [*range(2, 201, 2)]
    assert outcome.test_error is not None
    assert outcome.test_error < run.tests[0]["test_error"]


def test_resumed_again_from_a_checkpoint_of_the_new_format(interrupted: Path) -> None:
    contents = checkpoint.load(checkpoint.path_of(interrupted, 7))
    assert contents["format"] == 1
    assert resume(interrupted, changes={"epochs": 41}).step == 205
    assert checkpoint.load(checkpoint.path_of(interrupted, 205))["format"] == checkpoint.FORMAT
    assert resume(interrupted, changes={"epochs": 42}).step == 210
    assert json.loads((interrupted / "config.json").read_text())["schema"] == folder.SCHEMA


def test_a_run_of_schema_3_keeps_its_constant_warm_up_and_its_weight_decay(tmp_path: Path) -> None:
    run = Path(shutil.copytree(FOLDERS / "version3-interrupted", tmp_path / "run"))
    before = (run / "metrics.jsonl").read_bytes()
    assert folder.read_config(run).warmup_lr == 0.01
    assert (resume(run).state, resume(run).step) == ("finished", 15)
    assert (run / "metrics.jsonl").read_bytes().startswith(before)
    steps = folder.read(run).steps
    assert [row["lr"] for row in steps] == [0.01] * 10 + [0.001] * 5
    # So does AdamW's weight decay of alpha and beta, which new runs don't have.
    contents = checkpoint.load(checkpoint.path_of(run, 15))
    assert [group["weight_decay"] for group in contents["optimizer"]["param_groups"]] == [0.05] * 2
    # Written anew as schema 4, it can be read and extended again.
    assert folder.read_schema(run) == 4
    assert resume(run, changes={"epochs": 4}).step == 20


def test_what_a_run_of_schema_3_says_without_warm_up_is_what_a_new_one_says(tmp_path: Path) -> None:
    values = asdict(Config(model="resnet-8", epochs=2))
    old = folder.migrate_config({**values, "schema": 3, "warmup_lr": 0.01})
    assert old == values
    # A value that was given stays, because checkpoints tell of it.
    kept = folder.migrate_config({**values, "schema": 3, "warmup_lr": 0.5})
    assert kept["warmup_lr"] == 0.5
    # What a user writes has no schema.
    assert Config.from_values(folder.migrate_config({"warmup": 2})).warmup_lr is None
    assert Config.from_values(folder.migrate_config({"warmup": 2, "warmup_lr": 0.01})).warmup_lr


def test_a_checkpoint_tells_a_rising_warm_up_from_a_constant_one() -> None:
    names = {Config(warmup=2, warmup_lr=rate).fingerprint() for rate in (None, 0.01, 0.02)}
    assert len(names) == 3


def test_a_checkpoint_of_other_settings_is_still_told_apart(interrupted: Path) -> None:
    path = interrupted / "config.json"
    path.write_text(path.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    with pytest.raises(UserError, match="no usable checkpoint"):
        resume(interrupted)


def test_a_finished_run_is_extended(finished: Path) -> None:
    assert resume(finished).step == 6
    assert resume(finished, changes={"iterations": 9}).step == 9


def test_eval_inspect_and_report(
    finished: Path, interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(finished)]) == 0
    error = json.loads((finished / "status.json").read_text())["test_error"]
    assert f"test error {error:.2f} %" in capsys.readouterr().out
    assert cli.main(["eval", str(interrupted)]) == 0
    assert cli.main(["inspect", str(finished)]) == 0
    assert cli.main(["report", str(tmp_path), "-o", str(tmp_path / "page")]) == 0
    assert "2 runs" in capsys.readouterr().out
    page = (tmp_path / "page" / "index.html").read_text()
    assert "finished after 6 steps" in page
    assert "interrupted by SIGINT after step 7" in page


def test_weights_and_snapshots_are_read(finished: Path, interrupted: Path) -> None:
    trained = load_network(finished, device="cpu")
    weights = load_file(finished / "model.safetensors")
    for name, value in trained.model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert load_network(interrupted, "best").source.name == "best.pt"
    assert list(snapshots.find(interrupted)) == [0, 1]


@pytest.mark.parametrize("schema", [folder.SCHEMA + 1, 99])
@pytest.mark.parametrize(
    "use",
    [
        resume,
        load_network,
        folder.read,
        lambda run: cli.main(["eval", str(run)]),
        lambda run: cli.main(["train", "--resume", str(run)]),
    ],
)
def test_an_unknown_schema_is_refused_in_one_line(
    finished: Path,
    schema: object,
    use: Callable[[Path], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = finished / "config.json"
    path.write_text(json.dumps({"schema": schema, **json.loads(path.read_text())}))
    with pytest.raises((UserError, SystemExit)) as raised:
        use(finished)
    told = str(raised.value)
    if isinstance(raised.value, SystemExit):
        assert raised.value.code == 2
        told = capsys.readouterr().err.removesuffix("\n")
    assert told.endswith(
        f"finished: expected schema {folder.SCHEMA} or older, got {schema!r}; a newer mpelu wrote "
        "it, so upgrade mpelu to read it"
    )
    assert "\n" not in told


@pytest.mark.parametrize("schema", ["2", None, -5, True, 0])
def test_what_is_no_schema_is_refused(finished: Path, schema: object) -> None:
    path = finished / "config.json"
    path.write_text(json.dumps({"schema": schema, **json.loads(path.read_text())}))
    with pytest.raises(UserError, match="expected a schema from 1 to 4, got"):
        folder.read(finished)


def test_an_extension_killed_before_its_first_checkpoint_goes_on(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(self: Trainer) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_loop", kill)
        with pytest.raises(Killed):
            resume(interrupted, changes={"epochs": 41})
    assert resume(interrupted).step == 205
