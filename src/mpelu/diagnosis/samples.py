"""Random inputs of a shape, for a diagnosis without data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def random_samples(shape: Sequence[int], count: int, *, seed: int = 0) -> Tensor:
    """Samples [count, *shape] with mean 0 and variance 1.

    Those of three dimensions are smooth like photographs: noise at several resolutions. White noise
    would look the same everywhere, and after a pooling layer every sample like any other.

    Example:
        >>> random_samples((3, 32, 32), 8).shape
        torch.Size([8, 3, 32, 32])
    """
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(count, *shape, generator=generator)
    if len(shape) == 3 and min(shape[1:]) > 1:
        for size in (1, 2, 4, 8, 16, 32):
            if size < min(shape[1:]):
                coarse = torch.randn(count, shape[0], size, size, generator=generator)
                samples += F.interpolate(coarse, tuple(shape[1:]), mode="nearest")
    deviation, mean = torch.std_mean(samples)
    return (samples - mean) / deviation if samples.numel() > 1 else samples
