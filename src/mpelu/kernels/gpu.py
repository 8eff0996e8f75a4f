"""The Triton kernel on GPUs, used only where it has agreed with the formula.

The first call per device and dtype runs kernel and formula on small tensors, forward and backward
(`mpelu.kernels.selfcheck`). If they differ, or the kernel fails, a warning says so once and the
formula is used. MPELU_BACKEND=eager never uses the kernel, MPELU_BACKEND=triton uses it unchecked;
with TRITON_INTERPRET=1 the latter also serves CPU tensors, in Triton's interpreter, for tests.

Triton is imported at the first call, since importing it takes longer than importing mpelu.
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
from mpelu.kernels.eager import Kept

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Verdict(NamedTuple):
    """What serves a device and dtype, the kernel or the formula (None), and why."""

    kernel: registry.Kernel | None
    reason: str


reason = ""
"""Reason why the kernel isn't registered."""
_verdicts: dict[tuple[torch.device, torch.dtype], Verdict] = {}
_lock = threading.Lock()  # DataParallel calls from one thread per device


def load() -> None:
    """Registers the kernel, or states in `reason` why not."""
    global reason
    wanted = os.environ.get("MPELU_BACKEND", "")
    if wanted == "eager":
        reason = native.reason
        return
    if find_spec("triton") is None:
        if wanted == "triton":
            raise ImportError(
                "MPELU_BACKEND=triton requires the package triton; "
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
    input: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    by_slope: bool = False,
    is_differentiated: bool = True,
    inplace: bool = False,
) -> tuple[Tensor, Kept] | None:
    """Returns (output, False): backward needs the input.

    Whether the output would suffice depends on the parameters, whose values would have to be copied
    from the device.
    """
    eager.check(input, first, second, dim, by_slope)
    kernel = _trusted(input)
    if kernel is None or not registry.has_memory(input, first, second):
        return None
    return kernel.forward(
        input, _plain(first), _plain(second), dim, by_slope, is_differentiated, inplace
    )


def backward(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool = False,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns the gradients of input and parameters."""
    kernel = _trusted(saved)
    if kernel is None or not registry.has_memory(grad, saved, first, second):
        return None
    return kernel.backward(grad, saved, _plain(first), _plain(second), dim, kept, by_slope)


def verdict(device: torch.device, dtype: torch.dtype) -> Verdict:
    """Returns what serves a device with an index and a dtype, after the self-check if needed."""
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
