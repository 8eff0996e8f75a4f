"""Loggers of the user's own, such as W&B or MLflow, named as package.module:factory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpelu.lab import references
from mpelu.lab.errors import UserError, one_line

log = logging.getLogger(__name__)


def check(names: Sequence[str]) -> None:
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
