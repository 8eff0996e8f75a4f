"""What the tests of commands share."""

from __future__ import annotations

import pytest

from mpelu.lab import cli

SETTINGS = ["--model", "resnet-8", "--iterations", "1", "--train-limit", "32"]
SETTINGS += ["--test-limit", "16", "--threads", "1"]
"""Options of `mpelu train` for a run of one step."""


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command is refused with, after its "mpelu: error: "."""
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("mpelu: error: ")
    return line.removeprefix("mpelu: error: ")
