"""How the operator runs: plain torch operations everywhere, a fused kernel on the CPU."""

from __future__ import annotations

from typing import NamedTuple

from mpelu.kernels import native


class Backend(NamedTuple):
    """What computes MPELU on the CPU, and why."""

    name: str
    instructions: str
    reason: str

    def __str__(self) -> str:
        detail = f" ({self.instructions})" if self.instructions else ""
        return f"{self.name}{detail}: {self.reason}"


def backend() -> Backend:
    """Which implementation serves tensors on the CPU, and why.

    `mpelu.kernels.registry` has the table of kernels by device and dtype, and decides which way a
    call takes.

    Example:
        >>> mpelu.kernels.backend().name in ("native", "eager")
        True
    """
    if native.library is None:
        return Backend("eager", "", native.reason)
    return Backend("native", native.library.mpelu_instructions().decode(), native.reason)


__all__ = ["Backend", "backend"]
