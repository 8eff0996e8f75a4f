"""Times MPELU and torch's activations on any device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

import mpelu
from mpelu.kernels import eager


class Shape(NamedTuple):
    """Shape of a tensor to measure with; its channels are in dimension 1."""

    sizes: tuple[int, ...]
    channels_last: bool = False

    def __str__(self) -> str:
        text = "x".join(map(str, self.sizes))
        return text + ", channels_last" if self.channels_last else text


SHAPES = (
    Shape((128, 64, 32, 32)),
    Shape((128, 64, 32, 32), channels_last=True),
    Shape((64, 256, 56, 56)),
    Shape((64, 2048, 7, 7)),
    Shape((8192, 4096)),
)
"""Shapes from CIFAR and ImageNet networks, and a matrix of features."""

Activation = Callable[[Tensor], Tensor]


def activations(channels: int, device: torch.device) -> dict[str, Activation]:
    """Returns what is compared: MPELU, the formula under torch's autograd, torch's activations."""
    alpha = torch.full((channels,), 0.25, device=device, requires_grad=True)
    beta = torch.ones(channels, device=device, requires_grad=True)
    return {
        "mpelu": lambda x: mpelu.mpelu(x, alpha, beta),
        "the formula": lambda x: eager.forward(x, alpha, beta),
        "nn.PReLU": nn.PReLU(channels, device=device),
        "nn.ELU": nn.ELU(),
        "nn.ReLU": nn.ReLU(),
    }


def milliseconds(
    shape: Shape, device: torch.device, dtype: torch.dtype, rounds: int = 15
) -> dict[str, tuple[float, float]]:
    """Returns medians of forward, and of forward and backward, in rounds where all take turns."""
    x = torch.randn(shape.sizes, device=device, dtype=dtype)
    if shape.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(x)
    x.requires_grad_()
    candidates = activations(shape.sizes[1], device)
    if dtype != torch.float32:  # nn.PReLU requires one dtype
        cast(nn.Module, candidates["nn.PReLU"]).to(dtype)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for number in range(rounds + 3):  # the first three compile, allocate and warm up
        for name, run in candidates.items():
            sample = _sample(run, x, grad)
            if number >= 3:
                samples[name].append(sample)
    return {
        name: (statistics.median(t[0] for t in times), statistics.median(t[1] for t in times))
        for name, times in samples.items()
    }


def _sample(run: Activation, x: Tensor, grad: Tensor, calls: int = 5) -> tuple[float, float]:
    """Times several calls in a row, so that the device doesn't wait for Python, in ms per call."""

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def both() -> None:
        x.grad = None
        run(x).backward(grad)

    times = []
    for call in (forward, both):
        _wait(x.device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(x.device)
        times.append((time.perf_counter() - start) / calls * 1e3)
    return times[0], times[1]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
