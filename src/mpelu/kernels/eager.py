"""MPELU in plain torch operations: the reference, which works on every device and transform.

    f(y) = y                                     for y > 0
           alpha (e^(max(beta, MIN_BETA) y) - 1)   otherwise, in the paper's coordinates
           slope (e^(max(rate, 0) y) - 1) / rate   otherwise, in those of slope and rate

All functions take the two parameters in shape [1] or [C], where C is the size of dimension `dim`:
`first` is alpha, or the slope with `by_slope`, and `second` is beta, or the rate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpelu.kernels import registry
from mpelu.kernels.layout import as_dense

MIN_BETA = 1e-6
"""Lowest beta used in calculations. With it, f is linear with slope 1e-6 alpha, to 1 part in 10^4,
for y down to -200."""


PAPER, SLOPE = ("alpha", "beta"), ("slope", "rate")
"""Names of the parameters in both coordinates."""
Kept = bool | Tensor
"""What is kept for backward: the input (False), the output (True), or the output and these bits."""


def names(by_slope: bool) -> tuple[str, str]:
    return SLOPE if by_slope else PAPER


def check(input: Tensor, first: Tensor, second: Tensor, dim: int, by_slope: bool = False) -> None:
    """Raises an error for arguments that don't fit together."""
    one, other = names(by_slope)
    for name, tensor in (("input", input), (one, first), (other, second)):
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
    if first.dim() != 1 or first.shape != second.shape:
        raise ValueError(
            f"mpelu: expected {one} and {other} of the same shape, [1] or [channels], "
            f"got {list(first.shape)} and {list(second.shape)}"
        )
    if first.numel() != 1:
        channels = input.size(dim) if -input.dim() <= dim < input.dim() else 1
        if first.numel() != channels:
            counts = "1 value" if channels == 1 else f"1 or {channels} values"
            fitting = [d for d in (-1, *range(input.dim())) if input.shape[d:][:1] == first.shape]
            hint = f"; set dim={fitting[0]}" if fitting else ""
            raise ValueError(
                f"mpelu: expected {one} and {other} with {counts} for an input of shape "
                f"{list(input.shape)} with dim={dim}, got {first.numel()}{hint}"
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


def output_suffices(first: Tensor, second: Tensor, by_slope: bool, dtype: torch.dtype) -> bool:
    """Returns whether gradients can be calculated from the output, without keeping the input.

    The limits leave the output all its digits. Half precision has too few: beta's gradient would be
    off by 3 % at beta y = -5. On other devices, finding out would mean waiting for the device, so
    the input is kept.
    """
    if dtype not in (torch.float32, torch.float64) or not first.is_cpu:
        return False
    if not first.numel():  # no channels, no elements
        return True
    size = first.detach().abs()
    if by_slope:
        least = size.minimum(size / second.detach().clamp(min=1.0))
        return least.min().item() >= 1e-20 and max(size.max().item(), second.max().item()) < 1e18
    return 1e-20 <= size.min().item() <= size.max().item() < 1e30


def keep(input: Tensor, first: Tensor, second: Tensor, by_slope: bool) -> Kept:
    """Returns what to keep. Only if a factor is negative, the output's sign isn't the input's."""
    if not output_suffices(first, second, by_slope, input.dtype):
        return False
    return pack(input) if bool((first < 0).any()) else True


def bytes_of_bits(size: int) -> int:
    """Returns the length of the bits of that many elements: kernels read some bytes after them."""
    return size // 8 + 8


def pack(input: Tensor) -> Tensor:
    """Returns whether elements are positive, a bit for each, in the order of memory."""
    dense = as_dense(input.detach())
    flat = dense.as_strided((dense.numel(),), (1,)) > 0
    count = bytes_of_bits(flat.numel())
    flat = torch.nn.functional.pad(flat, (0, 8 * count - flat.numel())).view(count, 8)
    places = torch.arange(8, dtype=torch.uint8, device=input.device)
    return (flat.to(torch.uint8) << places).sum(1, dtype=torch.uint8)


def unpack(bits: Tensor, output: Tensor) -> Tensor:
    """Returns the truth values that belong to the output."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    flat = (bits[:, None] >> places & 1).flatten().bool()
    return flat.as_strided(output.shape, as_dense(output.detach()).stride())


def forward(
    input: Tensor, first: Tensor, second: Tensor, dim: int = 1, by_slope: bool = False
) -> Tensor:
    """Computes the formula, differentiable to any order by torch's autograd, vmap, forward mode."""
    a, b = _along(first, input, dim), _along(_bounded(second, by_slope), input, dim)
    wide = input.to(compute_dtype(input.dtype))
    # Zero in place of positive y keeps the exponential of the branch not taken from overflowing
    # (0 * inf = NaN in backward); the clamp does the same for y = -inf in y * e^(beta y).
    negative = torch.where(wide > 0, 0.0, wide)
    if by_slope:
        part = _growth(negative, b)
    else:
        part = _expm1(b * negative.clamp(min=torch.finfo(wide.dtype).min))
    return torch.where(wide > 0, wide, a * part).to(input.dtype)


def backward(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns gradients of input and parameters from the output, or from the input if it was kept.

    With w = e^(beta y), the gradients on the negative side are alpha beta w, w - 1 and alpha y w.
    The output gives alpha w = f + alpha and y = log(w) / beta. w log(w) goes to zero with w, so the
    saturated end, where y can't be recovered, adds nothing. With slope s and rate b they are s w,
    f / s and f^2 / s psi(w - 1), where s w = s + b f.
    """
    a, b = _along(first, saved, dim), _along(_bounded(second, by_slope), saved, dim)
    g = grad.to(compute_dtype(saved.dtype))
    wide = saved.to(compute_dtype(saved.dtype))
    positive = wide > 0
    if isinstance(kept, Tensor):
        positive = torch.where(a > 0, positive, unpack(kept, saved))
    differentiate = _differentiate_slope if by_slope else _differentiate_paper
    parts = differentiate(torch.where(positive, 0.0, wide), a, b, kept is not False)
    grad_input = torch.where(positive, g, g * parts[0])
    grad_first = _sum_to(torch.where(positive, 0.0, g * parts[1]), first, dim)
    grad_second = _sum_to(torch.where(positive, 0.0, g * parts[2]), second, dim)
    # A beta below the bound may be raised, but not lowered any further.
    allowed = _is_allowed(second, by_slope) | (grad_second < 0)
    return grad_input.to(saved.dtype), grad_first, torch.where(allowed, grad_second, 0.0)


def _differentiate_paper(
    negative: Tensor, a: Tensor, b: Tensor, is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if is_output:
        u, top = negative / a, negative + a
        # 1 + u has lost the low digits of u near zero; f + a is exact where f saturates
        near, far = u.clamp(min=-0.5), (top / a).clamp(min=torch.finfo(u.dtype).eps / 4, max=0.5)
        y = torch.where(u > -0.5, torch.log1p(near), torch.log(far)) / b
    else:
        y = negative.clamp(min=torch.finfo(negative.dtype).min)
        u = torch.expm1(b * y)
        top = a * torch.exp(b * y)
    return b * top, u, y * top


def _differentiate_slope(
    negative: Tensor, s: Tensor, b: Tensor, is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    lowest = torch.finfo(negative.dtype).min
    if is_output:
        part = negative / s
        w = ((s + b * negative.clamp(min=lowest)) / s).clamp(min=0.0)
    else:
        part = _growth(negative, b)
        w = torch.exp(b * negative.clamp(min=lowest))
    return s * w, part, s * (part * part * _psi(b * part.clamp(min=lowest), w))


def _growth(y: Tensor, b: Tensor) -> Tensor:
    """Returns (e^(b y) - 1) / b for y <= 0, which is y where b = 0, with accurate derivatives."""
    t = b * y.clamp(min=torch.finfo(y.dtype).min)
    far = t <= -1
    half = torch.where(far, 0.0, t) / 2
    # e^t - 1 = 2 e^(t / 2) sinh(t / 2), and the series of sinh(x) / x
    series = _series(half * half, [1 / math.factorial(2 * k + 1) for k in range(7)])
    near = torch.where(far, 0.0, y) * (torch.exp(half) * series)
    return torch.where(
        far, (torch.exp(torch.where(far, t, -1.0)) - 1) / torch.where(b > 0, b, 1.0), near
    )


def _psi(u: Tensor, w: Tensor) -> Tensor:
    """Returns ((1 + u) log(1 + u) - u) / u^2, from 1 to 1/2 for u from -1 to 0; w is 1 + u."""
    far = u <= -0.3
    # With q = u / (2 + u), log(1 + u) is 2 (q + q^3 / 3 + q^5 / 5 ...).
    v = torch.where(far, 0.0, u)
    q = v / (2 + v)
    near = (1 - q) / 2 * (1 + q * (1 + q) * _series(q * q, [1 / (2 * k + 3) for k in range(10)]))
    w = torch.where(far, w, 0.5).clamp(min=torch.finfo(w.dtype).tiny)
    return torch.where(far, (w * torch.log(w) + (1 - w)) / (1 - w) ** 2, near)


def _series(x: Tensor, coefficients: list[float]) -> Tensor:
    """Returns the sum of the coefficients times powers of x, as many as the dtype needs: half."""
    if x.dtype != torch.float64:
        coefficients = coefficients[: len(coefficients) // 2 + 1]
    value = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


def scripted(input: Tensor, first: Tensor, second: Tensor, dim: int, by_slope: bool) -> Tensor:
    """Does the same as `forward` in TorchScript; saved modules run without this package."""
    shape = [1] * input.dim()
    if first.numel() > 1:
        in_range = -input.dim() <= dim and dim < input.dim()
        channels = input.size(dim) if in_range else 1
        if first.numel() != channels:
            raise ValueError(
                f"mpelu: expected {first.numel()} channels in dimension {dim}, "
                f"got input of shape {input.shape}"
            )
        shape[dim] = channels
    wide = input if input.dtype == torch.float64 else input.to(torch.float32)
    a, b = first.to(wide.dtype).reshape(shape), second.to(wide.dtype).reshape(shape)
    least = 0.0 if by_slope else 1e-6
    b = torch.where(b.float() >= least, b, least + (b - b.detach()))
    lowest = -1.7976931348623157e308 if wide.dtype == torch.float64 else -3.4028234663852886e38
    negative = torch.clamp(wide, min=lowest, max=0.0)
    if by_slope:
        t = b * negative
        half = torch.clamp(t, min=-1.0) / 2
        x = half * half
        series = x / 6227020800 + 1 / 39916800
        for divisor in (362880.0, 5040.0, 120.0, 6.0, 1.0):
            series = series * x + 1 / divisor
        near = torch.where(t > -1, negative, 0.0) * (torch.exp(half) * series)
        far = (torch.exp(torch.clamp(t, max=-1.0)) - 1) / torch.where(b > 0, b, 1.0)
        part = torch.where(t <= -1, far, near)
    else:
        part = torch.expm1(b * negative)
    return torch.where(wide > 0, wide, a * part).to(input.dtype)


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


def _bounded(second: Tensor, by_slope: bool) -> Tensor:
    """Returns max(beta, MIN_BETA) or max(rate, 0), with a gradient that passes as if unbounded.

    Transforms and compilers need a derivative that is linear in the incoming gradient. Only
    `backward` blocks gradients that would lower a parameter below the bound.
    """
    second = second.to(compute_dtype(second.dtype))
    allowed = _is_allowed(second, by_slope)
    least = 0.0 if by_slope else MIN_BETA
    return torch.where(allowed, second, least + (second - second.detach()))


def _is_allowed(second: Tensor, by_slope: bool) -> Tensor:
    return second.float() >= (0.0 if by_slope else MIN_BETA)  # as float32, which rounds 1e-6 down
