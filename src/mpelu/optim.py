"""Parameter groups that give the parameters of activations a learning rate of their own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mpelu.activations import learnable_parameters
from mpelu.graph import NORMS

OWN_RATE = ("scale", "rate", "shape")
"""Kinds of activation parameters that have a learning rate of their own."""
_HARMLESS_DECAY = 1e-3
"""Largest weight decay with which an unknown optimizer does activations no harm. SGD is rarely used
with more; AdamW nearly always is."""


def param_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    lr_mult: float = 5.0,
    decay_mult: float | None = None,
    decay_norm_bias: bool | None = None,
) -> list[dict[str, Any]]:
    """Returns groups for any torch optimizer, with each parameter of the model in exactly one.

    torch's schedulers change the learning rates of all groups by the same factor, which preserves
    the multipliers. Each group also carries its `lr_mult` and `decay_mult`, for schedules of your
    own.

    Optimizers with decoupled weight decay, such as AdamW, shrink a weight by learning rate times
    weight decay regardless of its gradient. At their usual weight decay, alpha and beta would fall
    towards 0 and MPELU would become ReLU. With such an `optimizer`, parameters of activations, norm
    layers and biases are not decayed by default, and the weight decay of a group is divided by the
    multiplier of its learning rate, so that the multiplier doesn't act on weight decay too.

    Args:
        model: any module, also wrapped in DistributedDataParallel or torch.compile. Warns if it has
            no learnable activation, unless lr_mult is 1.
        lr: base learning rate.
        weight_decay: base weight decay.
        optimizer: class of the optimizer that the groups are for, such as torch.optim.AdamW, or a
            function that creates it from parameter groups and `lr=`. Two steps on a dummy parameter
            determine whether its weight decay is decoupled. Default: treated like SGD.
        lr_mult: learning rate multiplier for activations' parameters of kind scale, rate and shape
            (see `mpelu.activations.KINDS`): MPELU's alpha and beta, PELU's a and b, and those of
            registered activations. 5 in the paper, with SGD; it helps AdamW about as much
            (docs/activations.md has the measurement).
        decay_mult: weight decay multiplier for the same parameters and for kind slope, PReLU's
            slopes. Default: 1, or 0 if weight decay is decoupled. SReLU's parameters, of kind
            piece, are trained like weights.
        decay_norm_bias: whether to decay norm layers, biases and other parameters with at most one
            dimension, apart from those of activations. Default: True, or False if weight decay is
            decoupled.

    Returns:
        One group for each pair of multipliers in use; activations and weights never share a group.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), mpelu.MPELU(8))
        >>> groups = mpelu.param_groups(model, lr=0.1, weight_decay=1e-4)
        >>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        >>> [(group["lr"], len(group["params"])) for group in optimizer.param_groups]
        [(0.1, 2), (0.5, 2)]

        >>> adamw = torch.optim.AdamW
        >>> groups = mpelu.param_groups(model, lr=1e-3, weight_decay=0.05, optimizer=adamw)
        >>> [(group["lr"], group["weight_decay"]) for group in adamw(groups).param_groups]
        [(0.001, 0.05), (0.001, 0.0), (0.005, 0.0)]
    """
    is_decoupled = optimizer is not None and has_decoupled_decay(optimizer, model)
    is_unsaid = decay_mult is None and optimizer is None
    if decay_mult is None:
        decay_mult = 0.0 if is_decoupled else 1.0
    if decay_norm_bias is None:
        decay_norm_bias = not is_decoupled
    given = {"lr": lr, "weight_decay": weight_decay, "lr_mult": lr_mult, "decay_mult": decay_mult}
    for name, value in given.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"param_groups: expected {name} >= 0 and finite, got {value}")
    kinds = {id(found.parameter): found.kind for found in learnable_parameters(model)}
    if not kinds and lr_mult != 1:
        warnings.warn(
            f"param_groups: {type(model).__name__} has no learnable activation; convert it "
            "first (mpelu.convert), or pass lr_mult=1 if it should have none",
            stacklevel=2,
        )
    elif is_unsaid and weight_decay > _HARMLESS_DECAY and set(kinds.values()) - {"piece"}:
        warnings.warn(
            f"param_groups: weight_decay={weight_decay:g} would shrink the activations' parameters "
            "towards zero; pass optimizer=torch.optim.AdamW (or the class you use), or decay_mult",
            stacklevel=2,
        )
    spared = set()
    if not decay_norm_bias:
        for module in model.modules():
            bias = getattr(module, "bias", None)
            spared |= {id(bias)} if isinstance(bias, nn.Parameter) else set()
            if isinstance(module, NORMS):
                spared |= {id(each) for each in module.parameters(recurse=False)}

    def multipliers(parameter: nn.Parameter) -> tuple[float, float]:
        kind = kinds.get(id(parameter))
        if kind is None and not decay_norm_bias:
            return 1.0, 0.0 if id(parameter) in spared or parameter.dim() < 2 else 1.0
        return lr_mult if kind in OWN_RATE else 1.0, 1.0 if kind in (None, "piece") else decay_mult

    return grouped(model, kinds, multipliers, lr, weight_decay, is_decoupled)


def grouped(
    model: nn.Module,
    kinds: Mapping[int, str],
    multipliers: Callable[[nn.Parameter], tuple[float, float]],
    lr: float,
    weight_decay: float,
    is_decoupled: bool,
) -> list[dict[str, Any]]:
    """Groups the parameters of a model by their multipliers, in the model's order.

    Args:
        model: model whose parameters are grouped, each once.
        kinds: kind of each learnable activation parameter, by the parameter's id.
        multipliers: function from a parameter to its learning rate and weight decay multipliers.
        lr: base learning rate.
        weight_decay: base weight decay.
        is_decoupled: whether the optimizer multiplies weight decay by the learning rate.
    """
    groups: dict[tuple[bool, float, float], dict[str, Any]] = {}
    for parameter in model.parameters():
        rate, decay = multipliers(parameter)
        if is_decoupled and rate > 0:
            decay /= rate
        group = groups.setdefault(
            (kinds.get(id(parameter)) in OWN_RATE, rate, decay),
            {
                "params": [],
                "lr": lr * rate,
                "weight_decay": weight_decay * decay,
                "lr_mult": rate,
                "decay_mult": decay,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def has_decoupled_decay(optimizer: Callable[..., torch.optim.Optimizer], model: nn.Module) -> bool:
    """Returns whether weight decay shrinks weights directly instead of being added to gradients.

    For SGD without momentum both are the same. It counts as coupled, as it does in the paper.

    Args:
        optimizer: class of an optimizer, or a function that creates one from groups and `lr=`.
        model: model whose device the optimizer is tried out on.
    """
    if not callable(optimizer):
        raise ValueError(
            "param_groups: expected optimizer to be a class such as torch.optim.AdamW, got "
            f"{optimizer if isinstance(optimizer, str) else type(optimizer).__name__!r}"
        )
    device = next((each.device for each in model.parameters() if not each.is_meta), "cpu")
    lr, decay = 0.1, 0.5
    try:
        with torch.device(device):
            weight = nn.Parameter(torch.ones(2, 2, dtype=torch.float32))
            made = optimizer([{"params": [weight], "lr": lr, "weight_decay": decay}], lr=lr)
            for _ in range(2):
                weight.grad = torch.zeros_like(weight)
                made.step()
    except ValueError:
        raise
    except Exception as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"param_groups: optimizer can't take a step on parameter groups ({first}); pass "
            "decay_mult instead"
        ) from error
    shrunk = torch.full_like(weight, (1 - lr * decay) ** 2)
    return not isinstance(made, torch.optim.SGD) and torch.allclose(weight.detach(), shrunk)
