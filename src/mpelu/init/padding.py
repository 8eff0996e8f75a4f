"""What zero padding takes away: the second moment along each axis of a map.

An output at the border has fewer inputs, and is itself a weaker input to the next layer. Along one
axis this is a convolution with ones; over the axes of a map it is their product.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mpelu.init.layers import Layer

Profile = tuple[Tensor, ...]
"""For each spatial axis the relative second moment by position, of mean one."""


def flat(shape: torch.Size | None) -> Profile:
    """The same everywhere; without axes where the shape is not known."""
    return tuple(torch.ones(size, dtype=torch.float64) for size in (shape or ())[2:])


def after_layer(layer: Layer, profile: Profile, shape: torch.Size | None) -> tuple[Profile, float]:
    """The profile after a layer, and the share of its inputs that are not padding.

    Args:
        layer: linear or convolutional.
        profile: of its input.
        shape: of its output.
    """
    if layer.transposed or len(profile) != len(layer.padding):
        return flat(shape), 1.0
    share = 1.0
    axes = []
    for axis, values in enumerate(profile):
        kernel = torch.ones(1, 1, layer.weight.size(2 + axis), dtype=torch.float64)
        reached = F.conv1d(
            F.pad(values, layer.padding[axis]).view(1, 1, -1),
            kernel / kernel.numel(),
            stride=layer.stride[axis],
            dilation=layer.dilation[axis],
        ).flatten()
        mean = reached.mean().item()
        share *= mean
        axes.append(reached / mean)
    return tuple(axes), share


def resized(profile: Profile, shape: torch.Size | None) -> Profile:
    """The profile after an operation that changes the map to another size, or to none."""
    if shape is None or len(shape) != len(profile) + 2:
        return flat(shape)
    if all(values.numel() == size for values, size in zip(profile, shape[2:], strict=True)):
        return profile
    stretched = (
        F.interpolate(values.view(1, 1, -1), size=size, mode="linear").flatten()
        for values, size in zip(profile, shape[2:], strict=True)
    )
    return tuple(values / values.mean() for values in stretched)
