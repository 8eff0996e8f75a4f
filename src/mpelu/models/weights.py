"""The initial weights networks come with; `mpelu.init` has more rules for whole networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import nn


def taylor_(network: nn.Module, slope: float, mode: Literal["fan_in", "fan_out"]) -> None:
    """Convolutions by the paper's rule, std = sqrt(2 / (n (1 + slope^2))); all biases zero.

    Args:
        network: changed in place.
        slope: alpha beta of the activation.
        mode: whether n counts the inputs or the outputs of a convolution.
    """
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, slope, mode, "leaky_relu")


def gaussian_(network: nn.Module, std: float) -> None:
    """Convolutions from a Gaussian; all biases zero."""
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=std)


def _weighted(network: nn.Module) -> Iterator[nn.Conv2d | nn.Linear]:
    """Convolutions and linear layers, their biases made zero; none that have no values (meta)."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and not module.weight.is_meta:
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            yield module
