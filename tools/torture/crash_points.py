"""Kills a run at every file operation, resumes it, and compares its end with an unbroken run.

A crash point is the moment before a file or directory is opened, renamed, linked, removed or made,
before data is forced to the disk, or halfway through a write. The process is killed with SIGKILL.
Then the run is resumed, and in a part of the cases killed again at a file operation of the resume.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torture.cases import SMALL, Attack, in_child, in_parallel

EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Crash:
    """Counts file operations below a folder, and kills the process at one of them.

    Args:
        folder: operations elsewhere don't count.
        at: the operation to die at; 0 to count only.
    """

    def __init__(self, folder: Path, at: int) -> None:
        self.count = 0
        self._folder, self._at = str(folder), at
        sys.addaudithook(self._audit)
        self._patch()

    def operation(self) -> bool:
        """Counts an operation; whether it is the one to die at."""
        self.count += 1
        return self.count == self._at

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not self._is_inside(arguments[0]):
            return
        if event == "open" and not (arguments[2] or 0) & CHANGES:
            return
        if self.operation():
            self._die()

    def _is_inside(self, path: object) -> bool:
        return isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(
            self._folder
        )

    def _patch(self) -> None:
        crash, fsync, real = self, os.fsync, builtins.open

        def syncing(descriptor: Any) -> None:
            if crash.operation():
                crash._die()
            fsync(descriptor)

        class Writer:
            def __init__(self, file: Any) -> None:
                self._file = file

            def write(self, data: Any) -> int:
                if crash.operation():
                    self._file.write(data[: len(data) // 2])
                    self._file.flush()
                    crash._die()
                written: int = self._file.write(data)
                return written

            def __getattr__(self, name: str) -> Any:
                return getattr(self._file, name)

            def __enter__(self) -> Writer:
                return self

            def __exit__(self, *_: object) -> None:
                self._file.close()

        def opening(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            file = real(path, mode, *rest, **options)
            changes = crash._is_inside(path) and any(letter in mode for letter in "wax+")
            return Writer(file) if changes else file

        os.fsync = syncing
        builtins.open = opening  # type: ignore[assignment]


def advance(run: Path, at: int = 0) -> int:
    """Trains or resumes in a child that dies at a file operation; returns its exit code."""
    return in_child(lambda: _advance(run, at))


def _advance(run: Path, at: int) -> None:
    from mpelu.lab.run.folder import is_run
    from mpelu.lab.training.launch import resume, train

    crash = Crash(run.parent, at)
    if is_run(run):
        resume(run)
    else:
        train(SMALL, run)
    with contextlib.suppress(OSError):
        (run.parent.parent / "count").write_text(str(crash.count))


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def final(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on where it was killed."""
    from mpelu.lab.run import checkpoint

    contents = checkpoint.load(checkpoint.path_of(run, checkpoint.steps_of(run)[-1]))
    del contents["logs"]["speed.jsonl"]
    names = ["model.safetensors", "metrics.jsonl", "config.json", "data.json"]
    names += sorted(f"activations/{path.name}" for path in (run / "activations").iterdir())
    names += sorted(f"checkpoints/{path.name}" for path in (run / "checkpoints").glob("*.safe*"))
    return {**contents, **{name: (run / name).read_bytes() for name in names}}


def equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def attack(folder: Path, cases: int | None = None) -> Attack:
    """Kills runs at file operations.

    Args:
        folder: for the unbroken run.
        cases: how many of the crash points, evenly spread; None for every one, alone and twice with
            another kill in the resume.
    """
    result = Attack("killed at a file operation, resumed")
    whole = folder / "whole" / "run"
    whole.parent.mkdir(parents=True)
    assert advance(whole) == 0
    count = int((folder / "count").read_text())
    expected, files = final(whole), listing(whole.parent) | {"run/history.jsonl"}
    resuming = _count_of_resume(folder, count)
    points = [(at, 0) for at in range(1, count + 1)]
    points += [(at, 1 + (at * step) % resuming) for step in (1, 7) for at in range(1, count + 1)]
    if cases is not None:
        points = [points[index * len(points) // cases] for index in range(cases)]
    result.cases = len(points)
    result.note = f"{count} operations in a run, {resuming} in a resume"

    def work(numbers: Sequence[int]) -> list[str]:
        found = (_case(*points[number], expected, files) for number in numbers)
        return [each for each in found if each]

    result.failures += in_parallel(work, len(points))
    return result


def _count_of_resume(folder: Path, count: int) -> int:
    """File operations of a resume after a kill halfway."""
    run = folder / "resumed" / "run"
    run.parent.mkdir()
    assert advance(run, count // 2) == -signal.SIGKILL
    assert advance(run) == 0
    return int((folder / "count").read_text())


def _case(at: int, again: int, expected: dict[str, Any], files: set[str]) -> str:
    """What went wrong; empty if nothing."""
    from mpelu.lab.run.verification import verify

    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    run = place / "runs" / "run"
    run.parent.mkdir()
    name = f"operation {at}" + f", then {again}" * bool(again)
    before = {key: os.environ.get(key) for key in ("HOME", "TMPDIR")}
    try:
        os.environ.update(HOME=str(place), TMPDIR=str(place))
        codes = [advance(run, at)] + [advance(run, again)] * bool(again) + [advance(run)]
        if codes[0] != -signal.SIGKILL or codes[-1] != 0:
            return f"{name}: exit codes {codes}"
        if not equal(final(run), expected):
            return f"{name}: other bits"
        if litter := listing(run.parent) - files:
            return f"{name}: left {sorted(litter)}"
        if damage := verify(run).damage:
            return f"{name}: {damage[0]}"
        if outside := listing(place) - {"count", "runs", *(f"runs/{each}" for each in files)}:
            return f"{name}: wrote {sorted(outside)}"
        return ""
    finally:
        os.environ.update({key: value for key, value in before.items() if value is not None})
        shutil.rmtree(place)
