"""Network in Network for CIFAR, as the paper trained it."""

from __future__ import annotations

from torch import nn

from mpelu.models.activations import ActivationSpec
from mpelu.models.checks import Images, at_least
from mpelu.models.weights import gaussian_

SMALLEST = 4
WIDTH = 192
"""Channels of the first convolution in the published network."""


def conv_act(
    before: int, after: int, kernel: int, activation: ActivationSpec, stride: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the size, unless it has a stride, and an activation."""
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2)
    return [conv, activation.make(after)]


def build(
    name: str,
    *,
    activation: ActivationSpec,
    num_classes: int,
    in_channels: int,
    width: int = WIDTH,
    dropout: float = 0.5,
) -> nn.Sequential:
    """Nine convolutions with an activation after each, the last included.

    Weights start from a Gaussian of std 0.05, as in the published files; the paper writes 0.01.

    Args:
        name: for errors.
        activation: after every convolution.
        num_classes: outputs.
        in_channels: of the images.
        width: channels of the first convolution; the others are narrower in proportion.
        dropout: rate after the two poolings; 0 for none.
    """
    at_least(f"{name}: width", width, 1)
    wide, middle, narrow = (max(1, round(each * width / WIDTH)) for each in (WIDTH, 160, 96))
    network = nn.Sequential(
        Images(name, in_channels, SMALLEST),
        *conv_act(in_channels, wide, 5, activation),
        *conv_act(wide, middle, 1, activation),
        *conv_act(middle, narrow, 1, activation),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *([nn.Dropout(dropout)] if dropout else []),
        *conv_act(narrow, wide, 5, activation),
        *conv_act(wide, wide, 1, activation),
        *conv_act(wide, wide, 1, activation),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        *([nn.Dropout(dropout)] if dropout else []),
        *conv_act(wide, wide, 3, activation),
        *conv_act(wide, wide, 1, activation),
        *conv_act(wide, num_classes, 1, activation),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    gaussian_(network, 0.05)
    return network
