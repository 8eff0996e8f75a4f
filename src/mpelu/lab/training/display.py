"""What a run shows while it trains: a progress bar, plain lines, or log records."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpelu.lab.data.download import hide_progress

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

log = logging.getLogger("mpelu.lab")

DOWNLOAD_INTERVAL = 10.0
"""Seconds between lines about a download."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands after a step."""

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    """Mean since the last log entry, as of the last step whose loss was read: on a GPU, that is the
    last one that was logged or tested. NaN before the first."""
    error: float
    """In %, likewise."""
    images_per_second: float
    is_logged: bool
    """Whether metrics.jsonl gets an entry for this step."""


class Display:
    """Shows nothing. The methods are called by the main process of a run."""

    unit = "epoch"
    """What the length of the run counts: "epoch", or "step" for one given in iterations."""

    def start(self, step: int, steps: int) -> None:
        """Training starts after `step` of `steps` steps."""

    def settings(self, settings: dict[str, str]) -> None:
        """The settings in force, by topic."""

    def download(
        self, name: str, total: int | None
    ) -> AbstractContextManager[Callable[[int], None]]:
        """A file of so many bytes is downloaded; see `mpelu.lab.data.download.DownloadProgress`."""
        return hide_progress(name, total)

    def note(self, text: str) -> None:
        """A line about the run."""

    def warning(self, text: str) -> None:
        """A line about something the user may want to act on."""

    def step(self, progress: Progress) -> None:
        """A step is done."""

    def test(self, row: dict[str, Any]) -> None:
        """A test is done; the row of metrics.jsonl."""

    def close(self) -> None:
        """Training has ended."""


class LogDisplay(Display):
    """Sends everything but steps to the logger "mpelu.lab". The default in Python."""

    def settings(self, settings: dict[str, str]) -> None:
        for name, text in settings.items():
            log.info("%s: %s", name, text)

    def note(self, text: str) -> None:
        log.info("%s", text)

    def warning(self, text: str) -> None:
        log.warning("%s", text)

    def test(self, row: dict[str, Any]) -> None:
        log.info("%s", test_line(row, self.unit))


class SteadyStream:
    """A text stream whose failures don't end a run: what can't be written is dropped.

    A pipe whose reader has left, a terminal that was closed and a full disk are no reason to stop
    training. Characters that the stream can't encode become "?".
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except UnicodeError:
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError, AttributeError):  # broken, closed or missing
            pass
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Lines(Display):
    """Prints plain lines: one per log entry and one per test."""

    def __init__(self) -> None:
        self._began = (time.monotonic(), 0)

    def start(self, step: int, steps: int) -> None:
        self._began = (time.monotonic(), step)

    def settings(self, settings: dict[str, str]) -> None:
        indent = max(len(name) for name in settings) + 2
        for name, text in settings.items():
            for line in textwrap.wrap(
                text,
                max(_columns(), indent + 20),
                initial_indent=f"{name:<{indent}}",
                subsequent_indent=indent * " ",
                break_long_words=False,
                break_on_hyphens=False,
            ):
                self.note(line)

    def download(
        self, name: str, total: int | None
    ) -> AbstractContextManager[Callable[[int], None]]:
        return show_download(name, total)

    def note(self, text: str) -> None:
        _print(text, sys.stdout)

    def warning(self, text: str) -> None:
        _print(f"warning: {text}", sys.stderr)

    def test(self, row: dict[str, Any]) -> None:
        self.note(test_line(row, self.unit))

    def step(self, progress: Progress) -> None:
        if not progress.is_logged:
            return
        since, first = self._began
        elapsed = time.monotonic() - since
        left = (progress.steps - progress.step) * elapsed / max(1, progress.step - first)
        self.note(
            f"step {progress.step}/{progress.steps}  epoch {progress.epoch}  "
            f"loss {progress.loss:.4f}  error {progress.error:.2f} %  "
            f"{progress.images_per_second:,.0f} images/s  {_duration(left)} left"
        )


class Bar(Lines):
    """A progress bar at the bottom of the terminal, with a line above it for each test."""

    _WIDE = 72
    """Columns from which there is room for more than loss and error."""

    def start(self, step: int, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        console = Console(file=SteadyStream(sys.stdout), highlight=False)  # type: ignore[arg-type]
        columns: list[ProgressColumn] = [TextColumn("{task.fields[numbers]}")]
        if console.width >= self._WIDE:
            columns = [
                TextColumn("{task.fields[epoch]}"),
                BarColumn(bar_width=max(5, min(30, console.width - 67))),
                TextColumn("{task.percentage:>3.0f}%"),
                *columns,
                TextColumn("{task.fields[speed]}"),
                TimeRemainingColumn(),
            ]
        self._bar = RichProgress(*columns, console=console)
        self._task = self._bar.add_task(
            "", total=steps, completed=step, epoch="", numbers="", speed=""
        )
        self._bar.start()

    def note(self, text: str) -> None:
        if hasattr(self, "_bar"):
            self._bar.console.print(text, markup=False)
        else:
            super().note(text)

    def step(self, progress: Progress) -> None:
        is_unknown = math.isnan(progress.loss)
        self._bar.update(
            self._task,
            completed=progress.step,
            epoch=f"epoch {progress.epoch}/{progress.epochs}",
            numbers="" if is_unknown else f"loss {progress.loss:.4f} error {progress.error:.1f} %",
            speed="" if is_unknown else f"{progress.images_per_second:,.0f}/s",
        )

    def close(self) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()


def for_terminal() -> Display:
    """A bar where standard output is a terminal, lines elsewhere."""
    return Bar() if sys.stdout is not None and sys.stdout.isatty() else Lines()


@contextmanager
def show_download(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows a download on standard error: a bar on a terminal, elsewhere a line now and then.

    Example:
        >>> with show_download("file.bin", 2_000_000) as update:
        ...     update(1_000_000)
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield from _download_lines(name, total)
        return
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=20),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
        console=Console(file=SteadyStream(sys.stderr)),  # type: ignore[arg-type]
    )
    task = bar.add_task(name, total=total)
    with bar:
        yield lambda count: bar.update(task, completed=count)


def _download_lines(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    size = "" if total is None else f" of {total / 1e6:.1f}"
    shown = time.monotonic()

    def update(count: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= DOWNLOAD_INTERVAL:
            _print(f"{name}: {count / 1e6:.1f}{size} MB", sys.stderr)
            shown = time.monotonic()

    _print(f"{name}: downloading", sys.stderr)
    yield update
    _print(f"{name}: downloaded", sys.stderr)


def test_line(row: dict[str, Any], unit: str) -> str:
    """A test in at most 80 columns.

    Args:
        row: of metrics.jsonl.
        unit: "epoch" or "step", whichever the run counts.
    """
    if "validation_error" in row:
        train, kind = "", "validation"  # "train" would make the line too long
    else:
        train, kind = "train ", "test"
    return (
        f"{unit} {row[unit]}: {train}loss {row['train_loss']:.4f}, error "
        f"{row['train_error']:.2f} %; {kind} loss {row[f'{kind}_loss']:.4f}, error "
        f"{row[f'{kind}_error']:.2f} %"
    )


def _print(text: str, stream: Any) -> None:
    """Prints a line; a closed pipe or a missing stream doesn't end the run."""
    print(text, file=SteadyStream(stream), flush=True)


def _columns() -> int:
    """Of the terminal; 80 where there is none."""
    return shutil.get_terminal_size().columns


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
