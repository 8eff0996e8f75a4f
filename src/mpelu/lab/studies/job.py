"""One run of a study, in whichever process or machine it is sent to."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, one_line
from mpelu.lab.reading import parse_object
from mpelu.lab.run import folder as runs
from mpelu.lab.run.lock import wait_until_free

GRACE = 60.0
"""Seconds a run has to finish its step and write a checkpoint once it is asked to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run and its folder."""

    name: str
    config: Config
    folder: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = parse_object(text)
        config = Config.from_values(values["config"])
        return cls(name=values["name"], config=config, folder=values["folder"])


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    """How a run ended."""

    name: str
    state: str
    """finished, diverged, interrupted, failed, or full if there was no space left."""
    message: str


def perform(job: Job, *, progress: bool = False) -> JobOutcome:
    """Trains, or resumes a run that was stopped. Errors become a JobOutcome.

    Args:
        job: the run.
        progress: print the run's progress.
    """
    from mpelu.lab.training.display import for_terminal
    from mpelu.lab.training.launch import resume, train

    display = for_terminal() if progress else None
    folder = Path(job.folder)
    try:
        if runs.is_run(folder):
            wait_until_free(folder, GRACE)  # for a worker of a runner that died
            changes: dict[str, Any] = {}
            if job.config.data_dir is not None:
                changes["data_dir"] = job.config.data_dir
            # The job comes from the user's own command, so the code it names is trusted.
            trust = runs.read_config(folder).references == job.config.references
            outcome = resume(folder, changes=changes, display=display, trust=trust)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            outcome = train(job.config, folder, display=display)
    except Exception as error:
        return failed(job.name, error)
    return JobOutcome(name=job.name, state=outcome.state, message=outcome.message)


def failed(name: str, error: BaseException) -> JobOutcome:
    """The outcome of an error. A full disk is told apart, because other runs would meet it too."""
    if is_full(error):
        return JobOutcome(name=name, state="full", message=str(error))
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return JobOutcome(name=name, state="failed", message=kind + one_line(error))


def is_full(error: BaseException | None) -> bool:
    """Whether the error, or a cause of it, is that no space was left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def main() -> None:
    """Reads a job as JSON from standard input and writes its outcome to standard output."""
    job = Job.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_runner, daemon=True).start()
    # What the run prints goes to standard error, so that the answer stands alone.
    answer = os.dup(1)
    os.dup2(2, 1)
    outcome = perform(job, progress="--progress" in sys.argv)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it; the folder holds the run
        os.write(answer, (json.dumps(asdict(outcome)) + "\n").encode())


def _end_with_runner() -> None:
    """Waits until standard input ends, which means that the runner died; then stops the run."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)
