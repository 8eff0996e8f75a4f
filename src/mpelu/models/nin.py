"""Network in Network for CIFAR, as the paper trained it."""

from __future__ import annotations

from torch import nn

from mpelu.models.activations import ActivationSpec
from mpelu.models.checks import Images
from mpelu.models.weights import gaussian_

SMALLEST = 4


def conv_act(
    before: int, after: int, kernel: int, activation: ActivationSpec, stride: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the size, unless it has a stride, and an activation."""
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2)
    return [conv, activation.make(after)]


def build(
    name: str, *, activation: ActivationSpec, num_classes: int, in_channels: int
) -> nn.Sequential:
    """Nine convolutions with an activation after each, the last included.

    Weights start from a Gaussian of std 0.05, as in the published files; the paper writes 0.01.
    """
    network = nn.Sequential(
        Images(name, in_channels, SMALLEST),
        *conv_act(in_channels, 192, 5, activation),
        *conv_act(192, 160, 1, activation),
        *conv_act(160, 96, 1, activation),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Dropout(0.5),
        *conv_act(96, 192, 5, activation),
        *conv_act(192, 192, 1, activation),
        *conv_act(192, 192, 1, activation),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Dropout(0.5),
        *conv_act(192, 192, 3, activation),
        *conv_act(192, 192, 1, activation),
        *conv_act(192, num_classes, 1, activation),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    gaussian_(network, 0.05)
    return network
