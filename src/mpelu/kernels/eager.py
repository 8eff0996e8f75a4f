"""MPELU in plain torch operations: the reference, and what serves every device and transform.

    f(y) = y                     for y > 0
           alpha (e^(beta y) - 1)  otherwise

All functions take `alpha` and `beta` of shape [1] or [C], C being the size of dimension 1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to calculate in: half precision is widened to float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def along_channels(parameter: Tensor, input: Tensor) -> Tensor:
    """Shape [C] -> [1, C, 1, ...] so that it broadcasts over dimension 1, in compute precision."""
    parameter = parameter.to(compute_dtype(input.dtype))
    if parameter.numel() == 1:
        return parameter.reshape(())
    return parameter.reshape((1, -1) + (1,) * (input.dim() - 2))


def sum_to_channels(values: Tensor, parameter: Tensor) -> Tensor:
    """Sum over all that shares a parameter: the reverse of `along_channels`."""
    if parameter.numel() == 1:
        return values.sum().reshape(parameter.shape).to(parameter.dtype)
    others = [dim for dim in range(values.dim()) if dim != 1]
    return (values.sum(others) if others else values).to(parameter.dtype)


def _expm1(z: Tensor) -> Tensor:
    """e^z - 1, also near zero where the difference itself has no digits left.

    ONNX has no expm1, and Inductor's for the CPU is that difference: they get another form.
    """
    compiler = torch.compiler
    if compiler.is_exporting() or (compiler.is_compiling() and z.device.type == "cpu"):
        return torch.tanh(z / 2) * (torch.exp(z) + 1)
    return torch.expm1(z)


def forward(input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The formula. Differentiable to any order by torch's own autograd, vmap and forward mode."""
    a, b = along_channels(alpha, input), along_channels(beta, input)
    wide = input.to(compute_dtype(input.dtype))
    # The clamp keeps the exponential of the branch not taken from overflowing (0 * inf = NaN in
    # backward); its lower end does the same for y = -inf in y * e^(beta y).
    negative = wide.clamp(min=torch.finfo(wide.dtype).min, max=0.0)
    return torch.where(wide > 0, wide, a * _expm1(b * negative)).to(input.dtype)


def backward(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, alpha and beta from the output, or from the input where that is kept.

    With w = e^(beta y) the gradients on the negative side are alpha beta w, w - 1 and alpha y w.
    From the output alpha w = f + alpha and y = log(w) / beta; w log(w) goes to zero with w, so the
    saturated end, where y can't be recovered, adds nothing.
    """
    a, b = along_channels(alpha, saved), along_channels(beta, saved)
    g = grad.to(compute_dtype(saved.dtype))
    wide = saved.to(compute_dtype(saved.dtype))
    positive = wide > 0
    # Clamps keep NaN, and keep finite what is not taken.
    if saved_is_output:
        f = wide.clamp(max=0.0)
        u, top = f / a, (f + a).clamp(min=0.0)
        # 1 + u has lost the low digits of u near zero; f + a is exact where f saturates
        near, far = u.clamp(min=-0.5), (top / a).clamp(min=torch.finfo(u.dtype).eps / 4, max=0.5)
        y = torch.where(u > -0.5, torch.log1p(near), torch.log(far)) / b
    else:
        y = wide.clamp(min=torch.finfo(wide.dtype).min, max=0.0)
        u = torch.expm1(b * y)
        top = a * torch.exp(b * y)
    below = torch.where(positive, 0.0, g)
    grad_input = torch.where(positive, g, g * (b * top)).to(saved.dtype)
    return (
        grad_input,
        sum_to_channels(below * u, alpha),
        sum_to_channels(below * (y * top), beta),
    )
