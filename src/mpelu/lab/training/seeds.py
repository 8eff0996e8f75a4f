"""Every random choice, derived from the seed, the epoch and the step.

Nothing random has to be saved in a checkpoint: a resumed run derives the same numbers again.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def derive(*parts: int | str) -> int:
    """A seed from 0 to 2^63 - 1 for a purpose, the same on every machine and in every process.

    Example:
        >>> derive(0, 1, "augment") == derive(0, 1, "augment") != derive(0, 2, "augment")
        True
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def epoch_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """The batches of an epoch: int64 indices, each of `count` samples exactly once.

    Args:
        count: number of training samples.
        batch_size: of all batches but the last, which holds the rest.
        seed: seed of the run.
        epoch: counted from 1.

    Example:
        >>> [len(batch) for batch in epoch_batches(10, 4, seed=0, epoch=1)]
        [4, 4, 2]
    """
    generator = torch.Generator().manual_seed(derive(seed, epoch, "order"))
    return list(torch.randperm(count, generator=generator).split(batch_size))
