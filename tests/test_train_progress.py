"""What a run shows."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console
from train_helpers import small

from mpelu.lab.training import progress
from mpelu.lab.training.launch import train

ROW = {
    "kind": "test", "step": 391, "epoch": 1, "train_loss": 1.5, "train_error": 50.0,
    "test_loss": 1.25, "test_error": 45.125, "lr": 0.1,
}  # fmt: skip


def test_plain_lines_come_every_few_seconds(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display = progress.Plain(100)
    for step in range(1, 21):
        now[0] += 1.0
        display.step(step, 1, 2.0, 30.0, 1234.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["5/100", "10/100", "15/100", "20/100"]
    assert lines[1] == (
        "step 10/100  epoch 1  loss 2.0000  error 30.00 %  1,234 images/s  0:01:30 left"
    )


def test_each_test_has_a_line(capsys):
    progress.Plain(391).test(ROW)
    assert capsys.readouterr().out == (
        "epoch 1  step 391  train loss 1.5000  error 50.00 %  "
        "test loss 1.2500  error 45.12 %  lr 0.1\n"
    )


def test_a_bar_on_a_terminal(monkeypatch):
    output = io.StringIO()

    def terminal(**options):
        return Console(file=output, force_terminal=True, width=140, **options)

    monkeypatch.setattr(progress, "Console", terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    display = progress.display(False, 400, 100)
    assert isinstance(display, progress.Bar)
    display.step(200, 3, 1.25, 20.0, 5000.0)
    display.test(ROW)
    display.close()
    shown = output.getvalue()
    for expected in ("epoch 3", "200/400", "loss 1.2500", "error 20.00 %", "5,000 images/s"):
        assert expected in shown, expected
    assert "test loss 1.2500" in shown


@pytest.mark.parametrize("width", [42, 72])
def test_a_narrow_terminal(monkeypatch, width):
    """Nothing is cut off."""
    output = io.StringIO()
    monkeypatch.setattr(
        progress,
        "Console",
        lambda **options: Console(file=output, force_terminal=True, width=width, **options),
    )
    display = progress.Bar(64124, 0)
    display.step(63000, 164, 1.25, 20.0, 12345.0)
    display.close()
    for part in ("loss 1.250  20.0 %  12,345/s", "left"):
        assert part in output.getvalue()
    assert ("epoch 164" in output.getvalue()) == (width == 72)
    assert "…" not in output.getvalue()


def test_no_bar_where_the_output_goes_to_a_file(tmp_path, capsys):
    train(small(epochs=1), tmp_path / "run")
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert output.splitlines()[-1].startswith("finished after 5 steps: test error ")


def test_nothing_when_quiet():
    assert type(progress.display(True, 10, 0)) is progress.Quiet
