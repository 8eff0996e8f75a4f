"""One run folder, one process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from mpelu.lab.errors import UserError
from mpelu.lab.run.files import write_error

_held: dict[Path, str] = {}
"""Of this process, with who holds them. The system's locks keep processes apart, not parts of one;
and opening the file a second time here would, on closing it, give the lock away."""


@contextlib.contextmanager
def lock(run: Path) -> Iterator[None]:
    """Holds RUN/lock, which says who is at work.

    The system lets go of it when the process ends, however it ends, so a lock left behind by a
    dead process is taken over.

    Raises:
        UserError: if another process, or another part of this one, holds it.
    """
    path = (run / "lock").resolve()
    if path in _held:
        raise UserError(f"{run} is in use by {_held[path]}")
    try:
        descriptor = _acquire(run, path)
    except OSError as error:
        raise write_error(run, error) from error
    who = {"pid": os.getpid(), "host": socket.gethostname(), "started": int(time.time())}
    _held[path] = _holder(json.dumps(who))
    try:
        # On a full disk it is a lock without a name.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, (json.dumps(who) + "\n").encode(), 0)
        yield
    finally:
        del _held[path]
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(run: Path, path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Of the process alone: a worker process that outlives it doesn't inherit the lock.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = os.pread(descriptor, 1000, 0).decode(errors="replace")
            os.close(descriptor)
            raise UserError(f"{run} is in use by {_holder(text)}") from None
        # The holder before may have removed the file between the two calls.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)


def _holder(text: str) -> str:
    try:
        who = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(who["started"]))
        return f"process {who['pid']} on {who['host']} since {since}"
    except (ValueError, KeyError, TypeError):  # it has the lock and hasn't written yet
        return "another process"
