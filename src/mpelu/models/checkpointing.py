"""Deep networks in little memory: activations are kept at a few places and computed again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def run_in_segments(blocks: nn.Sequential, input: Tensor) -> Tensor:
    """Runs the blocks, keeping for backward only the input of every sqrt(n)-th of n.

    Backward runs each segment once more, so at most about 2 sqrt(n) blocks are held at a time. The
    second run draws the same random numbers and leaves batch statistics alone.

    Args:
        blocks: run in order.
        input: of the first block.

    Returns:
        The output of the last block, the same to the bit as `blocks(input)`.
    """
    size = max(1, round(math.sqrt(len(blocks))))
    for start in range(0, len(blocks), size):
        segment = blocks[start : start + size]
        input = checkpoint(
            segment,
            input,
            use_reentrant=False,
            context_fn=partial(_first_and_second_run, segment),
            # torch would stop once the last tensor is kept, which for an RReLU is before its noise
            # is drawn: wrong gradients.
            early_stop=False,
        )
    return input


def _first_and_second_run(
    segment: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _statistics_left_alone(segment)


@contextmanager
def _statistics_left_alone(segment: nn.Module) -> Iterator[None]:
    """Batch statistics go to copies, since turning them off would change what backward keeps."""
    norms = [module for module in segment.modules() if isinstance(module, _BatchNorm)]
    kept = [(norm, dict(norm.named_buffers(recurse=False))) for norm in norms]
    for norm, buffers in kept:
        for name, buffer in buffers.items():
            setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, buffers in kept:
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
