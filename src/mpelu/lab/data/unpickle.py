"""Reads the pickles of CIFAR without letting them run code.

Those files, written by Python 2, hold dicts, lists, byte strings, whole numbers and uint8 arrays.
An array names three things of numpy; each is answered by a stand-in that only keeps what it is
given. Any other name is refused, so no function of any library is ever called by a file.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import torch
from torch import Tensor

from mpelu.lab.errors import UserError


class _Kind:
    """Stands for numpy.dtype."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands for an array: keeps its state."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
}


class _Refused(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a persistent object")


def read(data: bytes, name: str) -> dict[str, Any]:
    """The dict in a CIFAR pickle, with str keys and byte strings as they are.

    Args:
        data: the file's bytes.
        name: what errors call it.

    Raises:
        UserError: if it is damaged or asks for anything but an array.
    """
    try:
        value = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except _Refused as refused:
        raise UserError(
            f"{name}: expected plain data, got a pickle that asks for {str(refused)!r}"
        ) from None
    # A damaged pickle can fail in as many ways as there are operations.
    except Exception as error:
        raise UserError(
            f"{name}: expected a whole pickle, got a damaged one ({error!r:.80})"
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{name}: expected a dict, got {type(value).__name__}")
    return {
        key.decode("ascii", "replace") if isinstance(key, bytes) else str(key): each
        for key, each in value.items()
    }


def array(value: Any, name: str) -> Tensor:
    """The uint8 array of a pickle as a tensor that owns its memory.

    Raises:
        UserError: if it is anything else.
    """
    state = value.state if isinstance(value, _Array) else None
    if not (isinstance(state, tuple) and len(state) == 5):
        raise UserError(f"{name}: expected an array, got {type(value).__name__.lstrip('_')}")
    _, shape, kind, by_column, data = state
    code = kind.code if isinstance(kind, _Kind) else None
    if code not in (b"u1", "u1"):
        raise UserError(f"{name}: expected an array of uint8, got {code!r}")
    sizes = isinstance(shape, tuple) and all(isinstance(each, int) and each >= 0 for each in shape)
    if not (sizes and isinstance(data, bytes) and len(data) == math.prod(shape)):
        length = len(data) if isinstance(data, bytes) else type(data).__name__
        raise UserError(f"{name}: expected {shape!r} bytes, got {length}")
    if not data:
        return torch.empty(shape, dtype=torch.uint8)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if by_column:
        return flat.view(shape[::-1]).permute(*range(len(shape))[::-1]).contiguous()
    return flat.view(shape)
