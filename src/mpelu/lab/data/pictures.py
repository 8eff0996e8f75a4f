"""Labelled pictures in memory, and their scaling."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures:
    """One half of a data set: uint8 [n, channels, side, side] and int64 [n]."""

    images: Tensor
    labels: Tensor

    def first(self, limit: int | None) -> Pictures:
        """The first `limit` of them; all if None."""
        if limit is None:
            return self
        # Copies, so that the memory of the others is freed.
        return Pictures(images=self.images[:limit].clone(), labels=self.labels[:limit].clone())

    def scaled(self, side: int) -> Pictures:
        """With images of another side."""
        return replace(self, images=scale(self.images, side))

    def fingerprint(self) -> str:
        """SHA-256 of shape, pixels and labels."""
        parts = (self.images.contiguous().numpy(), self.labels.contiguous().numpy())
        return digest(repr(tuple(self.images.shape)).encode(), *parts)


def digest(*parts: Any) -> str:
    """SHA-256 over texts, byte strings and contiguous numpy arrays, as text."""
    total = hashlib.sha256()
    for part in parts:
        # Names of files may hold bytes that aren't UTF-8.
        total.update(os.fsencode(part) if isinstance(part, str) else part)
    return total.hexdigest()


def combined(prints: Iterable[str], classes: Iterable[str]) -> str:
    """Fingerprint of a data set from those of its halves."""
    return digest("\n".join([*prints, *classes]))


def scale(images: Tensor, side: int) -> Tensor:
    """Images brought to side x side, bilinear (with antialiasing where they shrink).

    Args:
        images: uint8 [n, channels, height, width].
        side: the new height and width.

    Returns:
        uint8 [n, channels, side, side]
    """
    if images.shape[-2:] == (side, side):
        return images
    result = torch.empty(*images.shape[:2], side, side, dtype=torch.uint8)
    for start in range(0, len(images), CHUNK):
        part = functional.interpolate(
            images[start : start + CHUNK].float(),
            (side, side),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )
        result[start : start + CHUNK] = part.round_().clamp_(0, 255)
    return result
