"""Parameter groups: the parameters of activations learn at a rate of their own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from mpelu.activations import learnable_parameters

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_APART = ("scale", "rate", "shape")
"""Kinds of activations' parameters that never share a group with weights."""
_HARMLESS_DECAY = 1e-3
"""Weight decay up to which an unknown optimizer does no harm to activations. SGD rarely has more;
AdamW nearly always does."""


def param_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    lr_mult: float = 5.0,
    decay_mult: float | None = None,
    beta_decay_mult: float | None = None,
    prelu_decay_mult: float | None = None,
    bias_lr_mult: float = 1.0,
    bias_decay_mult: float = 1.0,
    no_decay_norm_bias: bool = False,
    layers: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, with every parameter of the model in exactly one of them.

    torch's schedulers change the rates of all groups by the same factor, so the multipliers stay.
    Each group also carries its `lr_mult` and `decay_mult`, for schedules of your own.

    Optimizers with decoupled weight decay, such as AdamW, shrink a weight by learning rate times
    weight decay whatever its gradient is. At their usual weight decay, alpha and beta would fall
    towards 0 and MPELU would become ReLU. With such an `optimizer`, activations' parameters are not
    decayed by default, and the weight decay of a group is divided by the multiplier of its learning
    rate, so that the multiplier doesn't act on weight decay too.

    Args:
        model: any module, also inside DistributedDataParallel or torch.compile. Warns if it has no
            learnable activation, unless lr_mult is 1.
        lr: base learning rate.
        weight_decay: base weight decay.
        optimizer: class of the optimizer that the groups are for, such as torch.optim.AdamW, or a
            function of parameter groups and `lr=` that makes it. It tells whether weight decay is
            decoupled, which is found out by two steps on a parameter of its own. Default: as SGD.
        lr_mult: multiplies the learning rate of activations' parameters of kind scale, rate and
            shape (see `mpelu.activations.KINDS`): MPELU's alpha and beta, PELU's a and b, and
            those of registered activations. 5 in the paper, with SGD; it helps AdamW
            about as much (docs/activations.md has the measurement).
        decay_mult: multiplies their weight decay. Default: 1, and 0 if it is decoupled.
        beta_decay_mult: weight decay multiplier for kind rate, MPELU's beta and PELU's b. Default:
            decay_mult.
        prelu_decay_mult: weight decay multiplier for kind slope, PReLU's slopes. Default: 1, and 0
            if weight decay is decoupled. SReLU's parameters, of kind piece, are trained like
            weights.
        bias_lr_mult: multiplies the learning rate of biases, those of norm layers excepted.
        bias_decay_mult: multiplies the weight decay of these biases.
        no_decay_norm_bias: no weight decay for parameters of norm layers and biases, as is usual
            with AdamW. Other parameters of at most one dimension, unless they are an activation's,
            count as well.
        layers: learning rate multipliers of single modules by name, weights and biases alike, in
            place of the ones above.

    Returns:
        One group for each pair of multipliers in use, those of activations apart from the rest.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), mpelu.MPELU(8))
        >>> groups = mpelu.param_groups(model, lr=0.1, weight_decay=1e-4)
        >>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        >>> [(group["lr"], len(group["params"])) for group in optimizer.param_groups]
        [(0.1, 2), (0.5, 2)]

        >>> adamw = torch.optim.AdamW
        >>> groups = mpelu.param_groups(model, lr=1e-3, weight_decay=0.05, optimizer=adamw)
        >>> [group["weight_decay"] for group in adamw(groups).param_groups]
        [0.05, 0.0]
    """
    is_decoupled = optimizer is not None and _has_decoupled_decay(optimizer, model)
    default = 0.0 if is_decoupled else 1.0
    is_unsaid = decay_mult is None and optimizer is None
    decay_mult = default if decay_mult is None else decay_mult
    given = {
        "lr": lr, "weight_decay": weight_decay, "lr_mult": lr_mult, "decay_mult": decay_mult,
        "beta_decay_mult": decay_mult if beta_decay_mult is None else beta_decay_mult,
        "prelu_decay_mult": default if prelu_decay_mult is None else prelu_decay_mult,
        "bias_lr_mult": bias_lr_mult, "bias_decay_mult": bias_decay_mult,
        **{f"layers[{name!r}]": value for name, value in (layers or {}).items()},
    }  # fmt: skip
    for name, value in given.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"param_groups: expected {name} >= 0 and finite, got {value}")
    modules = dict(model.named_modules())
    for name in layers or {}:
        if name not in modules or not any(True for _ in modules[name].parameters()):
            raise ValueError(f"param_groups: expected a module with parameters, got {name!r}")
    single = {
        id(parameter): value
        for name, value in (layers or {}).items()
        for parameter in modules[name].parameters()
    }
    kinds = {id(found.parameter): found.kind for found in learnable_parameters(model)}
    if not kinds and lr_mult != 1:
        warnings.warn(
            f"param_groups: {type(model).__name__} has no learnable activation; convert it "
            "first (mpelu.convert), or give lr_mult=1 if it should have none",
            stacklevel=2,
        )
    elif is_unsaid and weight_decay > _HARMLESS_DECAY and set(kinds.values()) - {"piece"}:
        warnings.warn(
            f"param_groups: weight_decay={weight_decay:g} would shrink the activations' parameters "
            "towards zero; give optimizer=torch.optim.AdamW (or the class you use), or decay_mult",
            stacklevel=2,
        )
    multipliers = {
        "scale": (lr_mult, decay_mult),
        "shape": (lr_mult, decay_mult),
        "rate": (lr_mult, given["beta_decay_mult"]),
        "slope": (1.0, given["prelu_decay_mult"]),
        "piece": (1.0, 1.0),
    }
    # A norm layer's bias is a scale's companion, not a layer's bias; it has a 1-d weight beside it.
    biases = {
        id(module.bias)
        for module in modules.values()
        if isinstance(getattr(module, "bias", None), nn.Parameter)
        and getattr(module, "weight", None) is not None
        and module.weight.dim() > 1
    }
    norms = {
        id(parameter)
        for module in modules.values()
        if isinstance(module, _NORMS)
        for parameter in module.parameters(recurse=False)
    }
    groups: dict[tuple[bool, float, float], dict[str, Any]] = {}
    for parameter in model.parameters():
        key = id(parameter)
        rate, decay = 1.0, 1.0
        kind = kinds.get(key)
        if kind is not None:
            rate, decay = multipliers[kind]
        elif key in biases:
            rate, decay = bias_lr_mult, bias_decay_mult
        is_free = parameter.dim() < 2 or key in biases or key in norms
        if no_decay_norm_bias and kind is None and is_free:
            decay = 0.0
        rate = single.get(key, rate)
        if is_decoupled and rate > 0:
            decay /= rate
        group = groups.setdefault(
            (kind in _APART, rate, decay),
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


def _has_decoupled_decay(optimizer: Callable[..., torch.optim.Optimizer], model: nn.Module) -> bool:
    """Whether weight decay shrinks weights by itself instead of being added to gradients.

    SGD without momentum does both at once. It counts as coupled, as it is in the paper.
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
            f"param_groups: optimizer can't take a step on parameter groups ({first}); leave it "
            "out and give decay_mult"
        ) from error
    shrunk = torch.full_like(weight, (1 - lr * decay) ** 2)
    return not isinstance(made, torch.optim.SGD) and torch.allclose(weight.detach(), shrunk)
