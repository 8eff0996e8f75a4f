"""Numbers that are the same for all channels, or one for each.

Most are the same for all, and plain floats make the walk through a deep network several times as
fast as tensors with one element.
"""

from __future__ import annotations

import torch
from torch import Tensor

Value = float | Tensor
"""A number for all channels, or a float64 tensor of shape [channels]."""


def as_value(value: float | Tensor) -> Value:
    """A plain number where all channels are equal, as they are in a new activation."""
    if not isinstance(value, Tensor):
        return float(value)
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value  # sharded
    numbers: list[float] = whole.detach().reshape(-1).tolist()
    if numbers.count(numbers[0]) == len(numbers):
        return numbers[0]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def average(value: Value) -> float:
    return value.mean().item() if isinstance(value, Tensor) else value


def size_of(value: Value) -> int:
    return value.numel() if isinstance(value, Tensor) else 1


def fit(value: Value, size: int) -> Tensor:
    """One number for each of `size` channels; flattened maps repeat theirs, else the mean."""
    if not isinstance(value, Tensor):
        return torch.full((size,), value, dtype=torch.float64, device="cpu")
    if value.numel() == size:
        return value
    if size % value.numel() == 0:
        return value.repeat_interleave(size // value.numel())
    return value.mean().expand(size)
