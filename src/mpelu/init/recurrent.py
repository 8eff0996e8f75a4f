"""Recurrent layers: the moments of their hidden state, and the shares of their weights."""

from __future__ import annotations

from functools import lru_cache

import torch

_UNITS, _STEPS = 8192, 64


@lru_cache(maxsize=4)
def hidden_second(kind: str) -> float:
    """E[h^2] of a recurrent layer whose gates each see a sum of unit variance.

    By simulation with independent Gaussian sums, from a zero state to its stationary one.

    Args:
        kind: "LSTM", "GRU" or "RNN".
    """
    generator = torch.Generator().manual_seed(0)

    def sums() -> torch.Tensor:
        return torch.randn(_UNITS, generator=generator)

    hidden = cell = torch.zeros(_UNITS)
    for _ in range(_STEPS):
        if kind == "LSTM":
            cell = torch.sigmoid(sums()) * cell + torch.sigmoid(sums()) * torch.tanh(sums())
            hidden = torch.sigmoid(sums()) * torch.tanh(cell)
        elif kind == "GRU":
            update = torch.sigmoid(sums())
            hidden = update * hidden + (1 - update) * torch.tanh(sums())
        else:
            hidden = torch.tanh(sums())
    return hidden.square().mean().item()
