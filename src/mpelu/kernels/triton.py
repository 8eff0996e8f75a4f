"""Fused GPU kernels in Triton: forward, and backward with the sums of alpha and beta in one pass.

Backward reads input and gradient once. Each program writes partial sums, and a second small kernel
adds them in a fixed order, without atomics, so results are bitwise reproducible.

Only additions, multiplications, comparisons and bit operations are used. Triton's interpreter
(TRITON_INTERPRET=1) therefore computes what a GPU computes, except for the rounding that a fused
multiply-add skips.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mpelu.kernels.eager import MIN_BETA
from mpelu.kernels.layout import TILE, Tiling, as_dense, power_of_two, tiling

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LOG2_E = 1.4426950408889634
# Fused multiply-add is faster and only skips roundings. Explicit, as Triton's default has changed.
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


def forward(
    input: Tensor, alpha: Tensor, beta: Tensor, dim: int, inplace: bool = False
) -> tuple[Tensor, bool] | None:
    """Returns (output, False), since backward needs the input; None for an empty input."""
    source = as_dense(input)
    if not source.numel():
        return None
    output = source if inplace else torch.empty_like(source)
    plan = _tiling(source, alpha, dim, sums=False)
    with torch.cuda.device_of(source):  # Triton launches on the current device
        forward_kernel[(plan.programs,)](
            source, output, alpha, beta, *_arguments(plan), **_constants(plan), **_OPTIONS
        )
    if inplace and output is not input:
        output = input.copy_(output)
    return output, False


def backward(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns gradients of input, alpha and beta from the input; None if the output was kept."""
    source = as_dense(saved)
    if saved_is_output or not source.numel():
        return None
    if grad.dtype is not source.dtype or grad.is_neg() or grad.stride() != source.stride():
        grad = torch.empty_like(source).copy_(grad)
    grad_input, grad_alpha, grad_beta = map(torch.empty_like, (source, alpha, beta))
    plan = _tiling(source, alpha, dim, sums=True)
    # Sums of one channel lie side by side: by program in planes, by column otherwise.
    inner = plan.splits * plan.blocks if plan.planes else plan.inner
    width = plan.channels * inner if plan.planes else plan.width
    rows = 1 if plan.planes else plan.splits
    sums = torch.empty(2, rows * width, dtype=torch.float32, device=source.device)
    with torch.cuda.device_of(source):
        backward_kernel[(plan.programs,)](
            grad, source, grad_input, alpha, beta, sums[0], sums[1], plan.tiles, plan.splits,
            *_arguments(plan), **_constants(plan), **_OPTIONS,
        )  # fmt: skip
        block = min(16, power_of_two(plan.channels))
        finish_kernel[(-(-plan.channels // block),)](
            sums[0], sums[1], grad_alpha, grad_beta, alpha, beta, rows, width, inner, plan.channels,
            MIN_BETA=MIN_BETA, LOG2_E=_LOG2_E, CHANNELS=block, COUNT=TILE // block, **_OPTIONS,
        )  # fmt: skip
    return grad_input, grad_alpha, grad_beta


def _tiling(source: Tensor, alpha: Tensor, dim: int, sums: bool) -> Tiling:
    channels = alpha.numel()
    inner = 1 if channels == 1 else source.stride(dim)
    return tiling(source.numel(), channels, inner, sums)


def _arguments(plan: Tiling) -> tuple[int, ...]:
    return plan.size, plan.width, plan.group, plan.inner, plan.channels


def _constants(plan: Tiling) -> dict[str, float]:
    return {
        "MIN_BETA": MIN_BETA,
        "LOG2_E": _LOG2_E,
        "PLANES": plan.planes,
        "WIDE": plan.is_wide,
        "ROWS": plan.block_rows,
        "COLUMNS": plan.block_columns,
    }


@triton.jit
def forward_kernel(
    source, output, alpha, beta, size, width, group, inner, channels,
    MIN_BETA: tl.constexpr, LOG2_E: tl.constexpr, PLANES: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns, inside, which, _, split = _columns(width, group, WIDE, COLUMNS)
    channel = which if PLANES else (columns // inner) % channels
    a = _spread(_load(alpha, channel, inside, PLANES), PLANES)
    rate = _spread(_bounded(_load(beta, channel, inside, PLANES), MIN_BETA), PLANES) * LOG2_E
    offsets, mask = _tile(split, columns, inside, size, width, WIDE, ROWS)
    y = tl.load(source + offsets, mask=mask, other=0.0).to(tl.float32)
    _, whole, fraction = _power(y, rate)
    f = tl.where(y > 0, y, a * (whole * fraction + (whole - 1.0)))
    tl.store(output + offsets, f.to(output.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    grad, source, grad_input, alpha, beta, sums_alpha, sums_beta, tiles, splits,
    size, width, group, inner, channels,
    MIN_BETA: tl.constexpr, LOG2_E: tl.constexpr, PLANES: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns, inside, which, block, split = _columns(width, group, WIDE, COLUMNS)
    channel = which if PLANES else (columns // inner) % channels
    a = _spread(_load(alpha, channel, inside, PLANES), PLANES)
    b = _spread(_bounded(_load(beta, channel, inside, PLANES), MIN_BETA), PLANES)
    rate, slope = b * LOG2_E, a * b
    sum_alpha = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    sum_beta = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for tile in range(tiles):
        offsets, mask = _tile(split * tiles + tile, columns, inside, size, width, WIDE, ROWS)
        y = tl.load(source + offsets, mask=mask, other=1.0).to(tl.float32)
        g = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        exponent, whole, fraction = _power(y, rate)
        product = whole * fraction
        gw = g * (product + whole)
        positive = y > 0
        # An infinite gradient of a positive input must not reach the sums as inf * 0.
        sum_alpha += tl.where(positive, 0.0, g * (product + (whole - 1.0)))
        sum_beta += tl.where(positive, 0.0, gw * exponent)
        gx = tl.where(positive, g, gw * slope)
        tl.store(grad_input + offsets, gx.to(grad_input.dtype.element_ty), mask=mask)
    if PLANES:
        place = (which * splits + split) * tl.cdiv(group, COLUMNS) + block
        tl.store(sums_alpha + place, tl.sum(tl.sum(sum_alpha, 1), 0))
        tl.store(sums_beta + place, tl.sum(tl.sum(sum_beta, 1), 0))
    else:
        place = split * width + columns
        tl.store(sums_alpha + place, tl.sum(sum_alpha, 0), mask=inside)
        tl.store(sums_beta + place, tl.sum(sum_beta, 0), mask=inside)


@triton.jit
def finish_kernel(
    sums_alpha, sums_beta, grad_alpha, grad_beta, alpha, beta, rows, width, inner, channels,
    MIN_BETA: tl.constexpr, LOG2_E: tl.constexpr, CHANNELS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Adds a channel's sums: `inner` side by side, again every `channels * inner`, in each row."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    per_row = width // channels
    sum_alpha = tl.zeros((CHANNELS, COUNT), dtype=tl.float32)
    sum_beta = tl.zeros((CHANNELS, COUNT), dtype=tl.float32)
    for start in range(0, rows * per_row, COUNT):
        count = start + tl.arange(0, COUNT)
        column = count % per_row
        first = count // per_row * width + column // inner * (channels * inner) + column % inner
        place = first[None, :] + channel[:, None] * inner
        mask = (count < rows * per_row)[None, :] & exists[:, None]
        sum_alpha += tl.load(sums_alpha + place, mask=mask, other=0.0)
        sum_beta += tl.load(sums_beta + place, mask=mask, other=0.0)
    a = tl.load(alpha + channel, mask=exists, other=1.0).to(tl.float32)
    b = tl.load(beta + channel, mask=exists, other=1.0).to(tl.float32)
    # y was summed as y beta log2(e). An infinite alpha without a negative input gets 0, not NaN.
    total = tl.sum(sum_beta, 1)
    total = tl.where(total == 0, 0.0, total * (a / (_bounded(b, MIN_BETA) * LOG2_E)))
    # A beta below the bound may be raised, but not lowered any further.
    total = tl.where((b >= MIN_BETA) | (total < 0), total, 0.0)
    tl.store(
        grad_alpha + channel, tl.sum(sum_alpha, 1).to(grad_alpha.dtype.element_ty), mask=exists
    )
    tl.store(grad_beta + channel, total.to(grad_beta.dtype.element_ty), mask=exists)


@triton.jit
def _columns(width, group, WIDE: tl.constexpr, COLUMNS: tl.constexpr):
    """Returns the program's columns, which of them exist, their group, block in it, and split."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    blocks = tl.cdiv(group, COLUMNS)
    groups = width // group
    block = program % blocks
    which = program // blocks % groups
    inside = block * COLUMNS + tl.arange(0, COLUMNS)
    return which * group + inside, inside < group, which, block, program // blocks // groups


@triton.jit
def _tile(tile, columns, inside, size, width, WIDE: tl.constexpr, ROWS: tl.constexpr):
    rows = tile * ROWS + tl.arange(0, ROWS)
    if WIDE:
        rows = rows.to(tl.int64)
    offsets = rows[:, None] * width + columns[None, :]
    return offsets, (offsets < size) & inside[None, :]


@triton.jit
def _load(parameter, channel, inside, PLANES: tl.constexpr):
    if PLANES:
        value = tl.load(parameter + channel)
    else:
        value = tl.load(parameter + channel, mask=inside, other=1.0)
    return value.to(tl.float32)


@triton.jit
def _spread(value, PLANES: tl.constexpr):
    return value if PLANES else value[None, :]


@triton.jit
def _bounded(beta, MIN_BETA: tl.constexpr):
    return tl.where(beta < MIN_BETA, MIN_BETA, beta)  # keeps NaN


@triton.jit
def _power(y, rate):
    """Returns the exponent min(y, 0) rate = n + r, 2^n, and 2^r - 1 without cancellation.

    The exponent is at least -127, where 2^n is 0. NaN stays NaN.
    """
    exponent = tl.minimum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) * rate
    exponent = tl.maximum(exponent, -127.0, propagate_nan=tl.PropagateNan.ALL)
    # The sum leaves n + 127, the exponent's bits of 2^n, in its lowest bits: 1.5 * 2^23 + 127.
    shifted = exponent + 12583039.0
    whole = (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    r = exponent - (shifted - 12583039.0)
    # Minimax on [-1/2, 1/2], relative error 1.1e-8; the coefficients are those of simd.h.
    p = 1.54035123e-4 * r + 1.33907355e-3
    p = p * r + 9.61823750e-3
    p = p * r + 5.55035743e-2
    p = p * r + 2.40226498e-1
    p = p * r + 6.93147188e-1
    return exponent, whole, p * r


IS_INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)
