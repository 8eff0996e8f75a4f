"""Preprocessing: fitted on the training set, saved with the run, applied to every image."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpelu.lab import files
from mpelu.lab.data.registry import find, image_sizes
from mpelu.lab.errors import UserError
from mpelu.lab.files import digest, read_tensors, seal_tensors

if TYPE_CHECKING:
    from mpelu.lab.config import Config

log = logging.getLogger(__name__)

POINTWISE = ("channel", "none")
"""Kinds that treat every pixel of a channel alike."""
CONTRAST_NORM = 55.0
"""Norm of an image after contrast normalization: a standard deviation of about 1 for 3x32x32."""
ZCA_EPSILON = 0.1
"""Added to the eigenvalues, so that directions with almost no variance aren't amplified."""
_SMALLEST_NORM = 1e-8


class Preprocess:
    """A fitted preprocessing step.

    Args:
        kind: Config's `preprocess`.
        state: the fitted tensors, as returned by `state`.
        size: height and width of the images the network sees.
    """

    def __init__(self, kind: str, state: Mapping[str, Tensor], size: int) -> None:
        self.kind = kind
        self.size = size
        self._state = dict(state)

    def state(self) -> dict[str, Tensor]:
        """Returns the fitted tensors by name, on the CPU."""
        return {name: each.cpu() for name, each in self._state.items()}

    def to(self, device: torch.device) -> Preprocess:
        """Returns a copy on another device."""
        state = {name: each.to(device) for name, each in self._state.items()}
        return Preprocess(self.kind, state, self.size)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalizes whole images and crops the center, as in testing.

        Args:
            images: uint8 [b, channels, image_size, image_size].

        Returns:
            float32 [b, channels, size, size].
        """
        if not self.pointwise:
            images = self.normalize(images)
        return self.normalize(center_crop(images, self.size)).contiguous()

    @property
    def pointwise(self) -> bool:
        """Whether crops can be normalized like whole images."""
        return self.kind in POINTWISE

    def normalize(self, images: Tensor) -> Tensor:
        """Converts uint8 images to float32; the mean becomes 0 (for kind "none", black does).

        float32 images are returned as they are: they have been normalized already.
        """
        if images.dtype == torch.float32:
            return images
        state = self._state
        if self.kind == "channel":
            shape = (-1, 1, 1)
            # Multiplying takes two thirds of the time of dividing.
            inverse = state["std"].reciprocal().view(shape)
            return images.float().sub_(state["mean"].view(shape)).mul_(inverse)
        if self.kind == "mean-image":
            return images.float().sub_(state["mean"])
        if self.kind == "gcn-zca":
            flat = contrast_normalize(images).sub_(state["mean"])
            return (flat @ state["matrix"]).view(images.shape)
        return images.float().div_(state["scale"])


def center_crop(images: Tensor, size: int) -> Tensor:
    """Returns a view of the center of each image, [..., size, size].

    Example:
        >>> center_crop(torch.arange(16).view(4, 4), 2)
        tensor([[ 5,  6],
                [ 9, 10]])
    """
    height, width = images.shape[-2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def fit(kind: str, chunks: Iterable[Tensor]) -> dict[str, Tensor]:
    """Fits a preprocessing step and returns its state.

    Args:
        kind: Config's `preprocess`.
        chunks: whole training images, uint8 [b, channels, image_size, image_size] each.

    Example:
        >>> fit("channel", [torch.tensor([0, 2], dtype=torch.uint8).view(2, 1, 1, 1)])
        {'mean': tensor([1.]), 'std': tensor([1.])}
    """
    if kind == "none":
        return {"scale": torch.tensor(255.0)}
    # Apple's GPUs lack double precision.
    chunks = (each.cpu() if each.device.type == "mps" else each for each in chunks)
    if kind == "gcn-zca":
        mean, matrix = fit_whitening(chunks)
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
    # A constant channel becomes zeros.
    return {"mean": mean.float(), "std": torch.where(std > 0, std, 1.0).float()}


def contrast_normalize(images: Tensor) -> Tensor:
    """Global contrast normalization: subtracts each image's mean, then scales it to norm 55.

    A constant image becomes zeros.

    Args:
        images: [b, channels, height, width] of any dtype.

    Returns:
        float32 [b, channels * height * width].
    """
    flat = images.flatten(1).float()
    flat = flat - flat.mean(1, keepdim=True)
    norm = flat.norm(dim=1, keepdim=True)
    return flat.mul_(CONTRAST_NORM / torch.where(norm < _SMALLEST_NORM, CONTRAST_NORM, norm))


def fit_whitening(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Fits ZCA whitening to contrast-normalized images, as in the Maxout and NIN papers.

    For a covariance V diag(l) V', the matrix is V diag(1 / sqrt(l + 0.1)) V'.

    Args:
        chunks: images, uint8 [b, channels, height, width] each.

    Returns:
        The mean [f] and the whitening matrix [f, f], f = channels * height * width, as float32.
    """
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for images in chunks:
        flat = contrast_normalize(images)
        count += len(flat)
        total = total.to(flat.device) + flat.double().sum(0)
        products = products.to(flat.device) + (flat.T @ flat).double()
    mean = total / count
    covariance = products / count - torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(covariance)
    matrix = (vectors * (values.clamp(min=0) + ZCA_EPSILON).rsqrt()) @ vectors.T
    return mean.float(), matrix.float()


def fit_cached(
    config: Config, fingerprint: str, channels: int, chunks: Iterable[Tensor]
) -> dict[str, Tensor]:
    """Does the same as `fit`, but reads the result from a file if the same fit was done before.

    The cache is in the data directory, or in ~/.cache/mpelu if there is none, it is marked
    read-only or can't be written to. Damaged files are computed again.

    Args:
        config: its `preprocess`, `image_size` and `data_dir` are used.
        fingerprint: fingerprint of the training images.
        channels: channels of the images.
        chunks: the images, which are only read if needed.
    """
    kind = config.preprocess
    image_size, _ = image_sizes(config)
    key = repr((kind, fingerprint, image_size, CONTRAST_NORM, ZCA_EPSILON))
    name = f"{kind}-{digest(key)[:32]}.safetensors"
    folders = [Path.home() / ".cache" / "mpelu"]
    if config.data_dir is not None:
        folders.insert(0, Path(config.data_dir).expanduser() / "cache")
    for path in (folder / name for folder in folders):
        if path.is_file():
            try:
                tensors: dict[str, Tensor] = read_tensors(path, required=True).tensors
                problem = _problem(kind, tensors, channels, image_size)
            except ValueError as error:
                problem = str(error)
            if problem is None:
                return tensors
            log.warning("%s is damaged and will be computed again: %s", path, problem)
    tensors = {name: each.cpu().contiguous() for name, each in fit(kind, chunks).items()}
    failure: object = "marked read-only"
    for folder in folders:
        if _is_read_only(folder.parent):
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            files.remove_abandoned(folder)
            files.write(folder / name, seal_tensors(tensors), shared=True)
            return tensors
        except OSError as error:
            failure = error
    log.warning("%s could not be cached and will be computed again next time: %s", kind, failure)
    return tensors


def _is_read_only(folder: Path) -> bool:
    """Whether a folder is marked read-only, which doesn't keep root from writing to it."""
    return folder.is_dir() and not folder.stat().st_mode & 0o222


def restore_preprocess(
    config: Config, state: Mapping[str, Tensor], channels: int | None = None
) -> Preprocess:
    """Restores the preprocessing of a run from the result of `Preprocess.state`.

    Args:
        config: config of the run.
        state: the saved state.
        channels: channels of the images (default: those of the data set of the config).

    Raises:
        UserError: if the state doesn't fit the config.
    """
    image_size, size = image_sizes(config)
    channels = channels or find(config.data).channels
    problem = _problem(config.preprocess, state, channels, image_size)
    if problem is None:
        return Preprocess(config.preprocess, state, size)
    raise UserError(f"the saved preprocessing doesn't fit the config: {problem}")


def _problem(kind: str, state: Mapping[str, Tensor], channels: int, image_size: int) -> str | None:
    """What is wrong with a state for images of this shape; None if nothing is."""
    flat = channels * image_size * image_size
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "channel": {"mean": (channels,), "std": (channels,)},
        "gcn-zca": {"mean": (flat,), "matrix": (flat, flat)},
        "mean-image": {"mean": (channels, image_size, image_size)},
        "none": {"scale": ()},
    }
    expected = shapes[kind]
    actual = {name: tuple(each.shape) for name, each in state.items()}
    if actual != expected:
        return f"expected tensors {expected}, got {actual}"
    for name, each in state.items():
        if each.dtype != torch.float32 or not each.isfinite().all():
            return f"expected finite float32 values in {name}"
    return None
