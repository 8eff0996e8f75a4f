"""Runs on this machine: one after the other in this process, or a bounded pool of processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from mpelu.lab.studies.work import Done, Job, perform

_GRACE = 60.0
"""Seconds a run has for the step at hand and its checkpoint once it is asked to stop."""


_WORK = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from mpelu.lab.studies.work import main; main()"
)
"""Stopped while it still imports, a process ends without a traceback."""


def inline(jobs: Sequence[Job], *, quiet: bool = True) -> Generator[Done, None, None]:
    """One after the other in this process, which saves starting others."""
    for job in jobs:
        yield perform(job, quiet=quiet)


def pool(
    jobs: Sequence[Job], *, processes: int, quiet: bool = True, program: Sequence[str] = ()
) -> Generator[Done, None, None]:
    """A process for each run, at most so many at a time, with the cores divided among them.

    A process that dies takes its own run along and no other. On Ctrl-C, or when the caller stops
    asking, every process is told to stop and finishes the step at hand.

    Args:
        jobs: the runs.
        processes: how many at a time.
        quiet: whether runs print.
        program: in place of Python with `mpelu.lab.studies.work.main`, for tests.
    """
    processes = max(1, min(processes, len(jobs)))
    running: dict[int, subprocess.Popen[str]] = {}
    stopping = threading.Event()
    threads = max(1, (os.cpu_count() or 1) // processes)
    environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [*(program or (sys.executable, "-c", _WORK))]
    command += ["--quiet"] * quiet

    def one(job: Job) -> Done:
        if stopping.is_set():
            return Done(name=job.name, state="interrupted", message="not begun")
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            # Its own group: Ctrl-C comes here first, and from here, once, to each.
            start_new_session=True,
        )
        running[process.pid] = process
        try:
            out, _ = process.communicate(job.to_json() + "\n")
        finally:
            running.pop(process.pid, None)
        return _answer(job, out, process.returncode)

    with ThreadPoolExecutor(processes) as threads_pool:
        waiting: set[Future[Done]] = {threads_pool.submit(one, job) for job in jobs}
        try:
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for each in ended:
                    yield each.result()
        finally:
            stopping.set()
            _stop(list(running.values()))


def _answer(job: Job, out: str, code: int) -> Done:
    with contextlib.suppress(ValueError, IndexError, TypeError):
        return Done(**json.loads(out.strip().splitlines()[-1]))
    reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return Done(name=job.name, state="failed", message=f"its process ended: {reason}")


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
