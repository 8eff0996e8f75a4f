"""The processes of a run: one, or those torchrun started."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import distributed as dist

from mpelu.lab.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Who takes part and which of them this process is."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes, in double precision."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def gather(self, value: T) -> list[T]:
        """The values of all processes in order of rank."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def same_buffers(self, model: torch.nn.Module) -> None:
        """Gives every process the main one's buffers: each has statistics of its own samples."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def on_main(self, action: Callable[[], T]) -> T | None:
        """Runs the action in the main process; all raise its UserError."""
        result, error = None, None
        if self.is_main:
            try:
                result = action()
            except UserError as raised:
                error = str(raised)
        self._raise_first(error)
        return result

    def in_turn(self, action: Callable[[], T]) -> T:
        """Runs the action in the main process, then in the others, so that they find its files."""
        result = self.on_main(action)
        error = None
        if not self.is_main:
            try:
                result = action()
            except UserError as raised:
                error = str(raised)
        self._raise_first(error)
        assert result is not None
        return result

    def _raise_first(self, error: str | None) -> None:
        for each in self.gather(error):
            if each is not None:
                raise UserError(each)


@contextlib.contextmanager
def join(device: str) -> Iterator[World]:
    """The processes torchrun started, told by its environment variables, or this one alone.

    A process group that is there already is taken as it is.

    Args:
        device: "auto", "cpu" or "cuda".
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device: expected a GPU that torch can use, got none")
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if size == 1:
        yield World(device=torch.device(kind))
        return
    place = torch.device(kind)
    if kind == "cuda":
        place = torch.device(kind, int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    own = not dist.is_initialized()
    if own:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield World(device=place, rank=dist.get_rank(), size=size)
    finally:
        # DistributedDataParallel refers to itself and to the group. Left to the end of the process,
        # the group's threads are sometimes torn down alive, which aborts it.
        gc.collect()
        if own:
            dist.destroy_process_group()
