"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, slots=True)
class Tally:
    """Sums of loss and errors over samples."""

    loss: float = 0.0
    wrong: float = 0.0
    count: float = 0.0

    def add(self, loss: float, wrong: float, count: float) -> None:
        self.loss += loss
        self.wrong += wrong
        self.count += count

    def means(self) -> tuple[float, float]:
        """Mean loss, and error in %."""
        return self.loss / max(1, self.count), 100 * self.wrong / max(1, self.count)


@dataclass(kw_only=True, slots=True)
class State:
    """Where a run stands, besides weights, optimizer and logs."""

    step: int = 0
    test_error: float | None = None
    best_error: float | None = None
    best_step: int | None = None
    since_epoch: Tally = field(default_factory=Tally)
    since_log: Tally = field(default_factory=Tally)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> State:
        tallies = {name: Tally(**values[name]) for name in ("since_epoch", "since_log")}
        return cls(**{**values, **tallies})

    def errors(self) -> dict[str, Any]:
        """For status.json."""
        return {
            "test_error": self.test_error,
            "best_error": self.best_error,
            "best_step": self.best_step,
        }
