"""The initial weights networks come with: one rule for all convolutions, as the papers have it.

The rule is kept in words as the network's attribute `own_initialization`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mpelu.init import rules
from mpelu.models.activations import ActivationSpec


def keep_variance_(network: nn.Module, activation: ActivationSpec, mode: str) -> None:
    """Convolutions such that the activation keeps the variance of the signal; all biases zero.

    By the paper's rule, `taylor_`, if the activation has slope 1 above zero; otherwise by its
    second moment: std = sqrt(1 / (n E[f^2])).

    Args:
        network: changed in place.
        activation: of the network.
        mode: whether n counts the inputs or the outputs of a convolution.
    """
    if activation.slope is not None:
        taylor_(network, activation.slope, mode)
        return
    second = activation.second_moment
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            rules.taylor_normal_(module.weight, 0.0, mode=mode)  # std = sqrt(2 / n)
            with torch.no_grad():
                module.weight.mul_((2 * second) ** -0.5)
    network.own_initialization = f"exact {mode}, second moment {second:g}"  # type: ignore[assignment]


def taylor_(network: nn.Module, slope: float, mode: str) -> None:
    """Convolutions by the paper's rule, std = sqrt(2 / (n (1 + slope^2))); all biases zero.

    Args:
        network: changed in place.
        slope: alpha beta of the activation.
        mode: whether n counts the inputs or the outputs of a convolution.
    """
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            rules.taylor_normal_(module.weight, slope, mode=mode)
    network.own_initialization = f"taylor {mode}, slope {slope:g}"  # type: ignore[assignment]


def gaussian_(network: nn.Module, std: float) -> None:
    """Convolutions from a Gaussian; all biases zero."""
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            rules.gaussian_(module.weight, std)
    network.own_initialization = f"gaussian std {std:g}"  # type: ignore[assignment]


def _weighted(network: nn.Module) -> Iterator[nn.Conv2d | nn.Linear]:
    """Convolutions and linear layers, their biases made zero; none that have no values (meta)."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and not module.weight.is_meta:
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            yield module
