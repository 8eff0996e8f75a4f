"""The run folder, the contract between what trains and what shows: its files, and its lock.

    config.json               every field of Config, and the schema version of the folder
    environment.json          versions, processor, revision, command, settings in words
    data.json                 name, classes, channels, size, counts and fingerprint of the data
    preprocess.safetensors    what preprocessing was fitted to: mean, std, whitening
    metrics.jsonl             a line per logged step and per test
    speed.jsonl               images per second
    status.json               state, step, message, errors, length and checksum of each log
    history.jsonl             when the run was resumed or extended
    activations/              alpha and beta of every channel at up to 50 epochs
    checkpoints/              the last two and the best
    model.safetensors         the final weights
    inspect.json, .png        what `mpelu inspect` found
    top5.json                 top-5 error, where a study asked for it
    lock, lock.json           which process is at work

A published network is a folder with config, data, preprocessing, final weights and card.json, which
says how they were trained, in place of the record of the training.

Every file has a checksum inside or beside it. Only the package `mpelu.lab.run` knows these names. A
folder of schema 3 is migrated in memory when it is read, and on disk when its run is resumed; older
and newer ones are refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab import files
from mpelu.lab.config import CONSTANT_WARMUP_LR, Config
from mpelu.lab.errors import UserError
from mpelu.lab.files import LENGTH, check_log, parse_lines, read_bytes, seal_tensors

if TYPE_CHECKING:
    from torch import Tensor


SCHEMA = 4
OLDEST = 3
"""The oldest schema that is read."""
LAST_TO_READ_OLDER = "6a35e59"
"""The last published commit that reads folders of schemas 1 and 2."""
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
DATA = "data.json"
PREPROCESS = "preprocess.safetensors"
STATUS = "status.json"
HISTORY = "history.jsonl"
WEIGHTS = "model.safetensors"
CHECKPOINTS = "checkpoints"
SNAPSHOTS = "activations"
TENSORBOARD = "tensorboard"
INSPECTION = "inspect.json"
INSPECTION_FIGURE = "inspect.png"
TOP5 = "top5.json"
CARD = "card.json"
CARD_DIGEST = "sha256_of_weights"
LOCK = "lock"
LOCK_HOLDER = "lock.json"
METRICS = "metrics.jsonl"
CSV = "metrics.csv"
SPEED = "speed.jsonl"
LOGS = (METRICS, SPEED)
_SNAPSHOT = re.compile(r"epoch-(\d{1,12})\.safetensors")
_TRIES = 3
STATES = ("running", "finished", "diverged", "interrupted", "failed")
ENDED = ("finished", "diverged")
WEIGHT_CHOICES = ("final", "best", "last")
"""Which weights of a run a user can ask for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a run folder says, without weights."""

    path: Path
    config: dict[str, Any]
    """In the current schema."""
    status: dict[str, Any]
    """{} before the first step."""
    environment: dict[str, Any]
    data: dict[str, Any]
    steps: list[dict[str, Any]]
    """step, epoch, loss, error (in %), lr."""
    tests: list[dict[str, Any]]
    """step, epoch, train_loss, train_error, test_loss, test_error (in %), lr.

    With validation images each has validation_loss and validation_error; test_loss and test_error
    are in the last one alone.
    """
    problems: tuple[str, ...]
    """What is missing or damaged, a line each."""


def is_run(path: Path) -> bool:
    """Whether a path is a run folder."""
    return (path / CONFIG).is_file()


def find(directories: Iterable[Path]) -> list[Path]:
    """Run folders among the directories and below them, each once, in order of name."""
    found: dict[Path, Path] = {}
    for directory in directories:
        for config in [directory / CONFIG, *sorted(directory.rglob(CONFIG))]:
            if config.is_file():
                found.setdefault(config.parent.resolve(), config.parent)
    return list(found.values())


def read(path: Path) -> Run:
    """Reads a run folder, also while it is being written.

    Raises:
        UserError: if it isn't a run folder, is of a newer schema, or its config can't be read.
            Anything else that is damaged is left out and named in `problems`.
    """
    config = read_config_values(path)
    problems: list[str] = []
    environment, data = (_object(path / name, problems) for name in (ENVIRONMENT, DATA))
    status = _object(path / STATUS, problems)
    rows, problem = read_log(path, METRICS, status)
    for _ in range(_TRIES):
        now = read_object(path, STATUS)
        if not problem or now == status:
            break
        status = now  # it was written, and a log cut, between the two readings
        rows, problem = read_log(path, METRICS, status)
    return Run(
        path=path,
        config=config,
        status=status,
        environment=environment,
        data=data,
        steps=[row for row in rows if row.get("kind") == "step"],
        tests=[row for row in rows if row.get("kind") == "test"],
        problems=tuple([*problems, problem] if problem else problems),
    )


def read_log(
    run: Path, name: str, status: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """The rows of a log as far as status.json tells of them, and in words what is wrong with it."""
    logs = (read_object(run, STATUS) if status is None else status).get("logs")
    return read_rows(run / name, logs.get(name) if isinstance(logs, dict) else None)


def read_rows(path: Path, record: object = None) -> tuple[list[dict[str, Any]], str]:
    """The rows of a log, and in words what is wrong with it; empty if nothing is.

    Args:
        path: the file.
        record: what status.json says about it. What comes later in the file isn't returned: it was
            being written when the run was killed, and is cut off when the run is resumed.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return [], f"{path.name} is missing"
    except ValueError as error:
        return [], f"{path.name} can't be read: {error}"
    problem = ""
    if isinstance(record, dict) and isinstance(record.get(LENGTH), int):
        problem = check_log(path, record)
        data = data[: record[LENGTH]]
    rows, damaged = parse_lines(data)
    if damaged:
        problem = f"{path.name}: {damaged} of {len(rows) + damaged} lines can't be read"
    return rows, problem


def find_snapshots(run: Path) -> dict[int, Path]:
    """The snapshots of a run folder by epoch, in order."""
    place = run / SNAPSHOTS
    found = {
        int(match[1]): path
        for path in (place.iterdir() if place.is_dir() else ())
        if (match := _SNAPSHOT.fullmatch(path.name))
    }
    return dict(sorted(found.items()))


def read_schema(run: Path) -> int:
    """The schema of a run folder, whose config has to be readable."""
    return int(files.read_json(run / CONFIG)["schema"])


def read_config(run: Path) -> Config:
    """The config of a run folder.

    Raises:
        UserError: if it isn't a run folder or its config isn't valid.
    """
    try:
        return Config.from_values(read_config_values(run))
    except UserError as error:
        if error.field is None:
            raise
        raise UserError(f"{run}: {error}") from None


def read_config_values(run: Path) -> dict[str, Any]:
    """The values of config.json, in the current schema and not validated further."""
    if not is_run(run):
        raise UserError(f"{run}: expected a run folder (with {CONFIG}), got none")
    try:
        return migrate_config(files.read_json(run / CONFIG))
    except ValueError as error:
        raise UserError(f"{run}: {error}") from None


def migrate_config(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a config.json of a schema that is read, in the current one.

    Raises:
        ValueError: for an older or a newer schema.
    """
    schema = values.get("schema", 1)
    expected = f"expected a schema from {OLDEST} to {SCHEMA}, got {schema!r}"
    if schema in range(1, OLDEST):
        raise ValueError(f"{expected}; mpelu at commit {LAST_TO_READ_OLDER} reads it")
    if type(schema) is not int or schema < OLDEST:
        raise ValueError(expected)
    if schema > SCHEMA:
        raise ValueError(f"{expected}; a newer mpelu wrote it, so upgrade mpelu to read it")
    values = {name: value for name, value in values.items() if name != "schema"}
    if schema < 4 and not values.get("warmup") and values.get("warmup_lr") == CONSTANT_WARMUP_LR:
        values["warmup_lr"] = None  # the default of before, which had no effect
    return values


def read_object(run: Path, name: str) -> dict[str, Any]:
    """One of the folder's JSON files; {} if it is missing or damaged."""
    with contextlib.suppress(ValueError):
        return files.read_json(run / name)
    return {}


def stamp(run: Path) -> list[list[Any]]:
    """Name, size and time of change of every file that is read for a report."""
    names = (CONFIG, STATUS, ENVIRONMENT, DATA, METRICS, INSPECTION)
    found = []
    for path in [*(run / name for name in names), *find_snapshots(run).values()]:
        with contextlib.suppress(OSError):
            state = path.stat()
            found.append([path.name, state.st_size, state.st_mtime_ns])
    return found


def check_new(out: Path) -> None:
    """Raises UserError unless a run folder can be made there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: expected a directory for the run, got a file")
    if is_run(out):
        raise UserError(
            f"{out}: a run is already here; continue it with --resume {out}, or choose another "
            "directory with --out"
        )
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: expected a new or empty directory, got one with files in it")


def create(
    out: Path,
    config: Config,
    *,
    data: dict[str, Any],
    preprocess: dict[str, Tensor],
    environment: dict[str, Any],
) -> None:
    """Makes a run folder with all that it holds before the first step, in one step.

    Raises:
        UserError: if it can't be made; nothing is left behind.
    """
    place = out.resolve()
    remove_hidden(place)
    hidden = place.with_name(f".{place.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        hidden.mkdir(parents=True)
        make_directories(hidden)
        files.write_json(hidden / ENVIRONMENT, environment)
        files.write_json(hidden / DATA, data)
        files.write(hidden / PREPROCESS, seal_tensors(preprocess))
        for name in LOGS:
            files.write(hidden / name, b"")
        write_config(hidden, config)
        hidden.rename(place)
        files.sync_directory(place.parent)
    except OSError as error:
        raise UserError(f"{out}: can't be made: {error.strerror or error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def remove_hidden(out: Path) -> None:
    """Removes folders that `create` left beside a run folder when it was killed."""
    place = out.resolve()
    start = f".{place.name}."
    for path in place.parent.glob(f"{glob.escape(start)}*"):
        host, _, number = path.name.removeprefix(start).rpartition(".")
        if not (number.isdecimal() and path.is_dir() and host in ("", socket.gethostname())):
            continue
        if not _is_alive(int(number)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":  # where os.kill would end it
        return _is_alive_on_windows(process)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True


def _is_alive_on_windows(process: int) -> bool:
    if process >= 2**32:
        return False
    synchronize, access_denied, timeout = 0x0010_0000, 5, 0x102
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(synchronize, False, process)
    if handle is None:
        return bool(ctypes.get_last_error() == access_denied)  # type: ignore[attr-defined]
    found = kernel.WaitForSingleObject(ctypes.c_void_p(handle), 0)
    kernel.CloseHandle(ctypes.c_void_p(handle))
    return bool(found == timeout)


def sweep(run: Path) -> None:
    """Removes what killed processes left half written in and beside a run folder."""
    remove_hidden(run)
    for directory in (run, run / CHECKPOINTS, run / SNAPSHOTS):
        files.remove_temporary(directory)


def write_config(run: Path, config: Config) -> None:
    """Writes config.json in the current schema."""
    files.write_json(run / CONFIG, {"schema": SCHEMA, **asdict(config)})


def remove_weights(run: Path) -> None:
    """Removes the final weights of a run that is being extended."""
    (run / WEIGHTS).unlink(missing_ok=True)


def make_directories(run: Path) -> None:
    """Makes the directories inside a run folder that don't exist."""
    for name in (CHECKPOINTS, SNAPSHOTS):
        (run / name).mkdir(exist_ok=True)


def write_status(run: Path, state: str, **values: Any) -> None:
    """Writes status.json."""
    about = {"pid": os.getpid(), "host": socket.gethostname(), "updated": time.time()}
    files.write_json(run / STATUS, {"state": state, **values, **about}, durable=False)


def add_history(run: Path, event: str, **values: Any) -> None:
    """Appends an event to history.jsonl."""
    row = {"event": event, "time": int(time.time()), **values}
    with open(run / HISTORY, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _object(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return files.read_json(path)
    except ValueError as error:
        problems.append(str(error))
        return {}


@contextlib.contextmanager
def lock(run: Path) -> Iterator[None]:
    """Holds the lock of the folder of a run or a study.

    The operating system releases it when the process ends, however it ends, so the lock of a dead
    process never has to be removed by hand.

    Raises:
        UserError: if another process, or another part of this one, holds it.
    """
    from filelock import FileLock, Timeout

    held = FileLock(run / LOCK, timeout=0)
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
            files.write_json(run / LOCK_HOLDER, about, durable=False)
        yield
    finally:
        with contextlib.suppress(OSError):
            (run / LOCK_HOLDER).unlink()
        held.release()


def wait_until_free(run: Path, seconds: float) -> None:
    """Waits until no process holds the lock of a run folder, at most for so many seconds."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(Timeout, OSError), FileLock(run / LOCK, timeout=seconds):
        pass


def _holder(run: Path) -> str:
    try:
        about = files.read_json(run / LOCK_HOLDER)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["started"]))
        return f"process {about['pid']} on {about['host']} since {since}"
    except (ValueError, KeyError, TypeError, OSError):  # locked, but not written yet
        return "another process"
