"""Rules for one weight, in the manner of torch.nn.init: in place and without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from mpelu.gaussian import check_parameters, moments, to_float64
from mpelu.graph import fans
from mpelu.init.fill import fill_
from mpelu.init.methods import GAUSSIAN_STD, MODES, fan_of


def check_mode(caller: str, mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"{caller}: expected a mode of {list(MODES)}, got {mode!r}")


def check_weight(caller: str, tensor: Tensor) -> None:
    """Raises unless the tensor is a weight that can be filled."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{caller}: expected a tensor, got {type(tensor).__name__}")
    if is_lazy(tensor):
        raise ValueError(f"{caller}: expected a weight with a shape, got a lazy one; run it once")
    if not tensor.is_floating_point():
        raise TypeError(f"{caller}: expected a floating point tensor, got {tensor.dtype}")
    if tensor.dim() < 2:
        raise ValueError(
            f"{caller}: expected at least two dimensions, got shape {list(tensor.shape)}"
        )
    if tensor.numel() == 0:
        raise ValueError(f"{caller}: expected a weight with elements, got {list(tensor.shape)}")
    if tensor.is_meta:
        raise ValueError(f"{caller}: expected a tensor with memory, got one on the meta device")


def by_group(caller: str, name: str, values: Tensor, channels: int, groups: int) -> Tensor:
    """The mean over the input channels of each group, from one value or one for each channel."""
    if values.numel() not in (1, channels):
        raise ValueError(
            f"{caller}: expected {name} with 1 or {channels} values (input channels), "
            f"got {values.numel()}"
        )
    return values.reshape(-1).expand(channels).reshape(groups, -1).mean(1)


def _filled(
    caller: str,
    tensor: Tensor,
    factor: float | Tensor,
    mode: str,
    generator: torch.Generator | None,
    groups: int,
    transposed: bool,
) -> Tensor:
    """Fills with Var(w) = 1 / (n factor), the factor being E[x^2] of the layer's input."""
    check_weight(caller, tensor)
    check_mode(caller, mode)
    if not isinstance(groups, int) or groups < 1 or tensor.size(0) % groups:
        raise ValueError(f"{caller}: expected groups to divide {tensor.size(0)}, got {groups!r}")
    root = math.sqrt(fan_of(mode, *fans(tensor, groups, transposed)))
    if isinstance(factor, Tensor) and factor.numel() > 1:
        channels = tensor.size(0) if transposed else tensor.size(1) * groups
        means = by_group(caller, "alpha and beta", factor.detach().cpu(), channels, groups)
        return fill_(tensor, means.rsqrt() / root, generator)
    # The order of operations of torch.nn.init, so that equal generators give equal weights.
    return fill_(tensor, math.sqrt(1 / float(factor)) / root, generator)


def _exponential_factor(
    caller: str,
    alpha: float | Tensor,
    beta: float | Tensor,
    variance: float,
    second: Callable[[Tensor, Tensor], Tensor],
) -> float | Tensor:
    parameters = to_float64(alpha), to_float64(beta), to_float64(variance)
    check_parameters(caller, *parameters)
    if not variance > 0:
        raise ValueError(f"{caller}: expected variance > 0, got {variance}")
    factor = second(*parameters[:2])
    return factor.item() if factor.numel() == 1 else factor


def gaussian_(
    tensor: Tensor, std: float = GAUSSIAN_STD, generator: torch.Generator | None = None
) -> Tensor:
    """Fills with N(0, std^2), the paper's baseline.

    Example:
        >>> gaussian_(torch.empty(64, 128)).std() < 0.02
        tensor(True)
    """
    check_weight("gaussian_", tensor)
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"gaussian_: expected std >= 0, got {std}")
    return fill_(tensor, std, generator)


def xavier_normal_(
    tensor: Tensor,
    generator: torch.Generator | None = None,
    *,
    groups: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Fills with N(0, 2 / (fan_in + fan_out)), for linear layers (Glorot and Bengio).

    Example:
        >>> xavier_normal_(torch.empty(64, 128)).shape
        torch.Size([64, 128])
    """
    return _filled("xavier_normal_", tensor, 1.0, "average", generator, groups, transposed)


def msra_normal_(
    tensor: Tensor,
    slope: float | Tensor = 0.0,
    mode: str = "fan_in",
    generator: torch.Generator | None = None,
    *,
    groups: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Fills with N(0, 2 / (n (1 + slope^2))), for ReLU, leaky ReLU and PReLU (He et al.).

    Args:
        tensor: weight of a linear or convolutional layer, at least two dimensions.
        slope: slope for negative inputs of the activation before the layer; a number or one for
            each input channel.
        mode: n is "fan_in", "fan_out" or their "average".
        generator: random number generator to draw from.
        groups: number of groups of the convolution.
        transposed: whether the convolution is transposed (input channels in dimension 0).

    Example:
        >>> msra_normal_(torch.empty(64, 32, 3, 3), slope=0.25).shape
        torch.Size([64, 32, 3, 3])
    """
    slopes = to_float64(slope)
    if not slopes.isfinite().all():
        raise ValueError(f"msra_normal_: expected a finite slope, got {slope}")
    factor = (1 + slopes**2) / 2
    scalar_or_channels = factor.item() if factor.numel() == 1 else factor
    return _filled("msra_normal_", tensor, scalar_or_channels, mode, generator, groups, transposed)


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
    """Fills with N(0, 2 / (n (1 + alpha^2 beta^2))), the paper's rule for ELU and MPELU.

    Args:
        tensor: weight of a linear or convolutional layer, at least two dimensions.
        alpha: alpha of the activation before the layer; a number, or one for each input channel,
            over which 1 + alpha^2 beta^2 is then averaged.
        beta: as alpha; positive.
        mode: n is "fan_in", "fan_out" or their "average".
        generator: random number generator to draw from.
        groups: number of groups of the convolution.
        transposed: whether the convolution is transposed (input channels in dimension 0).

    Returns:
        The tensor.

    Example:
        >>> taylor_normal_(torch.empty(64, 32, 3, 3), alpha=0.25, beta=1.0).shape
        torch.Size([64, 32, 3, 3])
    """
    factor = _exponential_factor(
        "taylor_normal_", alpha, beta, 1.0, lambda a, b: (1 + (a * b) ** 2) / 2
    )
    return _filled("taylor_normal_", tensor, factor, mode, generator, groups, transposed)


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
    """Fills with N(0, variance / (n E[f^2])), f being the MPELU of N(0, variance).

    The exact form of what `taylor_normal_` takes to first order: the output of the layer has the
    variance that the input of the activation had.

    Args:
        tensor: weight of a linear or convolutional layer, at least two dimensions.
        alpha: alpha of the activation before the layer; a number or one for each input channel.
        beta: as alpha; positive.
        mode: n is "fan_in", "fan_out" or their "average".
        variance: before the activation, and after the layer; positive.
        generator: random number generator to draw from.
        groups: number of groups of the convolution.
        transposed: whether the convolution is transposed (input channels in dimension 0).

    Returns:
        The tensor.

    Example:
        >>> exact_normal_(torch.empty(64, 128), alpha=1.0, beta=1.0).shape
        torch.Size([64, 128])
    """
    factor = _exponential_factor(
        "exact_normal_", alpha, beta, variance, lambda a, b: moments(a, b, variance)[1] / variance
    )
    return _filled("exact_normal_", tensor, factor, mode, generator, groups, transposed)
