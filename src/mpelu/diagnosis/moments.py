"""Mean, variance and signal of a tensor, in double precision."""

from __future__ import annotations

import torch
from torch import Tensor


def is_measurable(value: Tensor) -> bool:
    """Whether it has real numbers that can be read."""
    hidden = torch._C._functorch.is_functorch_wrapped_tensor(value)  # inside vmap
    return value.is_floating_point() and value.numel() > 0 and value.dim() > 0 and not hidden


def moments(values: Tensor, batch: int) -> tuple[float, float, float]:
    """Mean and variance of all values, and the variance between samples.

    Takes the mean first and then the squares of what is left, which is as exact as torch.var and
    many times faster along the first dimension.
    """
    samples = _by_sample(values.detach().double(), batch)
    means = samples.mean(0)
    mean = means.mean()
    inside = (samples - means).square_().mean()
    variance = inside + (means - mean).square_().mean()
    count = len(samples)
    between = inside * (count / (count - 1)) if count > 1 else variance
    return mean.item(), variance.item(), between.item()


def mean_square(values: Tensor) -> float:
    return values.detach().double().square().mean().item()


def _by_sample(values: Tensor, batch: int) -> Tensor:
    """As [batch, values of a sample], or [1, values] where samples can't be told apart."""
    if batch > 1 and values.size(0) % batch == 0:  # also windows or heads folded into the batch
        return values.reshape(batch, -1)
    if batch > 1 and values.dim() > 1 and values.size(1) == batch:
        return values.transpose(0, 1).reshape(batch, -1)
    return values.reshape(1, -1)
