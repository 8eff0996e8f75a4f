"""The optimizer of a config, with the learning rate and weight decay multipliers."""

from __future__ import annotations

import torch
from torch import nn

from mpelu.activations import learnable_parameters
from mpelu.lab import optimizers
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
    info = optimizers.find(config.optimizer)

    def build(groups: optimizers.Groups, lr: float) -> torch.optim.Optimizer:
        return info.build(groups, lr, config.momentum, config.nesterov)

    has_learnable = any(True for _ in learnable_parameters(model))
    groups = param_groups(
        model,
        lr=config.lr,
        weight_decay=config.weight_decay,
        optimizer=build,
        lr_mult=config.activation_lr_mult if has_learnable else 1.0,
        decay_mult=config.activation_decay_mult,
        beta_decay_mult=config.beta_decay_mult,
        prelu_decay_mult=config.activation_decay_mult,
        bias_lr_mult=config.bias_lr_mult,
        bias_decay_mult=config.bias_decay_mult,
        layers=layers,
    )
    return build(groups, config.lr)


def clip_gradients(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    norm: float | None,
) -> None:
    """Clips the norm of all gradients together, if there is a limit."""
    if norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), norm)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Moves the exponential moving average of parameters and statistics towards the model."""
    current = model.state_dict()
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            value.lerp_(current[name], 1 - decay)
        else:
            value.copy_(current[name])


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of every group, times the group's multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_mult"]
