"""One run, done wherever it is sent.

A run folder that is there already is taken up where it ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run and where it is to be."""

    name: str
    config: Config
    folder: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        config = Config.from_values(values["config"])
        return cls(name=values["name"], config=config, folder=values["folder"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """How a run ended."""

    name: str
    state: str
    """finished, diverged, interrupted, failed, or full: there was no space left."""
    message: str


def perform(job: Job, *, quiet: bool = True) -> Done:
    """Trains, or goes on with a run that was stopped; what goes wrong becomes a `Done`."""
    from mpelu.lab.training.display import for_terminal
    from mpelu.lab.training.launch import resume, train

    folder = Path(job.folder)
    try:
        if (folder / "config.json").exists():
            changes: dict[str, Any] = {}
            if job.config.data_dir is not None:
                changes["data_dir"] = job.config.data_dir
            outcome = resume(folder, changes=changes, display=None if quiet else for_terminal())
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            outcome = train(job.config, folder, display=None if quiet else for_terminal())
    except Exception as error:
        return failed(job.name, error)
    return Done(name=job.name, state=outcome.state, message=outcome.message)


def failed(name: str, error: BaseException) -> Done:
    """The error in a line; a full disk is told apart, since the other runs would meet it too."""
    if is_full(error):
        return Done(name=name, state="full", message=str(error))
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return Done(name=name, state="failed", message=kind + line)


def is_full(error: BaseException | None) -> bool:
    """Whether it, or what led to it, is a lack of space."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def main() -> None:
    """Reads one job as JSON and writes how it ended, both through standard streams."""
    job = Job.from_json(sys.stdin.readline())
    # What the run prints goes to standard error, so that the answer stands alone.
    answer = os.dup(1)
    os.dup2(2, 1)
    done = perform(job, quiet="--quiet" in sys.argv)
    with contextlib.suppress(BrokenPipeError):  # who asked has ended; the folder holds the run
        os.write(answer, (json.dumps(asdict(done)) + "\n").encode())
