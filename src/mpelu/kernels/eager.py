"""MPELU in plain torch operations: the reference, which works on every device and transform.

    f(y) = y                                     for y > 0
           alpha (e^(max(beta, MIN_BETA) y) - 1)   otherwise

All functions take `alpha` and `beta` of shape [1] or [C], where C is the size of dimension `dim`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mpelu.kernels import registry

MIN_BETA = 1e-6
"""Lowest beta used in calculations. With it, f is linear with slope 1e-6 alpha, to 1 part in 10^4,
for y down to -200."""


def check(input: Tensor, alpha: Tensor, beta: Tensor, dim: int) -> None:
    """Raises an error for arguments that don't fit together."""
    for name, tensor in (("input", input), ("alpha", alpha), ("beta", beta)):
        if not tensor.is_floating_point():
            raise TypeError(f"mpelu: expected a floating point {name}, got {tensor.dtype}")
        if tensor.layout != torch.strided:
            raise TypeError(
                f"mpelu: expected a dense {name}, got layout {tensor.layout}; "
                f"convert it with {name}.to_dense()"
            )
        if tensor.is_nested:
            raise TypeError(
                f"mpelu: expected a dense {name}, got a nested tensor; "
                f"convert it with {name}.to_padded_tensor(0.0)"
            )
        if tensor.device != input.device:
            raise ValueError(
                f"mpelu: expected {name} on the input's device, {input.device}, got {tensor.device}"
            )
    if alpha.dim() != 1 or alpha.shape != beta.shape:
        raise ValueError(
            "mpelu: expected alpha and beta of the same shape, [1] or [channels], "
            f"got {list(alpha.shape)} and {list(beta.shape)}"
        )
    if alpha.numel() != 1:
        channels = input.size(dim) if -input.dim() <= dim < input.dim() else 1
        if alpha.numel() != channels:
            counts = "1 value" if channels == 1 else f"1 or {channels} values"
            fitting = [d for d in (-1, *range(input.dim())) if input.shape[d:][:1] == alpha.shape]
            hint = f"; set dim={fitting[0]}" if fitting else ""
            raise ValueError(
                f"mpelu: expected alpha and beta with {counts} for an input of shape "
                f"{list(input.shape)} with dim={dim}, got {alpha.numel()}{hint}"
            )


def check_memory(*tensors: Tensor) -> None:
    """Raises an error for freed storage, which would make torch's operations crash the process."""
    for tensor in tensors:
        try:
            is_freed = tensor.numel() > 0 and not tensor.untyped_storage().nbytes()
        except NotImplementedError:  # a wrapper, which has no storage
            continue
        if is_freed:
            raise RuntimeError(
                "mpelu: expected tensors with memory, got one of shape "
                f"{list(tensor.shape)} whose storage has 0 bytes; resize its storage before use"
            )


def output_suffices(alpha: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether gradients can be calculated from the output, without keeping the input.

    If alpha > 0 in every channel, the sign of the output tells the branch, and
    y = log(1 + f / alpha) / beta. The limits leave f all its digits. Half precision has too few:
    beta's gradient would be off by 3 % at beta y = -5. On other devices, finding out would mean
    waiting for the device, so the input is kept.
    """
    if dtype not in (torch.float32, torch.float64) or not alpha.is_cpu:
        return False
    if not alpha.numel():  # no channels, no elements
        return True
    return 1e-20 <= alpha.min().item() <= alpha.max().item() < 1e30


def forward(input: Tensor, alpha: Tensor, beta: Tensor, dim: int = 1) -> Tensor:
    """Computes the formula, differentiable to any order by torch's autograd, vmap, forward mode."""
    a, b = _along(alpha, input, dim), _along(_bounded(beta), input, dim)
    wide = input.to(compute_dtype(input.dtype))
    # Zero in place of positive y keeps the exponential of the branch not taken from overflowing
    # (0 * inf = NaN in backward); the clamp does the same for y = -inf in y * e^(beta y).
    negative = torch.where(wide > 0, 0.0, wide).clamp(min=torch.finfo(wide.dtype).min)
    return torch.where(wide > 0, wide, a * _expm1(b * negative)).to(input.dtype)


def backward(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns gradients of input, alpha and beta from the output, or from the input if it was kept.

    With w = e^(beta y), the gradients on the negative side are alpha beta w, w - 1 and alpha y w.
    The output gives alpha w = f + alpha and y = log(w) / beta. w log(w) goes to zero with w, so the
    saturated end, where y can't be recovered, adds nothing.
    """
    a, b = _along(alpha, saved, dim), _along(_bounded(beta), saved, dim)
    g = grad.to(compute_dtype(saved.dtype))
    wide = saved.to(compute_dtype(saved.dtype))
    positive = wide > 0
    # Clamps preserve NaN, and keep the branch that isn't taken finite.
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
    grad_input = torch.where(positive, g, g * (b * top)).to(saved.dtype)
    grad_alpha = _sum_to(torch.where(positive, 0.0, g * u), alpha, dim)
    grad_beta = _sum_to(torch.where(positive, 0.0, g * (y * top)), beta, dim)
    # A beta below the bound may be raised, but not lowered any further.
    grad_beta = torch.where(_is_allowed(beta) | (grad_beta < 0), grad_beta, 0.0)
    return grad_input, grad_alpha, grad_beta


def scripted(input: Tensor, alpha: Tensor, beta: Tensor, dim: int) -> Tensor:
    """Does the same as `forward` in TorchScript; saved modules run without this package."""
    shape = [1] * input.dim()
    if alpha.numel() > 1:
        in_range = -input.dim() <= dim and dim < input.dim()
        channels = input.size(dim) if in_range else 1
        if alpha.numel() != channels:
            raise ValueError(
                f"mpelu: expected {alpha.numel()} channels in dimension {dim}, "
                f"got input of shape {input.shape}"
            )
        shape[dim] = channels
    wide = input if input.dtype == torch.float64 else input.to(torch.float32)
    a, b = alpha.to(wide.dtype).reshape(shape), beta.to(wide.dtype).reshape(shape)
    b = torch.where(b.float() >= 1e-6, b, 1e-6 + (b - b.detach()))
    lowest = -1.7976931348623157e308 if wide.dtype == torch.float64 else -3.4028234663852886e38
    negative = torch.clamp(wide, min=lowest, max=0.0)
    return torch.where(wide > 0, wide, a * torch.expm1(b * negative)).to(input.dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype to calculate in: half precision is widened to float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _along(parameter: Tensor, input: Tensor, dim: int) -> Tensor:
    """Reshapes [C] to [1, C, 1, ...], which broadcasts along dimension `dim`, in compute dtype."""
    parameter = parameter.to(compute_dtype(input.dtype))
    if parameter.numel() == 1:
        return parameter.reshape(())
    shape = [1] * input.dim()
    shape[dim] = -1
    return parameter.reshape(shape)


def _sum_to(values: Tensor, parameter: Tensor, dim: int) -> Tensor:
    """Sums over all elements that share a parameter, the reverse of `_along`."""
    if parameter.numel() == 1:
        return values.sum().reshape(parameter.shape).to(parameter.dtype)
    others = [d for d in range(values.dim()) if d != dim % values.dim()]
    return (values.sum(others) if others else values).to(parameter.dtype)


def _expm1(z: Tensor) -> Tensor:
    """Returns e^z - 1, also near zero, where the difference itself has no digits left.

    ONNX has no expm1, and Inductor's for the CPU is that difference, so they get another form.
    """
    if registry.is_exporting() or (torch.compiler.is_compiling() and z.device.type == "cpu"):
        return torch.tanh(z / 2) * (torch.exp(z) + 1)
    return torch.expm1(z)


def _bounded(beta: Tensor) -> Tensor:
    """Returns max(beta, MIN_BETA), with a gradient that passes as if there were no bound.

    Transforms and compilers need a derivative that is linear in the incoming gradient. Only
    `backward` blocks gradients that would lower a beta below the bound.
    """
    beta = beta.to(compute_dtype(beta.dtype))
    return torch.where(_is_allowed(beta), beta, MIN_BETA + (beta - beta.detach()))


def _is_allowed(beta: Tensor) -> Tensor:
    return beta.float() >= MIN_BETA  # as float32, which rounds 1e-6 down
