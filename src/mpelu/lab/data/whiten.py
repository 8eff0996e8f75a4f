"""Global contrast normalization and ZCA whitening, as in the Maxout and NIN papers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

SCALE = 55.0
"""Norm of an image after contrast normalization: about standard deviation 1 for 32x32x3."""
FLOOR = 1e-8
BIAS = 0.1
"""Added to the eigenvalues, so that directions with next to no variance aren't blown up."""


def contrast_normalise(images: Tensor) -> Tensor:
    """Each image minus its own mean, then scaled to norm 55. An image of one value becomes zeros.

    Args:
        images: [b, channels, height, width] of any type.

    Returns:
        float32 [b, channels * height * width]
    """
    flat = images.flatten(1).float()
    flat = flat - flat.mean(1, keepdim=True)
    norm = flat.norm(dim=1, keepdim=True)
    return flat.mul_(SCALE / torch.where(norm < FLOOR, SCALE, norm))


def fit(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and whitening matrix of contrast-normalised images.

    With covariance V diag(l) V' the matrix is V diag(1 / sqrt(l + 0.1)) V'.

    Args:
        chunks: images, uint8 [b, channels, height, width] each.

    Returns:
        float32 [f] and [f, f], f = channels * height * width
    """
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for images in chunks:
        flat = contrast_normalise(images)
        count += len(flat)
        total = total.to(flat.device) + flat.double().sum(0)
        products = products.to(flat.device) + (flat.T @ flat).double()
    mean = total / count
    covariance = products / count - torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(covariance)
    matrix = (vectors * (values.clamp(min=0) + BIAS).rsqrt()) @ vectors.T
    return mean.float(), matrix.float()
