"""Recurrent layers: the moments of their hidden state, and the shares of their weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn

from mpelu.elementwise import LINEAR, average
from mpelu.gaussian import plain_tensors
from mpelu.graph import Call, Weights
from mpelu.init.outputs import TARGET, deviation
from mpelu.init.plan import Plan
from mpelu.init.signal import Signal, Source

_UNITS, _STEPS = 8192, 64
_FED_BY_INPUT = ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")
"""Weights of a recurrent module that take its input; the others take hidden states."""


@lru_cache(maxsize=4)
@plain_tensors()
def hidden_second(kind: str) -> float:
    """E[h^2] of a recurrent layer whose gates each see a sum of unit variance.

    By simulation with independent Gaussian sums, from a zero state to its stationary one.

    Args:
        kind: "LSTM", "GRU" or "RNN".
    """
    generator = torch.Generator().manual_seed(0)

    def sums() -> torch.Tensor:
        return torch.randn(_UNITS, generator=generator, dtype=torch.float32)

    hidden = cell = torch.zeros(_UNITS, dtype=torch.float32)
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


def recurrent_plans(
    call: Call, signal: Signal, weights: Weights, method: str, gaussian_std: float
) -> Iterator[Plan]:
    """Both weights of each layer get half of the target for the sums of its gates.

    Args:
        call: of a recurrent module.
        signal: into it.
        weights: which tensors are parameters.
        method: as for `initialize_`.
        gaussian_std: for method "gaussian".
    """
    module = call.target
    assert isinstance(module, nn.Module)
    hidden = hidden_second(type(module).__name__.removesuffix("Cell"))
    # A weight that a hook computes is a tensor beside its parameters.
    tensors = [*module.named_parameters(recurse=False), *vars(module).items()]
    for name, weight in tensors:
        path = weights.name(weight) if isinstance(weight, Tensor) else None
        if path is None or weight.dim() < 2:
            continue
        if isinstance(weight, nn.Parameter) and weights.parametrized(path) is not None:
            continue
        is_input = name in _FED_BY_INPUT
        fan = weight.size(1)
        second = (average(signal.second) or 1.0) if is_input else hidden
        share = TARGET if name.startswith("weight_hr") else TARGET / 2
        std = {
            "gaussian": gaussian_std,
            "xavier": (2 / (weight.size(0) + fan)) ** 0.5,
            "lsuv": deviation(weights.again(weight)),
        }.get(method, (share / (fan * second)) ** 0.5)
        yield Plan(
            path,
            weight,
            weights.key(weight),
            getattr(module, name.replace("weight", "bias"), None),
            weights.is_trained(weight),
            signal.sources if is_input else (Source(call.name, LINEAR),),
            float(fan),
            std,
            None,
            signal.doubts if is_input else (),
        )
