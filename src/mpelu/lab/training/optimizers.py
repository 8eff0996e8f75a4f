"""The optimizer of a config, with the learning rate and weight decay multipliers."""

from __future__ import annotations

import torch
from torch import nn

from mpelu.activations import learnable_parameters
from mpelu.lab import optimizers
from mpelu.lab.config import Config
from mpelu.lab.training import network
from mpelu.optim import OWN_RATE, grouped, has_decoupled_decay


def build_optimizer(
    model: nn.Module, config: Config, channels: int, size: int
) -> torch.optim.Optimizer:
    """The optimizer of a network that is still on the CPU. Its groups carry `lr_mult`.

    `mpelu.param_groups` with the multipliers of the paper's Caffe runs: for biases, beta and the
    last layer.

    Args:
        model: the network, left as it is.
        config: learning rate, momentum, weight decay and multipliers.
        channels: channels of the images.
        size: height and width of the images.
    """
    info = optimizers.find(config.optimizer)

    def build(groups: optimizers.Groups, lr: float) -> torch.optim.Optimizer:
        return info.build(groups, lr, config.momentum, config.nesterov)

    last: set[int] = set()
    if config.last_lr_mult is not None:
        layer = model.get_submodule(network.last_layer(model, channels, size))
        last = {id(parameter) for parameter in layer.parameters()}
    # A norm layer's bias is a scale's companion, not a layer's bias; it has a 1-d weight beside it.
    biases = {
        id(module.bias)
        for module in model.modules()
        if isinstance(getattr(module, "bias", None), nn.Parameter)
        and isinstance(weight := getattr(module, "weight", None), torch.Tensor)
        and weight.dim() > 1
    }
    kinds = {id(found.parameter): found.kind for found in learnable_parameters(model)}
    is_decoupled = has_decoupled_decay(build, model)
    decay_mult = config.activation_decay_mult
    if decay_mult is None:
        decay_mult = 0.0 if is_decoupled else 1.0
    decays = dict.fromkeys(("scale", "rate", "shape", "slope"), decay_mult)
    if config.beta_decay_mult is not None:
        decays["rate"] = config.beta_decay_mult

    def multipliers(parameter: nn.Parameter) -> tuple[float, float]:
        key = id(parameter)
        rate, decay = 1.0, 1.0
        if key in kinds:
            rate = config.activation_lr_mult if kinds[key] in OWN_RATE else 1.0
            decay = decays.get(kinds[key], 1.0)
        elif key in biases:
            rate, decay = config.bias_lr_mult, config.bias_decay_mult
        if key in last and config.last_lr_mult is not None:
            rate = config.last_lr_mult
        return rate, decay

    groups = grouped(model, kinds, multipliers, config.lr, config.weight_decay, is_decoupled)
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
