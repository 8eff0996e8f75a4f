"""The processes of a run: this one alone, or those started by torchrun."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from mpelu.lab.config import DEVICES
from mpelu.lab.errors import UserError, choose

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The processes of a run, seen from one of them."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    @property
    def reads_freely(self) -> bool:
        """Whether values can be read at any time. A GPU has to finish all work before."""
        return self.device.type == "cpu"

    def share(self, indices: Tensor) -> Tensor:
        """This process's part of the indices: contiguous, and equal in length up to one."""
        return indices.tensor_split(self.size)[self.rank]

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes, in double precision."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in order of rank. Also a barrier."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast_buffers(self, model: torch.nn.Module) -> None:
        """Gives every process the buffers of the main one, such as batch norm statistics."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def on_main(self, action: Callable[[], T]) -> T | None:
        """Runs the action in the main process; if it raises UserError, all processes do."""
        result, error = None, None
        if self.is_main:
            result, error = _attempt(action)
        self._raise_first(error)
        return result

    def main_first(self, action: Callable[[], T]) -> T:
        """Runs the action in the main process, then in the others, which find its files."""
        result = self.on_main(action)
        error = None
        if not self.is_main:
            result, error = _attempt(action)
        self._raise_first(error)
        assert result is not None
        return result

    def _raise_first(self, error: UserError | None) -> None:
        told = None if error is None else (error.message, error.field)
        for each in self.gather(told):
            if each is not None:
                message, field = each
                raise UserError(message, field=field) from error


def _attempt(action: Callable[[], T]) -> tuple[T | None, UserError | None]:
    try:
        return action(), None
    except UserError as error:
        return None, error


def device_for(name: str) -> torch.device:
    """The device that a value of Config's `device` stands for on this machine.

    Raises:
        UserError: for a GPU that torch can't use here.
    """
    choose("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device available", field="device")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("no MPS device available", field="device")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@contextlib.contextmanager
def join(device: str) -> Iterator[World]:
    """Joins the processes that torchrun started, or stands for this one alone.

    An existing process group is used as it is.

    Args:
        device: value of Config's `device`.
    """
    place = device_for(device)
    size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if size == 1:
        yield World(device=place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    own = not dist.is_initialized()
    if own:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(device=place, rank=dist.get_rank(), size=size)
    finally:
        # DistributedDataParallel refers to itself and to the group. If it outlives the group, the
        # group's threads are sometimes torn down alive, which aborts the process.
        gc.collect()
        if own:
            dist.destroy_process_group()
