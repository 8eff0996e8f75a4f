"""The fused CPU kernel of native.cpp, loaded by ctypes.

`forward`, `forward_` and `backward` answer None where the kernel doesn't apply; the caller then
takes the plain torch path. The environment variable MPELU_BACKEND (`eager`, or an instruction
set: `avx512`, `avx2`, `portable`) overrides the choice made when the package is imported.
"""

from __future__ import annotations

import ctypes
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch  # before the library is loaded: both then share torch's OpenMP threads
from torch import Tensor

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_OUT_OF_MEMORY = 2


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None, and the reason in words."""
    wanted = os.environ.get("MPELU_BACKEND", "")
    if wanted == "eager":
        return None, "MPELU_BACKEND=eager asks for plain torch operations"
    here = Path(__file__).parent
    found = [p for s in EXTENSION_SUFFIXES if (p := here / f"_native{s}").exists()]
    if not found:
        return None, "the kernel was not compiled when mpelu was installed (no C++ compiler?)"
    try:
        library = ctypes.CDLL(str(found[0]))
    except OSError as error:
        return None, f"the compiled kernel does not load: {error}"
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    library.mpelu_forward.argtypes = [pointer] * 4 + [size] * 3 + [integer] * 2
    library.mpelu_backward.argtypes = [pointer] * 7 + [size] * 3 + [integer] * 3
    library.mpelu_instructions.restype = ctypes.c_char_p
    library.mpelu_select.argtypes = [ctypes.c_char_p]
    if wanted and not library.mpelu_select(wanted.encode()):
        raise ValueError(
            f"MPELU_BACKEND: expected eager, avx512, avx2 or portable, and one this CPU has; "
            f"got {wanted!r}"
        )
    return library, "compiled when mpelu was installed, instruction set chosen at run time"


library, reason = _load()


def _is_dense(tensor: Tensor) -> bool:
    """Whether it fills its memory without gaps, in any order of dimensions."""
    return tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(tensor)


def _dense(tensor: Tensor) -> Tensor:
    """The tensor itself if it is dense, else a copy that is."""
    return tensor if _is_dense(tensor) else torch.empty_like(tensor).copy_(tensor)


def _layout(tensor: Tensor, channels: int) -> tuple[int, int, int]:
    """(outer, channels, inner) of a dense tensor in memory order."""
    if channels == 1:
        return 1, 1, tensor.numel()
    inner = tensor.stride(1)
    return tensor.numel() // (channels * inner), channels, inner


def _parameter(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.float32 and tensor.is_contiguous():
        return tensor
    return tensor.detach().to(torch.float32).contiguous()


def serves(dtype: torch.dtype) -> bool:
    return library is not None and dtype in _DTYPES


def _applies(tensor: Tensor) -> bool:
    return serves(tensor.dtype) and tensor.numel() > 0


def _check(status: int) -> bool:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("mpelu: no memory for the partial sums of the CPU kernel")
    return status == 0


def _run_forward(source: Tensor, target: Tensor, alpha: Tensor, beta: Tensor) -> bool:
    assert library is not None
    alpha, beta = _parameter(alpha), _parameter(beta)
    status = library.mpelu_forward(
        source.data_ptr(),
        target.data_ptr(),
        alpha.data_ptr(),
        beta.data_ptr(),
        *_layout(source, alpha.numel()),
        _DTYPES[source.dtype],
        torch.get_num_threads(),
    )
    return _check(status)


def forward(input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor | None:
    if not _applies(input):
        return None
    input = _dense(input)
    output = torch.empty_like(input)
    return output if _run_forward(input, output, alpha, beta) else None


def forward_(input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor | None:
    """The same in place."""
    if not _applies(input) or not _is_dense(input):
        return None
    return input if _run_forward(input, input, alpha, beta) else None


def backward(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    if not _applies(saved):
        return None
    assert library is not None
    saved = _dense(saved)
    if grad.stride() != saved.stride() or grad.dtype != saved.dtype:
        grad = torch.empty_like(saved).copy_(grad)
    wide_alpha, wide_beta = _parameter(alpha), _parameter(beta)
    grad_input = torch.empty_like(saved)
    grad_alpha, grad_beta = torch.empty_like(wide_alpha), torch.empty_like(wide_beta)
    status = library.mpelu_backward(
        grad.data_ptr(),
        saved.data_ptr(),
        grad_input.data_ptr(),
        wide_alpha.data_ptr(),
        wide_beta.data_ptr(),
        grad_alpha.data_ptr(),
        grad_beta.data_ptr(),
        *_layout(saved, alpha.numel()),
        _DTYPES[saved.dtype],
        saved_is_output,
        torch.get_num_threads(),
    )
    if not _check(status):
        return None
    return grad_input, grad_alpha.to(alpha.dtype), grad_beta.to(beta.dtype)
