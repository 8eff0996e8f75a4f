"""The fused CPU kernel of native.cpp, loaded by ctypes.

`forward` and `backward` return None if the kernel doesn't apply; the caller then uses plain torch
operations. The environment variable MPELU_BACKEND (`eager`, or an instruction set: `avx512`,
`avx2`, `portable`) overrides the choice made when the package is imported; `triton` keeps it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import torch  # before the library is loaded: both then share torch's OpenMP threads
from torch import Tensor, empty_like, get_num_threads, strided
from torch._C import _is_cow_tensor  # type: ignore[attr-defined]
from torch.nn import Parameter

from mpelu.kernels import eager, registry
from mpelu.kernels.eager import Kept
from mpelu.kernels.layout import as_dense

# (number in native.cpp, dtype of the parameters)
_TYPES = {
    torch.float32: (0, torch.float32),
    torch.bfloat16: (1, torch.float32),
    torch.float16: (2, torch.float32),
    torch.float64: (3, torch.float64),
}
_ABI = 2  # `abi` in call.h
_DONE, _DONE_KEEP_INPUT, _DONE_WITH_BITS = range(3)
_OUTSIDE_DOMAIN, _OUT_OF_MEMORY, _NOT_PLAIN, _NOT_FINITE, _NEEDS_BITS = range(3, 8)
# One block of memory in the order of `Call` in call.h, because ctypes would take half a microsecond
# longer to convert that many arguments.
_pack_forward = struct.Struct("9qd3q24x").pack
_pack_backward = struct.Struct("9qd6q").pack

_INSTRUCTIONS = ("avx512", "avx2", "portable")
_WRONG_BACKEND = (
    "MPELU_BACKEND: expected eager, triton or an instruction set of this CPU (avx512, avx2 or "
    "portable), got {!r}"
)

# Functions of Python that binding.cpp uses.
_PYTHON = (
    "PyCFunction_NewEx",
    "PyLong_AsLongLong",
    "PyLong_FromLong",
    "PyErr_Occurred",
    "PyErr_Clear",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)

library: Any = None
reason = ""
# Built-in functions that take tensors directly, or None if this torch doesn't describe tensors to
# C. All calls are then prepared in Python, which costs a microsecond or two.
_forward: Any = None
_backward: Any = None


def load() -> None:
    """Loads the library and registers it, or states in `reason` why not."""
    global library, reason, _forward, _backward
    wanted = os.environ.get("MPELU_BACKEND", "")
    library = _forward = _backward = None
    if wanted not in ("", "eager", "triton", *_INSTRUCTIONS):
        raise ValueError(_WRONG_BACKEND.format(wanted))
    if wanted == "eager":
        reason = "MPELU_BACKEND=eager asks for plain torch operations"
        return
    path = Path(__file__).with_name("_native.so")
    advice = (
        "Install mpelu again, without pip's cache and with a C++ compiler (g++ or clang++), or run "
        "python setup.py build_ext --inplace in a checkout; set"
    )
    try:
        found = ctypes.CDLL(str(path)) if path.exists() else None
        if found is None and sys.platform == "win32":
            reason = "there is no CPU kernel for Windows"
            advice = "Set"
        elif found is None:
            reason = "the CPU kernel was not compiled when mpelu was installed"
        elif not hasattr(found, "mpelu_abi") or found.mpelu_abi() != _ABI:
            reason = "the compiled CPU kernel is from another version of mpelu"
        else:
            library = found
    except OSError as error:
        reason = f"the compiled CPU kernel can't be loaded ({error})"
    if library is None:
        warnings.warn(
            f"mpelu: {reason}, so plain torch operations are used, which take about 14 times as "
            f"long. {advice} MPELU_BACKEND=eager to silence this warning.",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    library.mpelu_instructions.restype = ctypes.c_char_p
    if wanted in _INSTRUCTIONS and not library.mpelu_select(wanted.encode()):
        raise ValueError(_WRONG_BACKEND.format(wanted))
    reason = "compiled when mpelu was installed, instruction set chosen at run time"
    _forward, _backward = _functions(path)
    registry.register("cpu", tuple(_TYPES), sys.modules[__name__])


def _functions(path: Path) -> tuple[Any, Any]:
    """Returns `forward` and `backward` of binding.cpp, if torch describes tensors to C."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None, None
    python = ctypes.pythonapi
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    make = ctypes.PyDLL(str(path)).mpelu_function
    make.restype = ctypes.py_object
    try:
        exchange = prototype(("PyCapsule_GetPointer", python))(capsule, b"dlpack_exchange_api")
        addresses = [ctypes.cast(getattr(python, name), ctypes.c_void_p).value for name in _PYTHON]
        environment = struct.pack("9Qd", exchange, *addresses, id(None), eager.MIN_BETA)
        return make(environment, 0), make(environment, 1)
    except ValueError:  # torch has another form of the table: no such capsule, or null from `make`
        return None, None


def forward(
    input: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    by_slope: bool = False,
    is_differentiated: bool = True,
    inplace: bool = False,
) -> tuple[Tensor, Kept] | None:
    """Returns the output and what `backward` needs.

    Args:
        input: CPU tensor of a dtype the kernel is registered for.
        first: alpha or slope, a tensor of shape [1] or [channels].
        second: beta or rate, like first.
        dim: channel dimension.
        by_slope: whether the parameters are slope and rate.
        is_differentiated: whether `backward` will be called.
        inplace: overwrite the input.
    """
    if _forward is not None and not inplace and not _is_special(input, first, second):
        output, bits = empty_like(input), None
        options = dim, get_num_threads(), by_slope, is_differentiated
        status = _forward(input, output, first, second, *options, None)
        if status == _NEEDS_BITS:
            bits = _empty_bits(input.numel())
            status = _forward(input, output, first, second, *options, bits)
        if status <= _DONE_WITH_BITS:
            return output, _kept(status, bits)
        if status != _NOT_PLAIN:
            _raise_if_out_of_memory(status)
            return None
    return _forward_prepared(input, first, second, dim, by_slope, is_differentiated, inplace)


def _empty_bits(size: int) -> Tensor:
    return torch.empty(eager.bytes_of_bits(size), dtype=torch.uint8)


def _kept(status: int, bits: Tensor | None) -> Kept:
    return status == _DONE if bits is None else bits


def _forward_prepared(
    input: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    by_slope: bool,
    is_differentiated: bool,
    inplace: bool,
) -> tuple[Tensor, Kept] | None:
    number, wide = _TYPES[input.dtype]
    source = input
    if not (_are_plain(input, first, second, dim, wide) and input.is_contiguous()):
        eager.check(input, first, second, dim, by_slope)
        if not registry.has_memory(input, first, second):
            return None
        source, first, second = as_dense(input), _plain(first, wide), _plain(second, wide)
    size, channels = source.numel(), first.numel()
    if not size:
        return None
    inner = size if channels == 1 else source.stride()[dim]
    output = source if inplace else empty_like(source)

    def call(bits: Tensor | None) -> int:
        status: int = library.mpelu_forward(
            _pack_forward(
                source.data_ptr() if source is output else _address(source),
                output.data_ptr(),
                _address(first),
                _address(second),
                size // (channels * inner),
                channels,
                inner,
                number,
                get_num_threads(),
                eager.MIN_BETA,
                by_slope,
                0 if bits is None else bits.data_ptr(),
                is_differentiated,
            )
        )
        return status

    bits = None
    try:
        status = call(None)
        if status == _NEEDS_BITS:
            bits = _empty_bits(size)
            status = call(bits)
    except RuntimeError:  # a wrapper without memory of its own, left over from a transform
        return None
    if status > _DONE_WITH_BITS:
        _raise_if_out_of_memory(status)
        return None
    if inplace and output is not input:  # a slice, or another view that the kernel can't write to
        output = input.copy_(output)
    return output, _kept(status, bits)


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
    if _backward is not None and not _is_special(saved, first, second, grad):
        grads = empty_like(saved), empty_like(first), empty_like(second)
        status = _backward(
            saved,
            grads[0],
            first,
            second,
            grad,
            grads[1],
            grads[2],
            dim,
            get_num_threads(),
            by_slope,
            kept is not False,
            kept if isinstance(kept, Tensor) else None,
        )
        if status == _DONE or (
            status == _NOT_FINITE and not by_slope and not _are_finite(grad, saved)
        ):
            return grads
        if status != _NOT_PLAIN:
            _raise_if_out_of_memory(status)
            return None
    return _backward_prepared(grad, saved, first, second, dim, kept, by_slope)


def _backward_prepared(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool,
) -> tuple[Tensor, Tensor, Tensor] | None:
    number, wide = _TYPES[saved.dtype]
    source, one, other = saved, first, second
    if not (
        _are_plain(saved, first, second, dim, wide)
        and grad.dtype is saved.dtype
        and grad.is_contiguous()
        and saved.is_contiguous()
        and not grad.is_neg()
    ):
        eager.check(saved, first, second, dim, by_slope)
        if not registry.has_memory(grad, saved, first, second):
            return None
        source, one, other = as_dense(saved), _plain(first, wide), _plain(second, wide)
        if grad.dtype is not saved.dtype or grad.is_neg() or grad.stride() != source.stride():
            grad = empty_like(source).copy_(grad)
    size, channels = source.numel(), one.numel()
    if not size:
        return None
    inner = size if channels == 1 else source.stride()[dim]
    grad_input = empty_like(source)
    grad_one, grad_other = empty_like(one), empty_like(other)
    try:
        call = _pack_backward(
            _address(source),
            grad_input.data_ptr(),
            _address(one),
            _address(other),
            size // (channels * inner),
            channels,
            inner,
            number,
            get_num_threads(),
            eager.MIN_BETA,
            by_slope,
            _address(kept) if isinstance(kept, Tensor) else 0,
            kept is not False,
            _address(grad),
            grad_one.data_ptr(),
            grad_other.data_ptr(),
        )
    except RuntimeError:  # batched by autograd's is_grads_batched
        return None
    status = library.mpelu_backward(call)
    if status != _DONE and (status != _NOT_FINITE or by_slope or _are_finite(grad, source)):
        _raise_if_out_of_memory(status)
        return None
    if one is first and other is second:
        return grad_input, grad_one, grad_other
    return grad_input, grad_one.to(first.dtype), grad_other.to(second.dtype)


def _are_plain(tensor: Tensor, alpha: Tensor, beta: Tensor, dim: int, dtype: torch.dtype) -> bool:
    """Returns whether the kernel can read the parameters directly and they fit the tensor.

    This runs at every call; each condition costs about 40 nanoseconds.
    """
    channels = alpha.numel()
    try:
        return (
            alpha.dtype is dtype
            and beta.dtype is dtype
            and beta.numel() == channels
            and (channels == 1 or tensor.shape[dim] == channels)
            and alpha.stride() == (1,)
            and beta.stride() == (1,)
            and alpha.is_cpu
            and beta.is_cpu
            and tensor.layout is strided
            and not tensor.is_nested
            and not tensor.is_neg()
            and (type(alpha) is Parameter or not alpha.is_neg())
            and (type(beta) is Parameter or not beta.is_neg())
        )
    except (IndexError, RuntimeError):  # no such dimension; a nested tensor has no shape
        return False


def _is_special(tensor: Tensor, alpha: Tensor, beta: Tensor, grad: Tensor | None = None) -> bool:
    """Returns whether a tensor has a property that C can't see: another layout, negated memory, or
    memory shared until it is written to. Describing such a tensor to C would copy it.

    Parameters have none of these.
    """
    try:
        return (
            tensor.layout is not strided
            or tensor.is_neg()
            or _is_cow_tensor(tensor)
            or (type(alpha) is not Parameter and (alpha.is_neg() or _is_cow_tensor(alpha)))
            or (type(beta) is not Parameter and (beta.is_neg() or _is_cow_tensor(beta)))
            or (grad is not None and (grad.is_neg() or _is_cow_tensor(grad)))
        )
    except NotImplementedError:  # a wrapper, which has no storage
        return True


def _address(tensor: Tensor) -> int:
    """Returns where to read a tensor; `data_ptr` alone would copy copy-on-write memory."""
    if type(tensor) is not Parameter and _is_cow_tensor(tensor):
        start: int = torch._C._data_address(tensor)  # type: ignore[attr-defined]
        return start + int(tensor.storage_offset()) * tensor.element_size()
    return tensor.data_ptr()


def _are_finite(*tensors: Tensor) -> bool:
    """Returns whether all are finite. If so but gradients aren't, the kernel's sums, which alpha
    multiplies, may have overflowed before the gradients do; torch operations then compute these.
    For slope and rate they compute all gradients that aren't finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _plain(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    return parameter.detach().to(dtype).resolve_neg().contiguous()


def _raise_if_out_of_memory(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("mpelu: no memory for the partial sums of the CPU kernel")


load()
