"""From bytes to what a network sees: fitted on the training set, saved with the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from mpelu.lab.config import Config
from mpelu.lab.data import whiten
from mpelu.lab.data.augment import centre_crop
from mpelu.lab.data.cache import cached
from mpelu.lab.data.shapes import CHANNELS, sides
from mpelu.lab.errors import UserError

LARGEST_WHITENED = 64


class Preprocess:
    """Fitted preprocessing of one kind.

    Args:
        kind: one of Config's.
        parts: what was fitted, as `state` gives it.
        size: side of the images the network sees.
    """

    def __init__(self, kind: str, parts: Mapping[str, Tensor], size: int) -> None:
        self.kind = kind
        self.size = size
        self._parts = dict(parts)

    def state(self) -> dict[str, Tensor]:
        """All that was fitted, by name, on the CPU."""
        return {name: each.cpu() for name, each in self._parts.items()}

    def to(self, device: torch.device) -> Preprocess:
        """The same on another device."""
        parts = {name: each.to(device) for name, each in self._parts.items()}
        return Preprocess(self.kind, parts, self.size)

    def __call__(self, images: Tensor) -> Tensor:
        """What the network sees in testing: normalised, then the middle.

        Args:
            images: whole images, uint8 [b, channels, side, side].

        Returns:
            float32 [b, channels, size, size]
        """
        if not self.pointwise:
            images = self.normalise(images)
        return self.normalise(centre_crop(images, self.size)).contiguous()

    @property
    def pointwise(self) -> bool:
        """Whether crops can be normalised too; otherwise only whole images."""
        return self.kind in ("channel", "none")

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes as float32 of the same shape; 0 is then the mean (black with kind none).

        Images that are float32 already have been normalised and stay as they are.
        """
        if images.dtype == torch.float32:
            return images
        part = self._parts
        if self.kind == "channel":
            shape = (-1, 1, 1)
            # A product takes two thirds of a quotient's time.
            inverse = part["std"].reciprocal().view(shape)
            return images.float().sub_(part["mean"].view(shape)).mul_(inverse)
        if self.kind == "mean-image":
            return images.float().sub_(part["mean"])
        if self.kind == "gcn-zca":
            flat = whiten.contrast_normalise(images).sub_(part["mean"])
            return (flat @ part["matrix"]).view(images.shape)
        return images.float().div_(part["scale"])


def fit(kind: str, chunks: Iterable[Tensor]) -> dict[str, Tensor]:
    """The parts of a preprocessing fitted to images.

    Args:
        kind: one of Config's.
        chunks: whole training images, uint8 [b, channels, side, side] each.
    """
    if kind == "none":
        return {"scale": torch.tensor(255.0)}
    if kind == "gcn-zca":
        mean, matrix = whiten.fit(chunks)
        return {"mean": mean, "matrix": matrix}
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for images in chunks:
        exact = images.double()
        count += len(images)
        total = total.to(images.device) + exact.sum(0)
        squares = squares.to(images.device) + exact.square().sum((0, 2, 3))
    if kind == "mean-image":
        return {"mean": (total / count).float()}
    pixels = count * total.shape[1] * total.shape[2]
    mean = total.sum((1, 2)) / pixels
    std = (squares / pixels - mean.square()).clamp(min=0).sqrt()
    # A channel of one value becomes zeros.
    return {"mean": mean.float(), "std": torch.where(std > 0, std, 1.0).float()}


def check_size(kind: str, side: int) -> None:
    """Raises UserError for whitening of images that are too large for it."""
    if kind == "gcn-zca" and side > LARGEST_WHITENED:
        raise UserError(
            f"preprocess: expected images of at most {LARGEST_WHITENED}x{LARGEST_WHITENED} for "
            f"gcn-zca, got {side}x{side}"
        )


def fitted_once(
    config: Config, fingerprint: str, channels: int, chunks: Iterable[Tensor]
) -> dict[str, Tensor]:
    """`fit`, with the result kept on disk.

    Args:
        config: its preprocess and image size count, and its data_dir.
        fingerprint: of the images.
        channels: of the images.
        chunks: the images, read only if they have to be.
    """
    whole, _ = sides(config)
    settings = (config.preprocess, fingerprint, whole, whiten.SCALE, whiten.BIAS)
    return cached(
        config.preprocess,
        repr(settings),
        None if config.data_dir is None else Path(config.data_dir).expanduser(),
        lambda: fit(config.preprocess, chunks),
        lambda parts: _problem(config.preprocess, parts, channels, whole),
    )


def restore_preprocess(config: Config, state: Mapping[str, Tensor]) -> Preprocess:
    """The preprocessing of a run from what `Preprocess.state` gave.

    Raises:
        UserError: if the state isn't one of this config.
    """
    whole, size = sides(config)
    problem = _problem(config.preprocess, state, CHANNELS[config.data], whole)
    if problem is None:
        return Preprocess(config.preprocess, state, size)
    raise UserError(f"preprocess: {problem}")


def _problem(kind: str, parts: Mapping[str, Tensor], channels: int, side: int) -> str | None:
    """What is wrong with fitted parts for images of a shape; None if nothing."""
    flat = channels * side * side
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "channel": {"mean": (channels,), "std": (channels,)},
        "gcn-zca": {"mean": (flat,), "matrix": (flat, flat)},
        "mean-image": {"mean": (channels, side, side)},
        "none": {"scale": ()},
    }
    expected = shapes[kind]
    actual = {name: tuple(each.shape) for name, each in parts.items()}
    if actual != expected:
        return f"expected {expected}, got {actual}"
    for name, each in parts.items():
        if each.dtype != torch.float32 or not each.isfinite().all():
            return f"expected finite float32 numbers in {name}"
    return None
