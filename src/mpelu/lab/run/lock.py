"""One process per run folder, and one per study."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from mpelu.lab.errors import UserError
from mpelu.lab.run import files

NAME = "lock"
HOLDER = "lock.json"


@contextlib.contextmanager
def lock(run: Path) -> Iterator[None]:
    """Holds the lock of the folder of a run or a study.

    The operating system releases it when the process ends, however it ends, so the lock of a dead
    process never has to be removed by hand.

    Raises:
        UserError: if another process, or another part of this one, holds it.
    """
    held = FileLock(run / NAME, timeout=0)
    try:
        held.acquire()
    except Timeout:
        raise UserError(f"{run}: in use by {_holder(run)}") from None
    except OSError as error:
        raise files.disk_error(run, error) from error
    try:
        # Without room for the name, the lock still holds.
        with contextlib.suppress(OSError):
            about = {"pid": os.getpid(), "host": socket.gethostname(), "started": int(time.time())}
            files.write_json(run / HOLDER, about, durable=False)
        yield
    finally:
        with contextlib.suppress(OSError):
            (run / HOLDER).unlink()
        held.release()


def wait_until_free(run: Path, seconds: float) -> None:
    """Waits until no process holds the lock of a run folder, at most for so many seconds."""
    with contextlib.suppress(Timeout, OSError), FileLock(run / NAME, timeout=seconds):
        pass


def _holder(run: Path) -> str:
    try:
        about = files.read_json(run / HOLDER)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["started"]))
        return f"process {about['pid']} on {about['host']} since {since}"
    except (ValueError, KeyError, TypeError, OSError):  # locked, but not written yet
        return "another process"
