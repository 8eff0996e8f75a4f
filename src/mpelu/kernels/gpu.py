"""The Triton kernel on GPUs: used only where it has agreed with the formula.

The first call per device and dtype runs kernel and formula on small tensors, forward and backward
(`mpelu.kernels.selfcheck`). If they differ, or the kernel fails, one warning says so and the
formula serves. MPELU_BACKEND=eager never uses the kernel, MPELU_BACKEND=triton uses it unchecked;
together with TRITON_INTERPRET=1 it serves CPU tensors too, in Triton's interpreter, for tests.

Triton is imported with the first call, since it takes longer than mpelu itself.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from mpelu.kernels import eager, native, registry, selfcheck

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Verdict(NamedTuple):
    """What serves a device and dtype: the kernel, or the formula (None); and why."""

    kernel: registry.Kernel | None
    reason: str


reason = ""
"""Why the kernel isn't registered."""
_verdicts: dict[tuple[torch.device, torch.dtype], Verdict] = {}
_lock = threading.Lock()  # DataParallel calls from one thread per device


def load() -> None:
    """Register the kernel, or say in `reason` why not."""
    global reason
    wanted = os.environ.get("MPELU_BACKEND", "")
    if wanted == "eager":
        reason = native.reason
        return
    if find_spec("triton") is None:
        if wanted == "triton":
            raise ImportError(
                "MPELU_BACKEND: expected the package triton for MPELU_BACKEND=triton, got none; "
                "install it with pip install triton"
            )
        reason = "the package triton is not installed"
        return
    registry.register("cuda", DTYPES, sys.modules[__name__])
    if wanted == "triton" and is_interpreting():
        registry.register("cpu", DTYPES, sys.modules[__name__])


def is_interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def forward(
    input: Tensor, alpha: Tensor, beta: Tensor, dim: int, inplace: bool = False
) -> tuple[Tensor, bool] | None:
    """The output, and whether it suffices for `backward`: it doesn't.

    To know whether the output suffices, the values of alpha would have to come from the device.
    """
    eager.check(input, alpha, beta, dim)
    kernel = _trusted(input)
    if kernel is None or not registry.has_memory(input, alpha, beta):
        return None
    return kernel.forward(input, _plain(alpha), _plain(beta), dim, inplace)


def backward(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Gradients of input, alpha and beta."""
    kernel = _trusted(saved)
    if kernel is None or not registry.has_memory(grad, saved, alpha, beta):
        return None
    return kernel.backward(grad, saved, _plain(alpha), _plain(beta), dim, saved_is_output)


def verdict(device: torch.device, dtype: torch.dtype) -> Verdict:
    """What serves a device with an index, and a dtype; runs the self-check if it hasn't run."""
    with _lock:
        if (device, dtype) not in _verdicts:
            _verdicts[device, dtype] = _verify(device, dtype)
        return _verdicts[device, dtype]


def _trusted(tensor: Tensor) -> registry.Kernel | None:
    found = _verdicts.get((tensor.device, tensor.dtype))
    if found is None:
        # The self-check waits for the device, which a CUDA graph can't record.
        if _is_capturing(tensor.device):
            return None
        found = verdict(tensor.device, tensor.dtype)
    return found.kernel


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _verify(device: torch.device, dtype: torch.dtype) -> Verdict:
    try:
        kernel: registry.Kernel = import_module("mpelu.kernels.triton")
        if os.environ.get("MPELU_BACKEND") == "triton":
            return Verdict(kernel, "MPELU_BACKEND=triton asks for it, unchecked")
        failures = [
            str(result)
            for case in selfcheck.QUICK
            for result in selfcheck.compare(kernel, device, dtype, case)
            if not result.agrees
        ]
    except Exception as error:  # whatever Triton, its compiler or the driver raise
        failures = [f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"]
    if not failures:
        return Verdict(kernel, "agreed with the formula in the self-check")
    warnings.warn(
        f"mpelu: the Triton kernel failed its self-check on {device} for {dtype}, so plain torch "
        f"operations are used ({failures[0]}). Please report what `python -m mpelu.kernels` "
        "prints; set MPELU_BACKEND=eager to silence this warning.",
        RuntimeWarning,
        stacklevel=2,
    )
    return Verdict(None, f"the self-check failed ({failures[0]})")


def _plain(parameter: Tensor) -> Tensor:
    return parameter.detach().resolve_neg().contiguous()


load()
