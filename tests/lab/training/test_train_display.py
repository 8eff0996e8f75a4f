"""What a run shows."""

from __future__ import annotations

import io
import logging
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import rich.console
from train_helpers import small, status

from mpelu.lab.training.display import (
    Bar,
    Display,
    Lines,
    Progress,
    SteadyStream,
    for_terminal,
)
from mpelu.lab.training.launch import train

ROW = {
    "kind": "test", "step": 391, "epoch": 1, "train_loss": 1.5, "train_error": 50.0,
    "test_loss": 1.25, "test_error": 45.125, "lr": 0.1,
}  # fmt: skip


def progress(step: int, **values: Any) -> Progress:
    return Progress(
        **{
            "step": step, "steps": 100, "epoch": 1, "epochs": 10, "loss": 2.0, "error": 30.0,
            "images_per_second": 1234.0, "is_logged": step % 5 == 0, **values,
        }
    )  # fmt: skip


def test_a_line_for_each_entry_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = Lines()
    lines.start(0, 100)
    for step in range(1, 21):
        now[0] += 1.0
        lines.step(progress(step))
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in printed] == ["5/100", "10/100", "15/100", "20/100"]
    assert printed[1] == (
        "step 10/100  epoch 1  loss 2.0000  error 30.00 %  1,234 images/s  0:01:30 left"
    )


def test_time_left_counts_from_where_a_run_was_resumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = Lines()
    lines.start(80, 100)
    now[0] = 10.0
    lines.step(progress(90))
    assert capsys.readouterr().out.endswith("0:00:10 left\n")


def test_each_test_has_a_line_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().test({**ROW, "epoch": 200})
    printed = capsys.readouterr().out
    assert printed == (
        "epoch 200: train loss 1.5000, error 50.00 %; test loss 1.2500, error 45.12 %\n"
    )
    assert len(printed) <= 80


def test_a_run_in_iterations_counts_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small(epochs=None, iterations=8, test_every=3), tmp_path / "run", display=Lines())
    said = capsys.readouterr().out
    assert "8 steps (1.6 epochs)" in said
    tests = [line.partition(":")[0] for line in said.splitlines() if ": train loss" in line]
    assert tests == ["step 3", "step 6", "step 8"]
    train(small(epochs=1), tmp_path / "other", display=Lines())
    said = capsys.readouterr().out
    assert "5 steps in 1 epoch" in said
    assert "\nepoch 1: train loss" in said


def test_settings_are_folded_to_the_terminal_and_name_the_device_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    config = small(epochs=1, activation=None, convert="gelu", device="cpu")
    train(config, tmp_path / "run", display=Lines())
    settings = capsys.readouterr().out.partition("writing to")[0].splitlines()
    assert max(map(len, settings)) <= 80
    assert [line[16:] for line in settings if line.startswith(" ")]
    assert " ".join(" ".join(settings).split()).count("cpu") == 1
    assert "in place of the network's own gelu" in " ".join(" ".join(settings).split())


def terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    output = io.StringIO()
    console = rich.console.Console

    def make(**options: Any) -> rich.console.Console:
        return console(**{**options, "file": output}, force_terminal=True, width=width)

    monkeypatch.setattr(rich.console, "Console", make)
    return output


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output = terminal(monkeypatch, 140)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = for_terminal()
    assert isinstance(shown, Bar)
    shown.start(100, 400)
    shown.step(progress(200, steps=400, epoch=3, images_per_second=5000.0))
    shown.test(ROW)
    shown.close()
    for expected in ("epoch 3/10", " 50%", "loss 2.0000", "error 30.0 %", "5,000/s"):
        assert expected in output.getvalue(), expected
    assert "test loss 1.2500" in output.getvalue()


@pytest.mark.parametrize("width", [42, 72, 80])
def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Nothing is cut off."""
    output = terminal(monkeypatch, width)
    bar = Bar()
    bar.start(0, 64124)
    bar.step(progress(63000, steps=64124, epoch=164, epochs=200, images_per_second=12345.0))
    bar.close()
    assert "loss 2.0000 error 30.0 %" in output.getvalue()
    assert ("epoch 164/200" in output.getvalue()) == (width >= 72)
    assert ("12,345/s" in output.getvalue()) == (width >= 72)
    assert "…" not in output.getvalue()


def test_no_bar_where_the_output_goes_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small(epochs=1), tmp_path / "run", display=for_terminal())
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert output.splitlines()[-1].startswith("finished after 5 steps: test error ")


def test_python_logs_and_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "mpelu.lab"):
        train(small(epochs=1), tmp_path / "run")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("data: digits, 96 training images")
    assert messages[-1].startswith("finished after 5 steps")


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Closed())
    assert train(small(epochs=1), tmp_path / "run", display=Lines()).state == "finished"


def test_without_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert train(small(epochs=1), tmp_path / "run", display=for_terminal()).state == "finished"


TRAIN = [
    "--model", "resnet-8", "--epochs", "2", "--train-limit", "64", "--test-limit", "16",
    "--batch-size", "16", "--log-every", "1", "--threads", "1",
]  # fmt: skip
PROGRAM = "import sys; from mpelu.lab.cli import main; sys.exit(main())"


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *words]


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
def test_a_terminal_that_is_closed_does_not_end_a_run(tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "40", "PYTHONIOENCODING": "ascii"}
    process = subprocess.Popen(
        [*command("train", *TRAIN), "--out", str(tmp_path / "é☃")],
        stdout=theirs, stderr=subprocess.PIPE, stdin=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"loss" not in shown:
        shown += os.read(ours, 100)
    os.close(ours)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert status(tmp_path / "é☃")["state"] == "finished"


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX")
@pytest.mark.parametrize("streams", [">&- 2>&- <&-", "2>&1 | head -1 >/dev/null"])
def test_streams_that_are_closed_do_not_end_a_run(tmp_path: Path, streams: str) -> None:
    words = shlex.join([*command("train", *TRAIN), "--out", str(tmp_path / "run")])
    script = f"set -o pipefail; {words} {streams}"
    done = subprocess.run(["bash", "-c", script], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert status(tmp_path / "run")["state"] == "finished"
    script = f"set -o pipefail; {shlex.join(command('trian'))} {streams}"
    assert subprocess.run(["bash", "-c", script], capture_output=True).returncode == 2


def test_characters_that_can_not_be_encoded_become_question_marks() -> None:
    buffer = io.BytesIO()
    stream = SteadyStream(io.TextIOWrapper(buffer, encoding="latin-1", write_through=True))
    print("error 3 % → é ☃", file=stream, flush=True)
    assert buffer.getvalue() == "error 3 % ? é ?\n".encode("latin-1")


def test_the_base_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Display()
    shown.note("a")
    shown.warning("b")
    shown.test(ROW)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
