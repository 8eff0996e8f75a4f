"""How far a download is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

EVERY = 10.0
"""Seconds between lines."""


class Progress:
    """Shows bytes of a total; use it as a context.

    Args:
        name: what is downloaded.
        total: bytes, None if the server doesn't say.
        quiet: shows nothing.
    """

    def __init__(self, name: str, total: int | None, quiet: bool) -> None:
        self._name = name
        self._total = total
        self._quiet = quiet
        self._shown = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self._name, total=self._total)
            self._bar.start()
        elif not self._quiet:
            self._line("starts")
        return self

    def at(self, count: int) -> None:
        """Bytes that are there now."""
        if self._bar is not None:
            self._bar.update(self._task, completed=count)
        elif not self._quiet and time.monotonic() - self._shown >= EVERY:
            total = "" if self._total is None else f" of {self._total / 1e6:.1f}"
            self._line(f"{count / 1e6:.1f}{total} MB")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet and kind is None:
            self._line("done")

    def _line(self, text: str) -> None:
        print(f"download of {self._name}: {text}", file=sys.stderr, flush=True)
        self._shown = time.monotonic()
