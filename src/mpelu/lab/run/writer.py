"""Writing a run folder while its run trains: logs, checkpoints, snapshots, status.

The logs are JSON Lines files that grow by a line and are cut back on resuming. metrics.jsonl holds
what a run computed. speed.jsonl holds how fast, which differs from one time to the next; it is kept
apart so that the metrics of a resumed run are equal byte for byte. The rows of metrics.jsonl also
go to metrics.csv, to TensorBoard and to loggers of the user's own, such as W&B or MLflow.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab import files, references
from mpelu.lab.errors import UserError, one_line
from mpelu.lab.files import (
    DIGEST,
    LENGTH,
    hash_start,
    record_log,
)
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.run.folder import CSV, LOGS, METRICS, SPEED, TENSORBOARD, read_rows

if TYPE_CHECKING:
    from torch import Tensor, nn


class RunWriter:
    """Writes logs, checkpoints, snapshots, status and final weights.

    Args:
        run: the run folder. It needs to exist when something is first written.
        enabled: whether this process writes; otherwise all methods do nothing.
        write_events: also write TensorBoard events.
        loggers: loggers of the user's own, as `mpelu.lab.run.writer.Loggers` takes them.
        config: fields of the config, for these loggers.

    Attributes:
        lengths: bytes of each log that are kept; the rest, which is later than the checkpoint that
            was restored, is cut off.
    """

    def __init__(
        self,
        run: Path,
        *,
        enabled: bool = True,
        write_events: bool = False,
        loggers: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.run = run
        self.enabled = enabled
        self.lengths: dict[str, int] = dict.fromkeys(LOGS, 0)
        self._write_events = write_events
        self._logs: dict[str, Log] = {}
        self._events: EventWriter | None = None
        self._names, self._config = loggers, config or {}
        self._loggers: Loggers | None = None

    def open(self, **status: Any) -> None:
        """Opens the logs, writes that the run goes on, and cuts the logs to `lengths`.

        In this order, status.json never tells of more than the logs hold.

        Args:
            **status: as for `status`.
        """
        if self.enabled:
            self._logs = {name: Log(self.run / name, self.lengths[name]) for name in LOGS}
            self.status("running", **status)
            for log in self._logs.values():
                log.cut()
            if self._names:
                self._loggers = Loggers(self._names, self.run, self._config, status["step"])

    def metrics(self, row: dict[str, Any]) -> None:
        """Appends a row to metrics.jsonl."""
        if not self.enabled:
            return
        self._logs[METRICS].write(row)
        if self._loggers is not None:
            self._loggers.write(row)
        if self._write_events:
            if self._events is None:
                self._events = EventWriter(self.run, row["step"])
            self._events.write(row)

    def speed(self, row: dict[str, Any]) -> None:
        """Appends a row to speed.jsonl."""
        if self.enabled:
            self._logs[SPEED].write(row)

    def snapshot(self, epoch: int, model: nn.Module) -> None:
        """Records the learnable parameters of activations."""
        if self.enabled:
            checkpoint.write_snapshot(self.run, epoch, model)

    def save(self, step: int, contents: dict[str, Any], *, best: bool) -> None:
        """Writes a checkpoint."""
        if self.enabled:
            for log in self._logs.values():
                log.sync()
            records = {name: log.record() for name, log in self._logs.items()}
            checkpoint.save(self.run, step, {**contents, "logs": records}, best=best)

    def weights(self, weights: Mapping[str, Tensor]) -> None:
        """Writes the final weights."""
        if self.enabled:
            checkpoint.write_weights(self.run, weights)

    def status(self, state: str, **values: Any) -> None:
        """Writes status.json, with length and checksum of each log."""
        if self.enabled:
            logs = {name: log.record() for name, log in self._logs.items()} or {
                name: record_log(self.run / name, length) for name, length in self.lengths.items()
            }
            if (self.run / folder.HISTORY).exists():
                logs[folder.HISTORY] = record_log(self.run / folder.HISTORY)
            folder.write_status(self.run, state, **values, logs=logs)

    def close(self) -> None:
        """Closes what is open, however the run ended, and writes metrics.csv."""
        for log in self._logs.values():
            log.close()
        if self._logs:
            write_csv(self.run)
        if self._loggers is not None:
            self._loggers.close()
        if self._events is not None:
            self._events.close()


_COLUMNS = (
    "kind", "step", "epoch", "loss", "error", "train_loss", "train_error", "validation_loss",
    "validation_error", "test_loss", "test_error", "lr",
)  # fmt: skip


class Log:
    """A JSON Lines file that is open for appending.

    Args:
        path: the file.
        length: bytes of it that are kept; `cut` removes the rest.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._hash = hash_start(path, length)
        self._file = open(path, "ab")  # noqa: SIM115
        self._length = length

    def cut(self) -> None:
        """Cuts off what isn't kept."""
        self._file.truncate(self._length)

    def write(self, row: dict[str, Any]) -> None:
        """Appends a line and hands it to the operating system."""
        line = (json.dumps(row) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        self._length += len(line)
        self._hash.update(line)

    def sync(self) -> None:
        """Waits until all lines are on the disk."""
        os.fsync(self._file.fileno())

    def record(self) -> dict[str, Any]:
        """Length in bytes and SHA-256."""
        return {LENGTH: self._length, DIGEST: self._hash.hexdigest()}

    def close(self) -> None:
        """Closes the file. Nothing is lost if that fails: every line has been flushed."""
        with contextlib.suppress(OSError):
            self._file.close()


def write_csv(run: Path) -> None:
    """Writes metrics.csv, if the disk lets it."""
    with contextlib.suppress(OSError):  # all of it is in metrics.jsonl
        files.write(run / CSV, csv_of(run), durable=False)


def csv_of(run: Path) -> str:
    """The rows of metrics.jsonl as a table, with a column for each name."""
    rows, _ = read_rows(run / METRICS)
    names = {name for row in rows for name in row}
    columns = [name for name in _COLUMNS if name in names]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


log = logging.getLogger(__name__)


def check_loggers(names: Sequence[str]) -> None:
    """Raises UserError unless every name is that of a callable that can be imported."""
    for name in names:
        if not references.is_reference(name):
            raise UserError(f"expected package.module:factory, got {name!r}", field="logger")
        references.load("logger", name)


class Loggers:
    """Hands rows of metrics to loggers. One that fails is left out from then on.

    Args:
        names: references to functions that return a logger: an object with `log(values, step=...)`
            and `finish()`, as W&B's run. They are given `run` (the run folder), `config` (all
            fields) and `step` (the last step that is done), as far as they take them.
        run: the run folder.
        config: the fields of the config.
        step: the last step that is done; 0 for a run that begins.

    Raises:
        UserError: if a logger can't be made.
    """

    def __init__(
        self, names: Sequence[str], run: Path, config: Mapping[str, Any], step: int
    ) -> None:
        self._loggers: list[tuple[str, Any]] = []
        offered = {"run": str(run), "config": dict(config), "step": step}
        for name in names:
            made = references.call("logger", name, offered=offered)
            if not all(callable(getattr(made, each, None)) for each in ("log", "finish")):
                raise UserError(
                    f"{name}: expected an object with log and finish, got {type(made).__name__}",
                    field="logger",
                )
            self._loggers.append((name, made))
        self._failed: set[int] = set()

    def write(self, row: Mapping[str, Any]) -> None:
        """Hands on the numbers of a row of metrics.jsonl, each as kind/name."""
        values = {
            f"{row['kind']}/{name}": value
            for name, value in row.items()
            if isinstance(value, float)
        }
        for index, (name, logger) in enumerate(self._loggers):
            if index not in self._failed:
                try:
                    logger.log(values, step=row["step"])
                except Exception as error:  # training doesn't depend on it
                    self._failed.add(index)
                    _warn(name, error)

    def close(self) -> None:
        """Finishes every logger, however the run ended."""
        for name, logger in self._loggers:
            try:
                logger.finish()
            except Exception as error:
                _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    log.warning(
        "the logger %s failed and gets nothing more (%s: %s)",
        name,
        type(error).__name__,
        one_line(error),
    )


def check_tensorboard() -> None:
    """Raises UserError unless TensorBoard is installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise UserError(
            "expected TensorBoard to be installed; install it in the directory of mpelu with: "
            "pip install '.[tensorboard]'",
            field="tensorboard",
        ) from None


class EventWriter:
    """Writes rows of metrics.jsonl as TensorBoard events.

    Args:
        run: the run folder.
        step: the first step to be written; earlier processes' events from there on are discarded.
    """

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / TENSORBOARD), purge_step=step)

    def write(self, row: dict[str, Any]) -> None:
        """Adds the numbers of a row."""
        for name, value in row.items():
            if isinstance(value, float):
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])

    def close(self) -> None:
        """Flushes and closes the file."""
        self._writer.close()
