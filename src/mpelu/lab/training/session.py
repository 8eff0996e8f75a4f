"""What a run changes in the process while it trains, and puts back at the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import torch

from mpelu.lab.config import Config
from mpelu.lab.training.distributed import World, join

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
