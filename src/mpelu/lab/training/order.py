"""The order of samples: a function of seed and epoch, shared out without loss or repetition."""

from __future__ import annotations

import torch
from torch import Tensor

from mpelu.lab.training.randomness import mix


def batches_of(count: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """The batches of an epoch: int64 indices, every one of `count` samples once.

    Args:
        count: of samples.
        batch_size: of all batches but the last, which has what is left.
        seed: of the run.
        epoch: counted from 1.
    """
    generator = torch.Generator().manual_seed(mix(seed, epoch, "order"))
    return list(torch.randperm(count, generator=generator).split(batch_size))


def share(indices: Tensor, rank: int, size: int) -> Tensor:
    """The part of one of `size` processes: in one piece, as long as the others' or one longer."""
    return indices.tensor_split(size)[rank]


def parts_of(indices: Tensor, count: int) -> list[Tensor]:
    """Up to `count` parts of nearly one length, none of them empty."""
    return [part for part in indices.tensor_split(count) if len(part)]
