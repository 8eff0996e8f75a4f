"""Orthogonal weights: linear layers, convolutions with one tap, and all others as one matrix.

A random orthogonal matrix keeps the length of every vector. A Gaussian one keeps it on average
alone. The rule, for a layer of given standard deviation:

- linear layers: a (semi-)orthogonal matrix;
- convolutions of stride one whose kernel has a middle that never lies on padding: an orthogonal
  matrix in the middle and zeros around it (delta-orthogonal), so that a map passes as it is;
- strided, transposed, depthwise and all other convolutions: the kernel flattened to one matrix per
  group, which is made semi-orthogonal;
- groups have a matrix each.

Every matrix is scaled to the expected norm of the Gaussian one, so the variance of the layer's
output is the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpelu.graph import Layer

DISTRIBUTIONS = ("normal", "orthogonal")


def has_delta(layer: Layer) -> bool:
    """Whether the layer's kernel has a middle that always lies on the map."""
    if layer.transposed or not layer.is_standard or len(layer.kernel) == 0:
        return False
    is_plain = all(size % 2 == 1 for size in layer.kernel) and all(s == 1 for s in layer.stride)
    if not is_plain or max(layer.kernel) == 1 or layer.channels == layer.groups:
        return False
    return all(
        max(zeros) <= step * (size // 2)
        for zeros, size, step in zip(layer.padding, layer.kernel, layer.dilation, strict=False)
    )


@torch.no_grad()
def fill_orthogonal_(
    weight: Tensor,
    std: float | Tensor,
    generator: torch.Generator | None,
    groups: int = 1,
    is_delta: bool = False,
) -> Tensor:
    """Fills a weight with (semi-)orthogonal matrices that have the norm of N(0, std^2).

    Args:
        weight: outputs first, or inputs first if transposed.
        std: one number, or one for each group of the layer.
        generator: of the random numbers.
        groups: of the layer.
        is_delta: put the matrix in the middle of the kernel, with zeros around it.
    """
    rows = weight.size(0) // groups
    columns = weight.size(1) if is_delta else weight[0].numel()
    matrices = _orthogonal(groups, rows, columns, weight, generator)
    scale = (weight.numel() / groups / min(rows, columns)) ** 0.5
    factors = (
        std if isinstance(std, Tensor) else torch.tensor([std], dtype=torch.float64, device="cpu")
    )
    matrices = matrices * (scale * factors).to(matrices).reshape(-1, 1, 1)
    if is_delta:
        size = math.prod(weight.shape[2:])
        taps = matrices.new_zeros(groups, rows, columns, size)
        taps[..., size // 2] = matrices
        weight.copy_(taps.reshape(weight.shape))
    else:
        weight.copy_(matrices.reshape(weight.shape))
    return weight


def _orthogonal(
    count: int, rows: int, columns: int, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Matrices [count, rows, columns] with orthonormal rows or columns, uniformly distributed."""
    # There is no QR decomposition in half precision.
    dtype = torch.promote_types(like.dtype, torch.float32)
    shape = (count, max(rows, columns), min(rows, columns))
    drawn = torch.empty(shape, dtype=dtype, device=like.device).normal_(generator=generator)
    q, r = torch.linalg.qr(drawn)
    q = q * r.diagonal(dim1=1, dim2=2).sgn().unsqueeze(1)
    matrices: Tensor = q if rows >= columns else q.mT
    return matrices
