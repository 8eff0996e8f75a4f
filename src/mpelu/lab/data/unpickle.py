"""Reads CIFAR's pickle files without letting them run code.

The files were written by Python 2 and contain dicts, lists, byte strings, integers and uint8
arrays. A pickled array refers to three names in numpy. Each of them is replaced by a class that
only stores what it is given, and every other name is refused, so no file can call a function.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any

import torch
from torch import Tensor

from mpelu.lab.errors import UserError


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands in for an array and keeps its state."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


_LARGE_NUMBER = re.compile(rb"r...[^\0]|r..[^\0].|p\d{6,}", re.DOTALL)
"""What an instruction to number an object 65,536 or higher looks like; pixels may too."""


class _Refused(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a persistent object")


def loads(data: bytes, name: str) -> dict[str, Any]:
    """Returns the dict in a CIFAR pickle, with its keys as strings.

    Args:
        data: the content of the file.
        name: the name of the file, for errors.

    Raises:
        UserError: if the pickle is damaged or refers to anything but an array.
    """
    try:
        _check_memo(data)
        value = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except _Refused as refused:
        raise UserError(
            f"{name}: expected plain data, got a pickle that refers to {str(refused)!r}"
        ) from None
    # A damaged pickle can raise almost anything.
    except Exception as error:
        raise UserError(f"{name}: the pickle is damaged ({error!r:.80})") from None
    if not isinstance(value, dict):
        raise UserError(f"{name}: expected a dict, got {type(value).__name__}")
    return {
        key.decode("ascii", "replace") if isinstance(key, bytes) else str(key): each
        for key, each in value.items()
    }


def _check_memo(data: bytes) -> None:
    """Raises ValueError for a pickle that numbers an object higher than it has bytes.

    The unpickler makes room for all numbers below, which for a pickle of ten bytes can be 16 GB.
    """
    if not _LARGE_NUMBER.search(data):  # which spares nearly all files the slow look at each part
        return
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise ValueError(f"it numbers an object {argument}")


def to_tensor(value: Any, name: str) -> Tensor:
    """Returns a uint8 array of a pickle as a tensor that owns its memory.

    Raises:
        UserError: if the value is anything else.
    """
    state = value.state if isinstance(value, _Array) else None
    if not (isinstance(state, tuple) and len(state) == 5):
        raise UserError(f"{name}: expected an array, got {type(value).__name__.lstrip('_')}")
    _, shape, dtype, is_column_major, data = state
    code = dtype.code if isinstance(dtype, _Dtype) else None
    if code not in (b"u1", "u1"):
        raise UserError(f"{name}: expected an array of uint8, got {code!r}")
    sizes = isinstance(shape, tuple) and all(isinstance(each, int) and each >= 0 for each in shape)
    if not (sizes and isinstance(data, bytes) and len(data) == math.prod(shape)):
        length = len(data) if isinstance(data, bytes) else type(data).__name__
        raise UserError(f"{name}: expected {shape!r} bytes, got {length}")
    if not data:
        return torch.empty(shape, dtype=torch.uint8)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if is_column_major:
        return flat.view(shape[::-1]).permute(*range(len(shape))[::-1]).contiguous()
    return flat.view(shape)
