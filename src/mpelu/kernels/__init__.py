"""Implementations of the operator: plain torch operations, and fused kernels for CPUs and GPUs."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mpelu.kernels import gpu, native, registry


class Backend(NamedTuple):
    """Implementation that computes MPELU, and the reason for it."""

    name: str
    instructions: str
    reason: str

    def __str__(self) -> str:
        detail = f" ({self.instructions})" if self.instructions else ""
        return f"{self.name}{detail}: {self.reason}"


def backend(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Backend:
    """Returns which implementation serves eager tensors of a device and dtype, and why.

    For a GPU, it runs the kernel's self-check if that hasn't run yet. `mpelu.kernels.registry` has
    the table of kernels by device and dtype, and decides which route a call takes.

    Example:
        >>> mpelu.kernels.backend().name in ("native", "eager")
        True
    """
    device = torch.device(device)
    kernel = registry.KERNELS.get(device.type, {}).get(dtype)
    if kernel is gpu:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        found = gpu.verdict(device, dtype)
        interpreter = "interpreter" if gpu.is_interpreting() else ""
        return Backend("eager" if found.kernel is None else "triton", interpreter, found.reason)
    if kernel is native:
        return Backend("native", native.library.mpelu_instructions().decode(), native.reason)
    if device.type == "cpu" and native.library is None:
        return Backend("eager", "", native.reason)
    reason = gpu.reason if device.type == "cuda" and dtype in gpu.DTYPES else ""
    return Backend("eager", "", reason or f"there is no kernel for {device.type} and {dtype}")


__all__ = ["Backend", "backend"]


def __dir__() -> list[str]:
    return __all__
