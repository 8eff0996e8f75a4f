"""What a run sets up in the process: other processes, device, memory, signals, random choices."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from mpelu.lab.config import DEVICES, Config
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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_MOST = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
_MALLOC_AFTER = {_M_MMAP_THRESHOLD: _MOST, _M_TRIM_THRESHOLD: 2 * _MOST, _M_MMAP_MAX: 65536}
"""glibc raises its thresholds when large blocks are freed, up to these, but stops to do so for good
once any of them is set. So they are left where they would be after training: at their defaults,
every tensor of the process would be faulted in anew from then on."""


@contextlib.contextmanager
def session(config: Config) -> Iterator[World]:
    """Joins the processes of a run; restores random state, threads and settings afterwards."""
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(join(config.device))
        is_cuda = world.device.type == "cuda"
        stack.enter_context(torch.random.fork_rng([world.device] if is_cuda else []))
        stack.enter_context(keep_freed_memory())
        if is_cuda:
            stack.enter_context(_deterministic_cuda())
        stack.callback(torch.set_num_threads, threads)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        yield world


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keeps memory that a step frees for the next one, where the C library is glibc.

    Otherwise it goes back to the system and every page is faulted in again in the next step,
    which takes up to a tenth of the time of a ResNet-20 step on a CPU.
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if not hasattr(library, "mallopt"):
        yield
        return
    assert library is not None
    library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_M_MMAP_MAX, 0)
    try:
        yield
    finally:
        for name, value in _MALLOC_AFTER.items():
            library.mallopt(name, value)
        library.malloc_trim(0)


@contextlib.contextmanager
def stop_signals(received: list[int]) -> Iterator[None]:
    """Collects the first SIGINT or SIGTERM, so that the current step can be finished and saved.

    A second signal ends the process at once. Outside the main thread nothing is collected.

    Args:
        received: the number of the signal is added to it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _deterministic_cuda() -> Iterator[None]:
    """Asks for deterministic algorithms; operations that have none warn and run all the same."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def derive(*parts: int | str) -> int:
    """A seed from 0 to 2^63 - 1 for a purpose, the same on every machine and in every process.

    Example:
        >>> derive(0, 1, "augment") == derive(0, 1, "augment") != derive(0, 2, "augment")
        True
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def epoch_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """The batches of an epoch: int64 indices, each of `count` samples exactly once.

    Args:
        count: number of training samples.
        batch_size: of all batches but the last, which holds the rest.
        seed: seed of the run.
        epoch: counted from 1.

    Example:
        >>> [len(batch) for batch in epoch_batches(10, 4, seed=0, epoch=1)]
        [4, 4, 2]
    """
    generator = torch.Generator().manual_seed(derive(seed, epoch, "order"))
    return list(torch.randperm(count, generator=generator).split(batch_size))
