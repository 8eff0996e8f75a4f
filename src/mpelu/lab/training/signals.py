"""Ctrl-C and SIGTERM: the step at hand is finished first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

CAUGHT = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def caught() -> Iterator[list[int]]:
    """Gives a list that the first signal is added to; a second one ends the process at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)

    before = {number: signal.signal(number, handle) for number in CAUGHT}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
