"""Writing a run folder while its run trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.checksums import record_log
from mpelu.lab.run import checkpoint, folder, snapshots
from mpelu.lab.run.loggers import Loggers
from mpelu.lab.run.metrics import LOGS, METRICS, SPEED, Log, write_csv
from mpelu.lab.run.tensorboard import EventWriter

if TYPE_CHECKING:
    from torch import Tensor, nn


class RunWriter:
    """Writes logs, checkpoints, snapshots, status and final weights.

    Args:
        run: the run folder. It needs to exist when something is first written.
        enabled: whether this process writes; otherwise all methods do nothing.
        write_events: also write TensorBoard events.
        loggers: loggers of the user's own, as `mpelu.lab.run.loggers.Loggers` takes them.
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
            snapshots.write(self.run, epoch, model)

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
