"""Running sums over batches, in float64 and in chunks, so that copies stay small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 2**21


def chunks(values: Tensor) -> Iterator[Tensor]:
    """The values as float64, split along dimension 0.

    Example:
        >>> [part.dtype for part in chunks(torch.zeros(3))]
        [torch.float64]
    """
    values = values.detach()
    if values.dim() == 0:
        values = values.reshape(1)
    samples = max(1, _CHUNK // max(1, values[0].numel()))
    for part in values.split(samples):
        yield part.to(torch.float64)


def per_channel(value: float | Tensor, like: Tensor) -> Tensor:
    """One number, or one per channel, in a shape that broadcasts over dimension 1 of `like`.

    Example:
        >>> per_channel(torch.tensor([1.0, 2.0]), torch.zeros(8, 2, 4, 4)).shape
        torch.Size([1, 2, 1, 1])
    """
    tensor = torch.as_tensor(value, dtype=torch.float64, device=like.device).detach()
    if tensor.dim() == 0 or tensor.numel() == 1 or like.dim() < 2:
        return tensor.reshape(-1) if like.dim() < 2 else tensor.reshape([1] * like.dim())
    return tensor.reshape(1, -1, *[1] * (like.dim() - 2))


@dataclass(slots=True)
class RunningMoments:
    """Count, mean and sum of squared deviations of everything added.

    Parts are merged by the rule of Chan, Golub and LeVeque, which doesn't cancel when the mean is
    large compared with the deviations.

    Example:
        >>> moments = RunningMoments()
        >>> for part in torch.tensor([1.0, 2.0, 3.0, 6.0]).double().split(2):
        ...     moments.add(part)
        >>> moments.mean, moments.variance
        (3.0, 3.5)
    """

    count: int = 0
    mean: float = 0.0
    deviations: float = 0.0

    def add(self, values: Tensor) -> None:
        """Adds float64 values."""
        count = values.numel()
        mean = values.mean()
        deviations = (values - mean).square_().sum().item()
        total = self.count + count
        difference = mean.item() - self.mean
        self.mean += difference * count / total
        self.deviations += deviations + difference**2 * self.count * count / total
        self.count = total

    @property
    def variance(self) -> float:
        """Population variance: the sum of squared deviations divided by the count."""
        return self.deviations / self.count


@dataclass(slots=True)
class ChannelRange:
    """Smallest and largest value of each channel."""

    low: Tensor | None = None
    high: Tensor | None = None
    values_per_channel: int = 0

    def add(self, values: Tensor) -> None:
        """Adds values with channels in dimension 1; a vector is a single channel."""
        values = values.reshape(-1, 1) if values.dim() < 2 else values
        others = [dim for dim in range(values.dim()) if dim != 1]
        low, high = values.amin(others), values.amax(others)
        self.values_per_channel += values.numel() // len(low)
        if self.low is None or self.high is None:
            self.low, self.high = low, high
        else:
            self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
