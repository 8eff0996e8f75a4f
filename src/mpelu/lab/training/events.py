"""TensorBoard events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError


def check() -> None:
    """Raises UserError unless TensorBoard is installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise UserError(
            "tensorboard: expected it to be installed (pip install 'mpelu[tensorboard]'), got none"
        ) from None


class Events:
    """Writes RUN/tensorboard.

    Args:
        run: the run folder.
        step: done before; events of later steps, left by a killed process, no longer count.
    """

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, row: dict[str, Any]) -> None:
        """The numbers of a row of metrics.jsonl."""
        for name, value in row.items():
            if isinstance(value, float):
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])

    def close(self) -> None:
        self._writer.close()
