"""Networks without shortcuts: 15, 30 and 52 layers for ImageNet, and any number on small maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpelu.models.parts import ActivationSpec, Images, at_least, keep_variance_

SHALLOWEST = 15
SMALLEST = 19
LEVELS = (1, 2, 4, 8)
_CLASSIFIER = 3
_MOMENTUM = 0.001
"""Momentum of running statistics; Caffe's moving_average_fraction is 0.999."""


def bins(size: int, count: int) -> tuple[int, int]:
    """Returns a bin's side and the leading padding of Caffe's pyramid level of count x count bins.

    Example:
        >>> bins(20, 8)
        (3, 2)
    """
    side = -(-size // count)
    return side, (side * count - size + 1) // 2


def levels(size: int) -> tuple[int, ...]:
    """Returns the levels Caffe uses on a map of this size: those without bins of only padding."""
    sides = {count: bins(size, count) for count in LEVELS}
    return tuple(count for count, (side, padding) in sides.items() if padding < side)


class SpatialPyramid(nn.Module):
    """Takes the maximum of every bin of every level, with Caffe's bins.

    If bins don't divide the map, adaptive pooling lets them overlap; Caffe pads the map instead
    and excludes the padding from the maximum.

    Args:
        size: height and width of the map.

    Shape:
        - Input: [batch, channels, size, size].
        - Output: [batch, channels * (1 + 4 + 16 + 64)], level by level.

    Example:
        >>> SpatialPyramid(20)(torch.zeros(2, 256, 20, 20)).shape
        torch.Size([2, 21760])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.levels = levels(size)

    def forward(self, input: Tensor) -> Tensor:
        pooled = []
        for count in self.levels:
            side, ahead = bins(self.size, count)
            behind = side * count - self.size - ahead
            padded = F.pad(input, (ahead, behind, ahead, behind), value=float("-inf"))
            pooled.append(F.max_pool2d(padded, side, side).flatten(1))
        return torch.cat(pooled, 1)

    def extra_repr(self) -> str:
        return f"size={self.size}, levels={self.levels}"


def _padding(index: int) -> int:
    """Returns the padding of the index-th convolution: 1 for 3, 5, 7, 9 and from 11 on, else 0."""
    return 0 if index == 1 or (index < 12 and index % 2 == 0) else 1


def build(
    name: str,
    depth: int,
    *,
    activation: ActivationSpec,
    num_classes: int,
    in_channels: int,
    batch_norm: bool | None = None,
    dropout: float | None = None,
    width: int = 64,
    fc_width: int = 4096,
    input_size: int = 224,
    norm_momentum: float = _MOMENTUM,
    small_maps: bool = False,
) -> nn.Sequential:
    """Builds convolutions in three stages, spatial pyramid pooling and three linear layers.

    From the 12th on, each convolution lets the map grow by one, as in the published files: to
    20x20, 35x35 and 57x57 with 15, 30 and 52 layers. On small images the pyramid omits levels that
    would have bins without a pixel.

    With `small_maps`, it is a network for studying depth: 3x3 convolutions of one width, the first
    with stride 2, all on maps of half the image's size, and one linear layer. It can have any
    depth; a single layer is softmax regression.

    Args:
        name: name of the network, for errors.
        depth: number of weight layers: at least 15, or at least 1 with small_maps.
        activation: activation after every convolution and the first two linear layers.
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        batch_norm: whether batch norm, without scale and shift, precedes each activation; None for
            the paper's choice, which is True with 15 layers only.
        dropout: dropout rate after the first two linear layers; None for the paper's choice, 0 with
            15 layers and 0.5 with more.
        width: channels of the first stage; the others have twice and four times as many.
        fc_width: width of the first two linear layers.
        input_size: height and width of the images.
        norm_momentum: momentum of running statistics; the published one needs thousands of steps.
        small_maps: whether to make all convolutions 3x3, with the same width, on maps of half the
            image's size. dropout and fc_width then don't apply, and batch_norm is off by default.
    """
    if small_maps:
        if dropout:
            raise ValueError(f"{name}: expected no dropout with small_maps, got {dropout}")
        at_least(f"{name}: width", width, 1)
        images = Images(name, in_channels, input_size, exact=True)
        momentum = norm_momentum if batch_norm else None
        network = _small(depth, images, activation, num_classes, width, momentum)
        keep_variance_(network, activation, "fan_in")
        return network
    at_least(f"{name}: depth", depth, SHALLOWEST)
    at_least(f"{name}: width", width, 1)
    at_least(f"{name}: fc_width", fc_width, 1)
    at_least(f"{name}: input_size", input_size, SMALLEST)
    paper_15 = depth == SHALLOWEST
    normalized = paper_15 if batch_norm is None else batch_norm
    rate = (0.0 if paper_15 else 0.5) if dropout is None else dropout

    network = nn.Sequential(Images(name, in_channels, input_size, exact=True))
    size, channels = input_size, in_channels
    for index in range(1, depth - _CLASSIFIER + 1):
        out = width * (1 if index == 1 else 2 if index < 6 else 4)
        kernel, stride = (7, 2) if index == 1 else (2, 1)
        padding = _padding(index)
        network.append(nn.Conv2d(channels, out, kernel, stride, padding))
        size = (size + 2 * padding - kernel) // stride + 1
        if normalized:
            network.append(nn.BatchNorm2d(out, momentum=norm_momentum, affine=False))
        network.append(activation.make(out))
        if index in (1, 5):
            pool = 3 if index == 1 else 2
            network.append(nn.MaxPool2d(pool, pool, ceil_mode=True))
            size = -(-size // pool)
        channels = out
    network.append(SpatialPyramid(size))
    features = channels * sum(count**2 for count in levels(size))
    for _ in range(2):
        network.append(nn.Linear(features, fc_width))
        if normalized:
            network.append(nn.BatchNorm1d(fc_width, momentum=norm_momentum, affine=False))
        network.append(activation.make(fc_width))
        if rate:
            network.append(nn.Dropout(rate))
        features = fc_width
    network.append(nn.Linear(features, num_classes))

    keep_variance_(network, activation, "fan_in")
    linear = [module for module in network if isinstance(module, nn.Linear)]
    stds = (0.01, 0.01, 0.01) if paper_15 else (0.005, 0.005, 0.01)
    for module, std in zip(linear, stds, strict=True):
        nn.init.normal_(module.weight, std=std)
    linear_rule = f"linear layers std {', '.join(f'{std:g}' for std in stds)}"
    network.own_initialization = f"{network.own_initialization}, {linear_rule}"  # type: ignore[assignment]
    return network


def _small(
    depth: int,
    images: Images,
    activation: ActivationSpec,
    num_classes: int,
    width: int,
    norm_momentum: float | None,
) -> nn.Sequential:
    at_least(f"{images.network}: depth", depth, 1)
    network = nn.Sequential(images)
    channels, size = images.channels, images.smallest
    for index in range(depth - 1):
        network.append(nn.Conv2d(channels, width, 3, 2 if index == 0 else 1, padding=1))
        if norm_momentum is not None:
            network.append(nn.BatchNorm2d(width, momentum=norm_momentum, affine=False))
        network.append(activation.make(width))
        channels, size = width, size if index else -(-size // 2)
    network.append(nn.Flatten())
    network.append(nn.Linear(channels * size**2, num_classes))
    return network
