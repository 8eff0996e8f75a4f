"""What a run shows while it runs: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_SECONDS = 5.0
"""Between plain lines."""
_WIDE, _NARROW = 110, 72
"""Columns that all of the bar needs, and that it needs without the bar itself."""


class Quiet:
    """Shows nothing; what the others start from."""

    def note(self, text: str) -> None:
        """A line about the run."""

    def step(self, step: int, epoch: int, loss: float, error: float, speed: float) -> None:
        """A step is done: means since the last line of the log, images a second."""

    def test(self, row: dict[str, Any]) -> None:
        """A test is done: the row of metrics.jsonl."""

    def close(self) -> None:
        """Nothing follows."""


class Plain(Quiet):
    """Lines, at most one every few seconds and one for each test."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._start: tuple[float, int] | None = None
        self._shown = time.monotonic()

    def note(self, text: str) -> None:
        print(text, flush=True)

    def step(self, step: int, epoch: int, loss: float, error: float, speed: float) -> None:
        now = time.monotonic()
        if self._start is None:
            self._start = (now, step)
        if now - self._shown < _SECONDS:
            return
        self._shown = now
        began, first = self._start
        left = (self._steps - step) * (now - began) / max(1, step - first)
        self.note(
            f"step {step}/{self._steps}  epoch {epoch}  loss {loss:.4f}  error {error:.2f} %  "
            f"{speed:,.0f} images/s  {_duration(left)} left"
        )

    def test(self, row: dict[str, Any]) -> None:
        self.note(test_line(row))


class Bar(Quiet):
    """A bar at the foot of the terminal, a line above it for each test."""

    def __init__(self, steps: int, first: int) -> None:
        console = Console(highlight=False)
        self._is_wide = console.width >= _WIDE
        place: list[ProgressColumn] = [
            TextColumn("epoch {task.fields[epoch]}"),
            MofNCompleteColumn(),
        ]
        if self._is_wide:
            place.insert(1, BarColumn())
        elif console.width < _NARROW:
            place = []
        self._progress = Progress(
            *place,
            TextColumn("{task.fields[numbers]}"),
            *([TimeElapsedColumn()] if self._is_wide else []),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=steps, completed=first, epoch=0, numbers="")
        self._progress.start()

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False)

    def step(self, step: int, epoch: int, loss: float, error: float, speed: float) -> None:
        numbers = f"loss {loss:.4f}  error {error:.2f} %  {speed:,.0f} images/s"
        if not self._is_wide:
            numbers = f"loss {loss:.3f}  {error:.1f} %  {speed:,.0f}/s"
        self._progress.update(self._task, completed=step, epoch=epoch, numbers=numbers)

    def test(self, row: dict[str, Any]) -> None:
        self.note(test_line(row))

    def close(self) -> None:
        self._progress.stop()


def display(quiet: bool, steps: int, first: int) -> Quiet:
    """What suits where the output goes.

    Args:
        quiet: show nothing.
        steps: of the whole run.
        first: steps done before.
    """
    if quiet:
        return Quiet()
    return Bar(steps, first) if sys.stdout.isatty() else Plain(steps)


def test_line(row: dict[str, Any]) -> str:
    return (
        f"epoch {row['epoch']}  step {row['step']}  "
        f"train loss {row['train_loss']:.4f}  error {row['train_error']:.2f} %  "
        f"test loss {row['test_loss']:.4f}  error {row['test_error']:.2f} %  lr {row['lr']:g}"
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
