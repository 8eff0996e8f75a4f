"""One run folder, one process."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from unittest.mock import MagicMock

import pytest
from train_helpers import small

from mpelu.lab import files
from mpelu.lab.errors import UserError
from mpelu.lab.run import folder
from mpelu.lab.run.folder import lock
from mpelu.lab.training.launch import resume, train

HOLD = """
import sys
from pathlib import Path
from mpelu.lab.errors import UserError
from mpelu.lab.run.folder import lock
sys.stdin.readline()
try:
    with lock(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
except UserError as error:
    print(error, flush=True)
"""


def holder(run: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_live_process_keeps_others_out(tmp_path: Path) -> None:
    train(small(epochs=1), tmp_path / "run")
    process = holder(tmp_path / "run")
    begin(process)
    assert answer(process) == "held\n"
    with pytest.raises(UserError) as told:
        resume(tmp_path / "run")
    expected = f"in use by process {process.pid} on {socket.gethostname()} since 20"
    assert expected in str(told.value)
    process.communicate("\n")
    assert resume(tmp_path / "run").state == "finished"


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    process = holder(tmp_path)
    begin(process)
    answer(process)
    process.kill()
    process.communicate()
    assert (tmp_path / "lock.json").exists()
    with lock(tmp_path):
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "lock.json").exists()


def test_one_of_many_that_race_gets_it(tmp_path: Path) -> None:
    processes = [holder(tmp_path) for _ in range(4)]
    for process in processes:
        begin(process)
    answers = [answer(process) for process in processes]
    for process in processes:
        process.communicate("\n")
    assert answers.count("held\n") == 1
    assert all(told == "held\n" or "in use by" in told for told in answers)


def test_twice_in_one_process(tmp_path: Path) -> None:
    with lock(tmp_path):
        with pytest.raises(UserError, match=re.escape(f"process {os.getpid()} on")):
            lock(tmp_path).__enter__()
        process = holder(tmp_path)
        output, _ = process.communicate("\n")
        assert "in use by" in output


def test_a_folder_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match="can't write: Read-only file system"), lock(tmp_path):
        pass


def test_on_a_full_disk_it_still_keeps_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", refuse)
        with lock(tmp_path):
            process = holder(tmp_path)
            output, _ = process.communicate("\n")
    assert output == f"{tmp_path}: in use by another process\n"


@pytest.mark.parametrize(
    ("handle", "error", "waited", "expected"),
    [(7, 0, 0x102, True), (7, 0, 0, False), (None, 87, 0, False), (None, 5, 0, True)],
    ids=["alive", "ended", "unknown", "of another user"],
)
def test_on_windows_a_process_is_asked_without_being_killed(
    monkeypatch: pytest.MonkeyPatch, handle: int | None, error: int, waited: int, expected: bool
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("os.kill ends a process on Windows")

    kernel = MagicMock()
    kernel.OpenProcess.return_value = handle
    kernel.WaitForSingleObject.return_value = waited
    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "WinDLL", lambda *_, **__: kernel, raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: error, raising=False)
    assert folder._is_alive(4321) is expected
    assert kernel.CloseHandle.call_count == (handle is not None)
    assert folder._is_alive(10**30) is False
