"""The result of convert: what became of each activation, and loading the original's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpelu.converting.modules import MPELUByWidth, PendingMPELU
from mpelu.modules import MPELU


@dataclass(frozen=True, kw_only=True)
class ConvertedActivation:
    """One activation of the model."""

    path: str
    """Path of the activation in the model; of a function, path of the module that calls it."""
    was: str
    """Class or function it was."""
    is_swapped: bool
    channels: tuple[int, ...] = ()
    """One number, or several where the width of the input chooses; (1,) if all channels share
    alpha and beta, none if they come with the first input."""
    dim: int | None = None
    """Dimension of the channels."""
    source: str = ""
    """What the dimension was taken from."""
    error: float | None = None
    """With keep_function: the largest difference to the function it was, on the example inputs."""
    note: str = ""
    """Why it was left, or what to know about it."""

    @property
    def _now(self) -> str:
        widths = " or ".join(map(str, self.channels))
        return f"MPELU({widths or '?'})" if self.is_swapped else "unchanged"

    @property
    def _notes(self) -> str:
        error = "" if self.error is None else f"off by at most {self.error:.1e}"
        return "; ".join(part for part in (error, self.note) if part)


class LoadedKeys(NamedTuple):
    """Keys that model and checkpoint don't share."""

    new: list[str]
    """Alphas and betas that aren't in the checkpoint. They are unchanged."""
    dropped: list[str]
    """Parameters of activations that were swapped, such as PReLU's. With keep_function, alpha has
    taken them over."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The converted model, and what became of each of its activations; print it for a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2), nn.Sigmoid())
        >>> print(mpelu.convert(model, torch.randn(4, 8)))
        activation  was   now        dim  channels from  note
        1           ReLU  MPELU(16)   -1  0 (Linear)
        converted in place: keep using the model you passed
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
        """The activations that weren't swapped; `note` says why."""
        return tuple(row for row in self.rows if not row.is_swapped)

    def load_state_dict(self, checkpoint: Mapping[str, Any]) -> LoadedKeys:
        """Loads a checkpoint of the original model into the converted one.

        Only alphas and betas may be missing from the checkpoint. Everything is checked before
        anything is written. A checkpoint of the converted model loads too, but for that
        `model.load_state_dict` suffices.

        Args:
            checkpoint: state_dict of the original model.

        Returns:
            The keys that aren't in the checkpoint, and those that aren't in the model.

        Raises:
            ValueError: in one line, if any other key is missing or has another shape.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            >>> checkpoint = model.state_dict()
            >>> conversion = mpelu.convert(model, torch.randn(3, 4), keep_function=True)
            >>> conversion.load_state_dict(checkpoint).new
            ['1.alpha', '1.beta']
        """
        if not isinstance(checkpoint, Mapping):
            raise TypeError(
                f"load_state_dict: expected a state_dict, got {type(checkpoint).__name__}; read a "
                "file with torch.load(path, weights_only=True)"
            )
        own = self.model.state_dict()
        swapped = {
            path: module
            for path, module in self.model.named_modules()
            if type(module) in (MPELU, MPELUByWidth, PendingMPELU)
        }
        new = [key for key in own if key not in checkpoint and key.rpartition(".")[0] in swapped]
        inside = {
            key: module
            for key in checkpoint
            if key not in own and (module := _inside(key, swapped)) is not None
        }
        _check_keys("missing", [key for key in own if key not in checkpoint and key not in new])
        _check_keys(
            "unexpected", [key for key in checkpoint if key not in own and key not in inside]
        )
        for key, value in own.items():
            if key in new or is_lazy(value) or not isinstance(value, Tensor):
                continue
            given = checkpoint[key]
            if not isinstance(given, Tensor) or given.shape != value.shape:
                got = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
                raise ValueError(
                    f"load_state_dict: expected {key} of shape {list(value.shape)}, got {got}"
                )
        # A pending activation takes its own keys, such as those of several widths.
        gone = [key for key, module in inside.items() if not isinstance(module, PendingMPELU)]
        slopes = [pair for key in gone for pair in _slopes(key, inside[key], checkpoint[key])]
        kept = {key: value for key, value in checkpoint.items() if key not in gone}
        self.model.load_state_dict(kept, strict=False)
        with torch.no_grad():
            for activation, values in slopes:
                activation.slope.copy_(values)
        return LoadedKeys(new, gone)

    def to_dict(self) -> dict[str, Any]:
        """Rows and difference as plain numbers, strings and lists."""
        return {"rows": [asdict(row) for row in self.rows], "difference": self.difference}

    def __str__(self) -> str:
        lines = [["activation", "was", "now", "dim", "channels from", "note"]]
        for row in self.rows:
            dim = "" if row.dim is None else str(row.dim)
            lines.append([row.path or "(model)", row.was, row._now, dim, row.source, row._notes])
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
        table.append(f"converted in place{code}: keep using the model you passed")
        return "\n".join(table)


def _inside(key: str, swapped: Mapping[str, nn.Module]) -> nn.Module | None:
    """The swapped activation that a key of a checkpoint belongs to."""
    path = key.rpartition(".")[0]
    while path and path not in swapped:
        path = path.rpartition(".")[0]
    return swapped.get(path)


def _check_keys(what: str, keys: Sequence[str]) -> None:
    if keys:
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        raise ValueError(
            "load_state_dict: expected a checkpoint of the original, in which only MPELU's "
            f"parameters are missing; {what}: {', '.join(keys[:3])}{more}"
        )


def _slopes(key: str, module: nn.Module, slopes: Tensor) -> list[tuple[MPELU, Tensor]]:
    """MPELUs that started from a PReLU, with its slopes in the checkpoint."""
    if not getattr(module, "keeps_slopes", False):
        return []
    found = [each for each in module.modules() if type(each) is MPELU]
    for activation in found:
        if slopes.numel() not in (1, activation.num_parameters):
            raise ValueError(
                f"load_state_dict: expected {key} with 1 or {activation.num_parameters} slopes, "
                f"got {slopes.numel()}"
            )
    return [(activation, slopes) for activation in found]
