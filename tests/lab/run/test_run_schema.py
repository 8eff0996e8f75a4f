"""Run folders of schema 3 are read as if they were new; older and newer ones are refused.

run_folders/version3-interrupted is of schema 3: AdamW with two epochs of warm-up and weight decay
0.05, interrupted after step 7 of 15.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from refusals import refusal, shows

from mpelu.lab import cli, files
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.training.display import Display
from mpelu.lab.training.launch import resume
from mpelu.lab.training.trained import load_network

FOLDERS = Path(__file__).parents[2] / "run_folders"


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDERS / "version3-interrupted", tmp_path / "interrupted"))


def test_a_run_of_schema_3_keeps_its_constant_warm_up_and_its_weight_decay(
    interrupted: Path,
) -> None:
    run = interrupted
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


def test_what_a_run_of_schema_3_says_without_warm_up_is_what_a_new_one_says() -> None:
    values = asdict(Config(model="resnet-8", epochs=2))
    old = folder.migrate_config({**values, "schema": 3, "warmup_lr": 0.01})
    assert old == values
    # A value that was given stays, because checkpoints tell of it.
    kept = folder.migrate_config({**values, "schema": 3, "warmup_lr": 0.5})
    assert kept["warmup_lr"] == 0.5


def test_a_checkpoint_tells_a_rising_warm_up_from_a_constant_one() -> None:
    names = {Config(warmup=2, warmup_lr=rate).fingerprint() for rate in (None, 0.01, 0.02)}
    assert len(names) == 3


def test_a_checkpoint_of_other_settings_is_still_told_apart(interrupted: Path) -> None:
    path = interrupted / "config.json"
    files.write_json(path, {**files.read_json(path), "lr": 0.2})
    with refusal(interrupted, "checkpoint"):
        resume(interrupted)


def test_eval_inspect_and_report(
    interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume(interrupted)
    assert cli.main(["eval", str(interrupted)]) == 0
    error = json.loads((interrupted / "status.json").read_text())["test_error"]
    assert f"test error {error:.2f} %" in capsys.readouterr().out
    assert cli.main(["inspect", str(interrupted)]) == 0
    assert cli.main(["report", str(tmp_path), "-o", str(tmp_path / "page")]) == 0
    assert "1 run" in capsys.readouterr().out
    assert "finished after 15 steps" in (tmp_path / "page" / "index.html").read_text()


def test_weights_and_snapshots_are_read(interrupted: Path) -> None:
    assert load_network(interrupted, "best").source.name == "best.pt"
    assert list(folder.find_snapshots(interrupted)) == [0, 1]


def set_schema(run: Path, schema: object) -> None:
    path = run / "config.json"
    files.write_json(path, {**files.read_json(path), "schema": schema})


def test_a_run_of_the_first_schema_which_had_no_number_is_refused(interrupted: Path) -> None:
    path = interrupted / "config.json"
    values = files.read_json(path)
    del values["schema"]
    files.write_json(path, values)
    with refusal("got 1", "6a35e59"):
        folder.read(interrupted)


@pytest.mark.parametrize("schema", [5, 2, 1])
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
def test_a_newer_or_older_schema_is_refused_in_one_line(
    interrupted: Path,
    schema: object,
    use: Callable[[Path], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_schema(interrupted, schema)
    with pytest.raises((UserError, SystemExit)) as raised:
        use(interrupted)
    told = str(raised.value)
    if isinstance(raised.value, SystemExit):
        assert raised.value.code == 2
        told = capsys.readouterr().err.removesuffix("\n")
    advice = "upgrade mpelu" if schema == 5 else "commit 6a35e59"
    shows(told, interrupted, f"got {schema}", advice)


@pytest.mark.parametrize("schema", ["3", [], -5, True, 0])
def test_what_is_no_schema_is_refused(interrupted: Path, schema: object) -> None:
    set_schema(interrupted, schema)
    with refusal(repr(schema)):
        folder.read(interrupted)


def test_an_extension_killed_before_its_first_checkpoint_goes_on(interrupted: Path) -> None:
    class Killed(BaseException):
        pass

    class Killing(Display):
        def start(self, step: int, steps: int) -> None:
            raise Killed

    with pytest.raises(Killed):
        resume(interrupted, changes={"epochs": 4}, display=Killing())
    assert resume(interrupted).step == 20
