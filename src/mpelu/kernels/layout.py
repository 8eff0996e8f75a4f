"""How kernels read a tensor: as dense memory and, on a GPU, in tiles, one after another.

`tiling` reads memory as a matrix whose rows repeat the same channels, in one of two ways:

- planes: a channel has at least 64 consecutive elements (images, NCHW). A tile lies in one channel,
  so a program adds up one pair of sums. Shared parameters count as one channel, which can be cut
  into rows freely.
- columns: channels change more often (channels_last, matrices, small images). A program stays in
  its columns while it goes down the rows, and adds up one pair of sums per column.

The shape determines everything, including the order of the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 1024
"""Elements in a tile: 8 for each of the 128 threads of a program."""
_WIDTHS = tuple(1 << n for n in range(6, 11))  # powers of two, as Triton requires of blocks
_NARROW = _WIDTHS[0]
_ROW = 512  # short rows are joined up to this length, to fill tiles


def as_dense(tensor: Tensor) -> Tensor:
    """Returns the tensor itself if it fills its memory without gaps, in any order, or a copy."""
    if torch.ops.aten.is_non_overlapping_and_dense.default(tensor) and not tensor.is_neg():
        return tensor
    return torch.empty_like(tensor).copy_(tensor)


class Tiling(NamedTuple):
    """A tensor of `size` elements as `rows` of `width`; each row is `groups` of `group` columns.

    A tile doesn't cross the border of a group. A program takes `tiles` of them, one below the
    other; there are `splits` programs for the same columns.
    """

    size: int
    channels: int
    inner: int  # consecutive elements of one channel
    width: int
    group: int
    block_rows: int
    block_columns: int
    tiles: int
    splits: int
    planes: bool

    @property
    def blocks(self) -> int:
        """Number of tiles side by side in a group."""
        return -(-self.group // self.block_columns)

    @property
    def programs(self) -> int:
        return self.splits * (self.width // self.group) * self.blocks

    @property
    def is_wide(self) -> bool:
        """Whether an offset, even a masked one, needs 64 bits."""
        rows = self.splits * self.tiles * self.block_rows
        return rows * self.width + self.block_columns >= 2**31


def tiling(size: int, channels: int, inner: int, sums: bool) -> Tiling:
    """Returns tiles for a dense tensor.

    Args:
        size: number of elements, at least one.
        channels: number of channels; 1 if all elements share their parameters.
        inner: stride of the channel dimension.
        sums: whether programs add up over their tiles; otherwise each takes one tile.
    """
    planes = channels == 1 or inner >= _NARROW
    if channels == 1:
        inner = width = group = _WIDTHS[-1]
    elif planes:
        width, group = channels * inner, inner
    else:
        repeats = min(max(_ROW // (channels * inner), 1), size // (channels * inner))
        width = group = repeats * channels * inner
    rows = -(-size // width)
    columns = _columns(group) if planes else min(_NARROW, power_of_two(width))
    block_rows = min(TILE // columns, power_of_two(rows))
    tiles = -(-rows // block_rows)
    # Planes: enough work to hide the reduction at the end. Columns write sums for each column, so
    # they have to cover more rows: with 8 tiles of 16 rows, the sums are 2 % of the traffic.
    chunk = min(tiles, (4 if planes else 8) if sums else 1)
    return Tiling(
        size, channels, inner, width, group, block_rows, columns, chunk, -(-tiles // chunk), planes
    )


def _columns(group: int) -> int:
    """Returns the widest block that is at least 85 % full, or else the fullest."""

    def full(block: int) -> float:
        return group / (-(-group // block) * block)

    return max(_WIDTHS, key=lambda block: (min(full(block), 0.85), block))


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that isn't smaller than the number."""
    return 1 << (number - 1).bit_length()
