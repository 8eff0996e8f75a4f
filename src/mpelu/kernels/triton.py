"""Fused GPU kernels in Triton: forward, and backward with both parameters' sums in one pass.

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

from mpelu.kernels.eager import MIN_BETA, Kept
from mpelu.kernels.layout import TILE, Tiling, as_dense, power_of_two, tiling

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LOG2_E = 1.4426950408889634
# Fused multiply-add is faster and only skips roundings. Explicit, as Triton's default has changed.
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


def forward(
    input: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    by_slope: bool = False,
    is_differentiated: bool = True,
    inplace: bool = False,
) -> tuple[Tensor, Kept] | None:
    """Returns (output, False), since backward needs the input; None for an empty input."""
    source = as_dense(input)
    if not source.numel():
        return None
    output = source if inplace else torch.empty_like(source)
    plan = _tiling(source, first, dim, sums=False)
    with torch.cuda.device_of(source):  # Triton launches on the current device
        forward_kernel[(plan.programs,)](
            source, output, first, second, *_arguments(plan), **_constants(plan, by_slope),
            **_OPTIONS,
        )  # fmt: skip
    if inplace and output is not input:
        output = input.copy_(output)
    return output, False


def backward(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool = False,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns gradients of input and parameters from the input; None if the output was kept."""
    source = as_dense(saved)
    if kept is not False or not source.numel():
        return None
    if grad.dtype is not source.dtype or grad.is_neg() or grad.stride() != source.stride():
        grad = torch.empty_like(source).copy_(grad)
    grad_input, grad_first, grad_second = map(torch.empty_like, (source, first, second))
    plan = _tiling(source, first, dim, sums=True)
    # Sums of one channel lie side by side: by program in planes, by column otherwise.
    inner = plan.splits * plan.blocks if plan.planes else plan.inner
    width = plan.channels * inner if plan.planes else plan.width
    rows = 1 if plan.planes else plan.splits
    sums = torch.empty(2, rows * width, dtype=torch.float32, device=source.device)
    constants = _constants(plan, by_slope)
    with torch.cuda.device_of(source):
        backward_kernel[(plan.programs,)](
            grad, source, grad_input, first, second, sums[0], sums[1], plan.tiles, plan.splits,
            *_arguments(plan), **constants, **_OPTIONS,
        )  # fmt: skip
        block = min(16, power_of_two(plan.channels))
        finish_kernel[(-(-plan.channels // block),)](
            sums[0], sums[1], grad_first, grad_second, first, second, rows, width, inner,
            plan.channels, LEAST=constants["LEAST"], LOG2_E=_LOG2_E, SLOPE=by_slope,
            CHANNELS=block, COUNT=TILE // block, **_OPTIONS,
        )  # fmt: skip
    return grad_input, grad_first, grad_second


def _tiling(source: Tensor, first: Tensor, dim: int, sums: bool) -> Tiling:
    channels = first.numel()
    inner = 1 if channels == 1 else source.stride(dim)
    return tiling(source.numel(), channels, inner, sums)


def _arguments(plan: Tiling) -> tuple[int, ...]:
    return plan.size, plan.width, plan.group, plan.inner, plan.channels


def _constants(plan: Tiling, by_slope: bool) -> dict[str, float]:
    return {
        "LEAST": 0.0 if by_slope else MIN_BETA,
        "LOG2_E": _LOG2_E,
        "SLOPE": by_slope,
        "PLANES": plan.planes,
        "WIDE": plan.is_wide,
        "ROWS": plan.block_rows,
        "COLUMNS": plan.block_columns,
    }


@triton.jit
def forward_kernel(
    source, output, first, second, size, width, group, inner, channels,
    LEAST: tl.constexpr, LOG2_E: tl.constexpr, SLOPE: tl.constexpr, PLANES: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns, inside, which, _, split = _columns(width, group, WIDE, COLUMNS)
    channel = which if PLANES else (columns // inner) % channels
    a = _spread(_load(first, channel, inside, PLANES), PLANES)
    b = _spread(_bounded(_load(second, channel, inside, PLANES), LEAST), PLANES)
    offsets, mask = _tile(split, columns, inside, size, width, WIDE, ROWS)
    y = tl.load(source + offsets, mask=mask, other=0.0).to(tl.float32)
    if SLOPE:
        _, n, whole, r, p = _power(_finite(y), b * LOG2_E)
        part = _growth(y, b, n, whole, p * LOG2_E)
    else:
        _, n, whole, r, p = _power(y, b * LOG2_E)
        part = whole * (p * r) + (whole - 1.0)
    f = tl.where(y > 0, y, a * part)
    tl.store(output + offsets, f.to(output.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    grad, source, grad_input, first, second, sums_first, sums_second, tiles, splits,
    size, width, group, inner, channels,
    LEAST: tl.constexpr, LOG2_E: tl.constexpr, SLOPE: tl.constexpr, PLANES: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns, inside, which, block, split = _columns(width, group, WIDE, COLUMNS)
    channel = which if PLANES else (columns // inner) % channels
    a = _spread(_load(first, channel, inside, PLANES), PLANES)
    b = _spread(_bounded(_load(second, channel, inside, PLANES), LEAST), PLANES)
    if SLOPE:
        b = _not_zero(b)
    rate = b * LOG2_E
    slope = a if SLOPE else a * b
    sum_first = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    sum_second = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for tile in range(tiles):
        offsets, mask = _tile(split * tiles + tile, columns, inside, size, width, WIDE, ROWS)
        y = tl.load(source + offsets, mask=mask, other=1.0).to(tl.float32)
        g = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        exponent, n, whole, r, p = _power(y, rate)
        product = whole * (p * r)
        gw = g * (product + whole)
        positive = y > 0
        # An infinite gradient of a positive input must not reach the sums as inf * 0.
        if SLOPE:
            part = _growth(y, b, n, whole, p * LOG2_E)
            excess = _excess(n, whole, r, product + whole)
            sum_first += tl.where(positive, 0.0, g * part)
            sum_second += tl.where(positive, 0.0, g * excess)
        else:
            sum_first += tl.where(positive, 0.0, g * (product + (whole - 1.0)))
            sum_second += tl.where(positive, 0.0, gw * exponent)
        gx = tl.where(positive, g, gw * slope)
        tl.store(grad_input + offsets, gx.to(grad_input.dtype.element_ty), mask=mask)
    if PLANES:
        place = (which * splits + split) * tl.cdiv(group, COLUMNS) + block
        tl.store(sums_first + place, tl.sum(tl.sum(sum_first, 1), 0))
        tl.store(sums_second + place, tl.sum(tl.sum(sum_second, 1), 0))
    else:
        place = split * width + columns
        tl.store(sums_first + place, tl.sum(sum_first, 0), mask=inside)
        tl.store(sums_second + place, tl.sum(sum_second, 0), mask=inside)


@triton.jit
def finish_kernel(
    sums_first, sums_second, grad_first, grad_second, first, second, rows, width, inner, channels,
    LEAST: tl.constexpr, LOG2_E: tl.constexpr, SLOPE: tl.constexpr, CHANNELS: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Adds a channel's sums: `inner` side by side, again every `channels * inner`, in each row."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    per_row = width // channels
    sum_first = tl.zeros((CHANNELS, COUNT), dtype=tl.float32)
    sum_second = tl.zeros((CHANNELS, COUNT), dtype=tl.float32)
    for start in range(0, rows * per_row, COUNT):
        count = start + tl.arange(0, COUNT)
        column = count % per_row
        first_of = count // per_row * width + column // inner * (channels * inner) + column % inner
        place = first_of[None, :] + channel[:, None] * inner
        mask = (count < rows * per_row)[None, :] & exists[:, None]
        sum_first += tl.load(sums_first + place, mask=mask, other=0.0)
        sum_second += tl.load(sums_second + place, mask=mask, other=0.0)
    a = tl.load(first + channel, mask=exists, other=1.0).to(tl.float32)
    b = tl.load(second + channel, mask=exists, other=1.0).to(tl.float32)
    if SLOPE:  # y^2 was summed as (b y)^2
        divisor = _not_zero(_bounded(b, LEAST))
        factor = a / divisor / divisor
    else:  # y was summed as y beta log2(e)
        factor = a / (_bounded(b, LEAST) * LOG2_E)
    # An infinite alpha without a negative input gets 0, not NaN.
    total = tl.sum(sum_second, 1)
    total = tl.where(total == 0, 0.0, total * factor)
    # A beta below the bound may be raised, but not lowered any further.
    total = tl.where((b >= LEAST) | (total < 0), total, 0.0)
    tl.store(
        grad_first + channel, tl.sum(sum_first, 1).to(grad_first.dtype.element_ty), mask=exists
    )
    tl.store(grad_second + channel, total.to(grad_second.dtype.element_ty), mask=exists)


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
def _bounded(second, LEAST: tl.constexpr):
    return tl.where(second <= LEAST, LEAST, second)  # keeps NaN


@triton.jit
def _power(y, rate):
    """Returns the exponent min(y, 0) rate = n + r, n, 2^n, r, and (2^r - 1) / r.

    The exponent is at least -127, where 2^n is 0. NaN stays NaN.
    """
    exponent = tl.minimum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) * rate
    exponent = tl.maximum(exponent, -127.0, propagate_nan=tl.PropagateNan.ALL)
    # The sum leaves n + 127, the exponent's bits of 2^n, in its lowest bits: 1.5 * 2^23 + 127.
    shifted = exponent + 12583039.0
    whole = (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    n = shifted - 12583039.0
    r = exponent - n
    # Minimax on [-1/2, 1/2], relative error 1.1e-8; the coefficients are those of simd.h.
    p = 1.54035123e-4 * r + 1.33907355e-3
    p = p * r + 9.61823750e-3
    p = p * r + 5.55035743e-2
    p = p * r + 2.40226498e-1
    p = p * r + 6.93147188e-1
    return exponent, n, whole, r, p


@triton.jit
def _finite(y):
    return tl.maximum(y, -1e38, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _not_zero(rate):
    """Bounds a rate from where it makes no difference to gradients, but its square underflows."""
    return tl.maximum(rate, 1e-12, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _growth(y, b, n, whole, grown):
    """Returns (e^(b y) - 1) / b for y <= 0, from (2^r - 1) / (r ln(2)): y where b is 0.

    Nothing is divided by b where n is 0, which it is for all y if 1 / b would overflow.
    """
    divides = b > 1e-36
    length = tl.where(divides, 1.0 / tl.where(divides, b, 1.0), 0.0)
    below = tl.minimum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    below = tl.where(divides, _finite(below), below)  # times 2^n, which is 0 then
    rest = below - n * (length * 0.6931471805599453)
    return whole * (rest * grown) + (whole - 1.0) * length


@triton.jit
def _excess(n, whole, r, w):
    """Returns w ln(w) - w + 1 for w = 2^(n + r), of which no term is larger than it."""
    # Minimax on [-1/2, 1/2], relative error 7.4e-7; the coefficients are those of simd.h.
    p = 7.68938488e-4 * r + 5.3619597e-3
    p = p * r + 2.88552373e-2
    p = p * r + 1.11006449e-1
    p = p * r + 2.40226475e-1
    return p * (r * r * whole) + (w * n * 0.6931471805599453 + (1.0 - whole))


IS_INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)
