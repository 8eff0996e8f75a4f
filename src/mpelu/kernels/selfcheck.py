"""Compares a kernel with the formula in float64: a self-check before first use, and a longer list.

It draws no random numbers, so that a check during training changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mpelu.kernels import eager
from mpelu.kernels.registry import Kernel


class Case(NamedTuple):
    """Shape and memory order of a tensor, dtype of the parameters, and their coordinates."""

    name: str
    shape: tuple[int, ...]
    dim: int = 1
    channels_last: bool = False
    shared: bool = False
    parameters: torch.dtype = torch.float32
    by_slope: bool = False


# For both coordinates, one case for each kind of tiling, planes and columns, with several programs
# for a channel.
QUICK = (
    Case("images", (9, 3, 11, 13)),
    Case("matrix", (300, 5)),
    Case("images, slope and rate", (9, 3, 11, 13), by_slope=True),
    Case("matrix, slope and rate", (300, 5), by_slope=True),
)
FULL = (
    *QUICK,
    Case("images, channels_last", (6, 5, 9, 7), channels_last=True),
    Case("images of 2 x 2", (33, 7, 2, 2)),
    Case("C == H == W", (3, 9, 9, 9)),
    Case("one channel", (5, 1, 17, 19)),
    Case("tokens", (3, 70, 96), dim=-1),
    Case("a row of 1001 features", (1, 1001)),
    Case("a long plane", (2, 3, 5000)),
    Case("shared parameters", (7, 11, 13), shared=True),
    Case("many programs", (32, 16, 16, 16)),
    Case("many programs, channels_last", (32, 16, 16, 16), channels_last=True),
    Case("parameters in bfloat16", (9, 3, 11, 13), parameters=torch.bfloat16),
)


class Agreement(NamedTuple):
    """Largest difference of one result from float64, and the difference allowed."""

    case: str
    result: str
    error: float
    unit: str
    allowed: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.allowed  # False for NaN

    def __str__(self) -> str:
        return (
            f"{self.case}: {self.result} differs from float64 by {self.error:.3g} {self.unit}, "
            f"{self.allowed:.3g} allowed"
        )


def compare(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, case: Case
) -> Iterator[Agreement]:
    """Compares output and gradients of a kernel with those of the formula in float64 on the CPU."""
    input, grad, first, second = arguments(case, dtype)
    with torch.no_grad():
        here = [tensor.to(device) for tensor in (input, grad, first, second)]
        forward = kernel.forward(here[0], here[2], here[3], case.dim, case.by_slope)
        if forward is None:
            raise NotImplementedError(f"the kernel declined {case.name}")
        output, kept = forward
        saved = here[0] if kept is False else output
        gradients = kernel.backward(here[1], saved, here[2], here[3], case.dim, kept, case.by_slope)
        if gradients is None:
            raise NotImplementedError(f"the kernel declined the gradients of {case.name}")
        wide = [tensor.double() for tensor in (input, grad, first, second)]
        exact = eager.forward(wide[0], wide[2], wide[3], case.dim, case.by_slope)
        exact_gradients = eager.backward(
            wide[1], wide[0], wide[2], wide[3], case.dim, False, case.by_slope
        )
    eps = torch.finfo(dtype).eps
    scale = exact.abs().clamp(min=torch.finfo(dtype).tiny) * eps
    yield Agreement(case.name, "the output", _largest(output, exact, scale), "eps", 4)
    # |grad alpha beta| is what the gradient is computed from; it may cancel to less
    factors = 1.0 if case.by_slope else wide[3].abs()
    slopes = (wide[2].abs() * factors).max().clamp(min=1.0) * wide[1].abs().max() * eps
    error = _largest(gradients[0], exact_gradients[0], slopes)
    yield Agreement(case.name, "the gradient of the input", error, "eps", 4)
    for index, name in enumerate(eager.names(case.by_slope), 1):
        got, expected = gradients[index], exact_gradients[index]
        error = _largest(got, expected, expected.abs().max())
        allowed = 1e-5 + torch.finfo(case.parameters).eps
        yield Agreement(case.name, f"the gradient of {name}", error, "of the largest", allowed)


def arguments(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns input, gradient and parameters that cover all branches, saturation and the bound."""
    size = torch.Size(case.shape).numel()
    channels = 1 if case.shared else case.shape[case.dim]
    input = (4 * _scattered(size, 0.618) - 1).reshape(case.shape)
    # At a rate of 0, gradients of -inf are infinite, and those of -1e4 would hide all others.
    for place, value in enumerate((0.0, -10.0, -5.0) if case.by_slope else (0.0, -torch.inf, -1e4)):
        input.view(-1)[place] = value
    grad = _scattered(size, 0.414).reshape(case.shape) + 0.25
    alpha = _scattered(channels, 0.732) + 0.8
    beta = _scattered(channels, 0.236) + 1.2
    if channels > 2:  # the last: a beta below the bound, and alphas that aren't positive
        alpha[-1], alpha[-2], beta[-1] = 0.0, -0.5, -1.0
        if case.by_slope:
            alpha[-1] = 0.5
    if case.channels_last:
        input = input.contiguous(memory_format=torch.channels_last)
        grad = grad.contiguous(memory_format=torch.channels_last)
    return input.to(dtype), grad.to(dtype), alpha.to(case.parameters), beta.to(case.parameters)


def _scattered(count: int, step: float) -> Tensor:
    """Returns numbers between -1 and 1 that look random."""
    return (
        torch.arange(count, dtype=torch.float64, device="cpu").mul(step).remainder(1).mul(2).sub(1)
    )


def _largest(got: Tensor, expected: Tensor, scale: Tensor) -> float:
    return ((got.cpu().double() - expected).abs() / scale).max().item()
