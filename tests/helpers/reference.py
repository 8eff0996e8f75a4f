"""MPELU and its gradients written out from equations 3 to 9 of the paper, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def _spread(parameter: Tensor, like: Tensor) -> Tensor:
    parameter = parameter.detach().double()
    if parameter.numel() == 1:
        return parameter.reshape(())
    return parameter.reshape((1, -1) + (1,) * (like.dim() - 2))


def forward(y: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    a, b, y = _spread(alpha, y), _spread(beta, y), y.detach().double()
    return torch.where(y > 0, y, a * torch.expm1(b * y))


def gradients(
    grad: Tensor, y: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    a, b = _spread(alpha, y), _spread(beta, y)
    grad, y = grad.detach().double(), y.detach().double()
    top = a * torch.exp(b * y)
    grad_input = grad * torch.where(y > 0, 1.0, b * top)
    over = [d for d in range(y.dim()) if d != 1] if alpha.numel() > 1 else list(range(y.dim()))
    grad_alpha = grad * torch.where(y > 0, 0.0, torch.expm1(b * y))
    grad_beta = grad * torch.where(y > 0, 0.0, y * top)
    if over:
        grad_alpha, grad_beta = grad_alpha.sum(over), grad_beta.sum(over)
    return grad_input, grad_alpha.reshape(alpha.shape), grad_beta.reshape(beta.shape)


def units_in_last_place(result: Tensor, exact: Tensor) -> Tensor:
    """|result - exact| in units of the last place of result's dtype."""
    info = torch.finfo(result.dtype)
    exponent = torch.floor(torch.log2(exact.abs().clamp(min=info.tiny)))
    return (result.double() - exact).abs() / (torch.exp2(exponent) * info.eps)
