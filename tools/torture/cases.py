"""What attacks share: their result, the runs they attack, and commands that run in this process."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpelu.lab.config import Config

TIME_LIMIT = 120
"""Seconds for a case; a hang is a failure."""
SMALL = Config(
    model="resnet-8", model_options={"width": 2}, activation="mpelu", augment="pad-crop-flip",
    epochs=3, batch_size=20, checkpoint_every=4, log_every=3, train_limit=60, test_limit=20,
    threads=1,
)  # fmt: skip
"""Nine steps."""


@dataclass
class Attack:
    """How an attack went."""

    name: str
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""

    def fail(self, what: str) -> None:
        self.failures.append(what)

    @property
    def survived(self) -> int:
        return self.cases - len(self.failures)


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str
    trace: str
    """The traceback, if it raised anything but SystemExit."""


def command(*words: str | Path) -> Ran:
    """Runs `mpelu WORDS` in this process."""
    from mpelu.lab import cli

    out, err, code, trace = io.StringIO(), io.StringIO(), 0, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            code, trace = -1, traceback.format_exc()
    return Ran(code, out.getvalue(), err.getvalue(), trace)


def in_child(task: Callable[[], Any], seconds: int = TIME_LIMIT) -> int:
    """Runs a task in a copy of this process; returns its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(seconds)
            task()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def sample_runs(folder: Path) -> dict[str, Path]:
    """A finished run with an inspection, one that was interrupted, and one that was killed."""
    runs = {name: folder / "runs" / name for name in ("finished", "interrupted", "killed")}

    def finished() -> None:
        from mpelu.lab.training.launch import train

        train(SMALL, runs["finished"])
        assert command("inspect", runs["finished"], "--images", "8").code == 0

    assert in_child(finished) == 0
    for name, number in (("interrupted", signal.SIGINT), ("killed", signal.SIGKILL)):
        in_child(lambda name=name, number=number: _train_until(runs[name], number))  # type: ignore[misc]
    return runs


def _train_until(run: Path, number: int) -> None:
    """Trains, and sends itself a signal in the sixth step."""
    from mpelu.lab.training import trainer
    from mpelu.lab.training.launch import train

    real = trainer.Trainer._show_step

    def step(self: trainer.Trainer) -> None:
        real(self)
        if self.state.step == 5:
            os.kill(os.getpid(), number)

    trainer.Trainer._show_step = step  # type: ignore[method-assign]
    train(SMALL, run)


@contextlib.contextmanager
def copy_of(folder: Path) -> Iterator[Path]:
    """A copy of a folder, in memory where that is possible."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        yield Path(shutil.copytree(folder, Path(place) / folder.name))


def in_parallel(
    work: Callable[[Sequence[int]], list[str]], count: int, processes: int = 2
) -> list[str]:
    """Divides case numbers among copies of this process; returns what all of them report."""
    readers = []
    for part in range(processes):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            lines = ["died"]
            try:
                lines = work(range(part, count, processes))
            except BaseException:
                lines = [traceback.format_exc()]
            finally:
                with os.fdopen(writer, "w") as file:
                    file.write("\0".join(lines))
                os._exit(0)
        os.close(writer)
        readers.append((child, os.fdopen(reader)))
    found = []
    for child, file in readers:
        with file:
            text = file.read()
        _, status = os.waitpid(child, 0)
        if status:
            found.append(f"a process of the attack ended with status {status}")
        found += [line for line in text.split("\0") if line]
    return found
