"""Parameter groups: the parameters of activations learn at a rate of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from mpelu.activations import learnable_parameters

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_APART = ("scale", "rate", "shape")
"""Kinds of activations' parameters that never share a group with weights."""


def param_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    lr_mult: float = 5.0,
    decay_mult: float = 1.0,
    beta_decay_mult: float | None = None,
    prelu_decay_mult: float = 1.0,
    bias_lr_mult: float = 1.0,
    bias_decay_mult: float = 1.0,
    no_decay_norm_bias: bool = False,
    layers: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, with every parameter of the model in exactly one of them.

    torch's schedulers change the rates of all groups by the same factor, so the multipliers stay.
    Each group also carries its `lr_mult` and `decay_mult`, for schedules of your own.

    Args:
        model: any module, also inside DistributedDataParallel or torch.compile.
        lr: learning rate of all that has no multiplier.
        weight_decay: likewise.
        lr_mult: multiplies the learning rate of activations' parameters of kind scale, rate and
            shape (see `mpelu.activations.KINDS`): MPELU's alpha and beta, PELU's a and b, and
            those of registered activations. 5 in the paper, with SGD; it helps AdamW
            about as much (docs/activations.md has the measurement).
        decay_mult: multiplies their weight decay.
        beta_decay_mult: that of kind rate, MPELU's beta and PELU's b, if another.
        prelu_decay_mult: multiplies the weight decay of kind slope, PReLU's slopes. SReLU's
            parameters, of kind piece, are trained like weights.
        bias_lr_mult: multiplies the learning rate of biases, those of norm layers excepted.
        bias_decay_mult: multiplies their weight decay.
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
    """
    given = {
        "lr": lr, "weight_decay": weight_decay, "lr_mult": lr_mult, "decay_mult": decay_mult,
        "beta_decay_mult": decay_mult if beta_decay_mult is None else beta_decay_mult,
        "prelu_decay_mult": prelu_decay_mult,
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
    multipliers = {
        "scale": (lr_mult, decay_mult),
        "shape": (lr_mult, decay_mult),
        "rate": (lr_mult, given["beta_decay_mult"]),
        "slope": (1.0, prelu_decay_mult),
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
