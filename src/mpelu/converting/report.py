"""What a conversion did to each activation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class ConvertedActivation:
    """One activation of the model."""

    path: str
    """Of the activation in the model; of the module that calls it if it is a function."""
    was: str
    """Its class or function."""
    is_swapped: bool
    channels: tuple[int, ...] = ()
    """One number, or several where the width of the input chooses; (1,) if all channels share
    alpha and beta, none if they come with the first input."""
    dim: int | None = None
    """Dimension of the channels."""
    source: str = ""
    """What says which dimension that is."""
    error: float | None = None
    """With keep_function: the largest difference to the function it was, on the example inputs."""
    note: str = ""
    """Why it was left, or what to know."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The converted model, and what became of each of its activations; print it for a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2), nn.Sigmoid())
        >>> print(mpelu.convert(model, torch.randn(4, 8)))
        activation  was   now        dim  channels from  note
        1           ReLU  MPELU(16)   -1  0 (Linear)
        converted in place: go on with the model you gave
    """

    model: nn.Module
    """The model that was given, converted in place."""
    rows: tuple[ConvertedActivation, ...]
    difference: float | None = None
    """With keep_function: the largest difference of the model's outputs on the example inputs,
    divided by the largest output."""
    rewritten: tuple[str, ...] = ()
    """With rewrite=True: the classes of the modules that have new code."""

    @property
    def swapped(self) -> tuple[ConvertedActivation, ...]:
        """The activations that are MPELUs now."""
        return tuple(row for row in self.rows if row.is_swapped)

    @property
    def left(self) -> tuple[ConvertedActivation, ...]:
        """The activations that are as they were; `note` says why."""
        return tuple(row for row in self.rows if not row.is_swapped)

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings and lists."""
        return {"rows": [asdict(row) for row in self.rows], "difference": self.difference}

    def __str__(self) -> str:
        header = ["activation", "was", "now", "dim", "channels from", "note"]
        cells = [
            [
                row.path or "(model)",
                row.was,
                _now(row),
                "" if row.dim is None else str(row.dim),
                row.source,
                _note(row),
            ]
            for row in self.rows
        ]
        lines = [header, *cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(
                cell.rjust(width) if index == 3 else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        if self.difference is not None:
            table.append(
                f"outputs differ by at most {self.difference:.1e} of the largest, on these inputs"
            )
        code = f", with new code for {', '.join(self.rewritten)}" if self.rewritten else ""
        table.append(f"converted in place{code}: go on with the model you gave")
        return "\n".join(table)


def _now(row: ConvertedActivation) -> str:
    if not row.is_swapped:
        return "as it was"
    return f"MPELU({' or '.join(map(str, row.channels)) or '?'})"


def _note(row: ConvertedActivation) -> str:
    error = "" if row.error is None else f"off by at most {row.error:.1e}"
    return "; ".join(part for part in (error, row.note) if part)
