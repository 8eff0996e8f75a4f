"""Two rules that torch.nn.init lacks; they fill one weight in place, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from mpelu.gaussian import check_parameters, moments, to_float64
from mpelu.graph import fans
from mpelu.init.methods import MODES, fan_of, fill_


def _check_weight(caller: str, tensor: Tensor, groups: int) -> None:
    """Raises an error unless the tensor is a weight that can be filled."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{caller}: expected a tensor, got {type(tensor).__name__}")
    if is_lazy(tensor):
        raise ValueError(f"{caller}: the weight is lazy and has no shape yet; run the model once")
    if not tensor.is_floating_point():
        raise TypeError(f"{caller}: expected a floating point tensor, got {tensor.dtype}")
    if tensor.dim() < 2:
        raise ValueError(
            f"{caller}: expected at least two dimensions, got shape {list(tensor.shape)}"
        )
    if tensor.numel() == 0:
        raise ValueError(f"{caller}: expected a weight with elements, got {list(tensor.shape)}")
    if tensor.is_meta:
        raise ValueError(f"{caller}: the weight is on the meta device and has no memory")
    if not isinstance(groups, int) or groups < 1 or tensor.size(0) % groups:
        raise ValueError(f"{caller}: expected groups to divide {tensor.size(0)}, got {groups!r}")


def _fill(
    caller: str,
    tensor: Tensor,
    second: Callable[[Tensor, Tensor], Tensor],
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    variance: float,
    mode: str,
    generator: torch.Generator | None,
    groups: int,
    transposed: bool,
) -> Tensor:
    """Fills with Var(w) = 1 / (n s), where s = second(alpha, beta) is E[x^2] of the input."""
    _check_weight(caller, tensor, groups)
    if mode not in MODES:
        raise ValueError(f"{caller}: expected one of {list(MODES)}, got mode {mode!r}")
    alphas, betas, variances = to_float64(alpha), to_float64(beta), to_float64(variance)
    check_parameters(caller, alphas, betas, variances)
    if not variance > 0:
        raise ValueError(f"{caller}: expected variance > 0, got {variance}")
    factor = second(alphas, betas).detach().cpu()
    root = math.sqrt(fan_of(mode, *fans(tensor, groups, transposed)))
    if factor.numel() == 1:
        # In the order of operations of torch.nn.init, so that equal generators give equal weights.
        return fill_(tensor, math.sqrt(1 / factor.item()) / root, generator)
    channels = tensor.size(0) if transposed else tensor.size(1) * groups
    if factor.numel() != channels:
        raise ValueError(
            f"{caller}: expected alpha and beta with 1 or {channels} values (input channels), "
            f"got {factor.numel()}"
        )
    means = factor.reshape(groups, -1).mean(1)
    return fill_(tensor, means.rsqrt() / root, generator)


def taylor_normal_(
    tensor: Tensor,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor = 1.0,
    mode: str = "fan_in",
    generator: torch.Generator | None = None,
    *,
    groups: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Fills a weight with N(0, 2 / (n (1 + alpha^2 beta^2))), the paper's rule for ELU and MPELU.

    Args:
        tensor: weight of a linear or convolutional layer, with at least two dimensions.
        alpha: alpha of the activation before the layer; a number, or one for each input channel,
            over which 1 + alpha^2 beta^2 is then averaged.
        beta: like alpha, positive.
        mode: "fan_in", "fan_out" or their "average", used as n.
        generator: random number generator to draw from.
        groups: number of groups of the convolution.
        transposed: whether the convolution is transposed (input channels in dimension 0).

    Returns:
        The tensor.

    Example:
        >>> taylor_normal_(torch.empty(64, 32, 3, 3), alpha=0.25, beta=1.0).shape
        torch.Size([64, 32, 3, 3])
    """
    return _fill(
        "taylor_normal_",
        tensor,
        lambda a, b: (1 + (a * b) ** 2) / 2,
        alpha=alpha,
        beta=beta,
        variance=1.0,
        mode=mode,
        generator=generator,
        groups=groups,
        transposed=transposed,
    )


def exact_normal_(
    tensor: Tensor,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor = 1.0,
    mode: str = "fan_in",
    variance: float = 1.0,
    generator: torch.Generator | None = None,
    *,
    groups: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Fills a weight with N(0, variance / (n E[f^2])), where f is the MPELU of N(0, variance).

    This is exact where `taylor_normal_` is first order: the layer's output has the same variance
    as the activation's input.

    Args:
        tensor: weight of a linear or convolutional layer, with at least two dimensions.
        alpha: alpha of the activation before the layer; a number or one for each input channel.
        beta: like alpha, positive.
        mode: "fan_in", "fan_out" or their "average", used as n.
        variance: variance before the activation and after the layer; positive.
        generator: random number generator to draw from.
        groups: number of groups of the convolution.
        transposed: whether the convolution is transposed (input channels in dimension 0).

    Returns:
        The tensor.

    Example:
        >>> exact_normal_(torch.empty(64, 128), alpha=1.0, beta=1.0).shape
        torch.Size([64, 128])
    """
    return _fill(
        "exact_normal_",
        tensor,
        lambda a, b: moments(a, b, variance)[1] / variance,
        alpha=alpha,
        beta=beta,
        variance=variance,
        mode=mode,
        generator=generator,
        groups=groups,
        transposed=transposed,
    )
