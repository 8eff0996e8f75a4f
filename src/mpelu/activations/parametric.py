"""Learnable activations from other papers: SReLU and PELU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SReLU(nn.Module):
    """Applies the S-shaped rectified linear unit (Jin et al., 1512.07030).

    f(x) = t_r + a_r (x - t_r) above t_r, t_l + a_l (x - t_l) below t_l, and x in between. The four
    values are learned per channel. It starts as a leaky ReLU: t_l = 0, a_r = 1 and a_l = slope. The
    authors first freeze it for some epochs and then fit the thresholds to the layer's inputs; here
    all four learn from the start, and t_r starts at 1, which has no effect while a_r is 1.

    Args:
        num_parameters: number of channels.
        slope: initial value of a_l.
        dim: channel dimension.

    Shape:
        - Input, output: any, with `num_parameters` channels in dimension `dim`.

    Example:
        >>> SReLU(1)(torch.tensor([[-1.0], [2.0]])).flatten().tolist()
        [-0.20000000298023224, 2.0]
    """

    def __init__(self, num_parameters: int, slope: float = 0.2, *, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.right_threshold = nn.Parameter(torch.full((num_parameters,), 1.0))
        self.right_slope = nn.Parameter(torch.full((num_parameters,), 1.0))
        self.left_threshold = nn.Parameter(torch.full((num_parameters,), 0.0))
        self.left_slope = nn.Parameter(torch.full((num_parameters,), slope))

    def forward(self, input: Tensor) -> Tensor:
        shape = _channel_shape(input, self.dim)
        right, left = self.right_threshold.view(shape), self.left_threshold.view(shape)
        above = torch.relu(input - right) * self.right_slope.view(shape)
        below = torch.relu(left - input) * self.left_slope.view(shape)
        return torch.clamp(input, left, right) + above - below

    def extra_repr(self) -> str:
        return f"num_parameters={self.right_threshold.numel()}" + _dim_repr(self.dim)


class PELU(nn.Module):
    """Applies the parametric exponential linear unit (Trottier et al., 1605.09332).

    f(y) = (a / b) y for y >= 0 and a (e^(y / b) - 1) otherwise, with learnable a and b > 0. The
    slopes on both sides of zero are equal. If an optimizer pushes a or b below `MINIMUM`, the
    function uses `MINIMUM`; the gradient still reaches the parameter and can raise it again.

    Args:
        num_parameters: 1 to share a and b, or the number of channels.
        a: initial value, at least `MINIMUM`.
        b: initial value, at least `MINIMUM`.
        dim: channel dimension.

    Shape:
        - Input, output: any, with `num_parameters` channels in dimension `dim`.

    Attributes:
        a: learnable parameter of shape [num_parameters].
        b: learnable parameter of shape [num_parameters].

    Example:
        >>> PELU(a=2.0)(torch.tensor([[-1.0], [2.0]])).flatten().tolist()
        [-1.264241099357605, 4.0]
    """

    MINIMUM = 0.1
    """Lower bound of a and b in the paper."""

    def __init__(
        self, num_parameters: int = 1, a: float = 1.0, b: float = 1.0, *, dim: int = 1
    ) -> None:
        super().__init__()
        if num_parameters < 1:
            raise ValueError(f"PELU: expected num_parameters >= 1, got {num_parameters!r}")
        for name, value in {"a": a, "b": b}.items():
            if not value >= self.MINIMUM:
                raise ValueError(f"PELU: expected {name} >= {self.MINIMUM}, got {value}")
        self.dim = dim
        self.a = nn.Parameter(torch.full((num_parameters,), float(a)))
        self.b = nn.Parameter(torch.full((num_parameters,), float(b)))

    def forward(self, input: Tensor) -> Tensor:
        a, b = _held(self.a, self.MINIMUM), _held(self.b, self.MINIMUM)
        if self.a.numel() > 1:
            shape = _channel_shape(input, self.dim)
            a, b = a.view(shape), b.view(shape)
        # The clamp keeps e^(y / b) finite where it isn't used.
        below = a * torch.expm1(input.clamp(max=0) / b)
        return torch.where(input >= 0, a / b * input, below)

    def extra_repr(self) -> str:
        return f"num_parameters={self.a.numel()}" + _dim_repr(self.dim)


def _held(parameter: Tensor, minimum: float) -> Tensor:
    """Returns the parameter, raised to the minimum; the gradient passes either way."""
    return torch.where(parameter > minimum, parameter, minimum + parameter - parameter.detach())


def _channel_shape(input: Tensor, dim: int) -> list[int]:
    """Returns the shape in which parameters broadcast along all dimensions but `dim`."""
    shape = [1] * max(input.dim(), 1)
    shape[dim] = -1
    return shape


def _dim_repr(dim: int) -> str:
    return "" if dim == 1 else f", dim={dim}"
