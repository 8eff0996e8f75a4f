"""TensorBoard events in RUN/tensorboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.run.folder import TENSORBOARD


def check_installed() -> None:
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
