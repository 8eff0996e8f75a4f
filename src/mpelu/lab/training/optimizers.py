"""The optimizer of a config: SGD with the learning rate and weight decay multipliers."""

from __future__ import annotations

import torch
from torch import nn

from mpelu.lab.config import Config
from mpelu.lab.training import network
from mpelu.optim import param_groups


def build_optimizer(
    model: nn.Module, config: Config, channels: int, size: int
) -> torch.optim.Optimizer:
    """The optimizer of a network that is still on the CPU. Its groups carry `lr_mult`.

    Args:
        model: the network, left as it is.
        config: learning rate, momentum, weight decay and multipliers.
        channels: channels of the images.
        size: height and width of the images.
    """
    layers = None
    if config.last_lr_mult is not None:
        layers = {network.last_layer(model, channels, size): config.last_lr_mult}
    groups = param_groups(
        model,
        lr=config.lr,
        weight_decay=config.weight_decay,
        lr_mult=config.activation_lr_mult,
        decay_mult=config.activation_decay_mult,
        beta_decay_mult=config.beta_decay_mult,
        prelu_decay_mult=config.activation_decay_mult,
        bias_lr_mult=config.bias_lr_mult,
        bias_decay_mult=config.bias_decay_mult,
        layers=layers,
    )
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of every group, times the group's multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_mult"]
