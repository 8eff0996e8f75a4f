"""Parameter groups: alpha and beta learn at a rate of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from mpelu.modules import MPELU


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
    layers: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, with every parameter of the model in exactly one of them.

    torch's schedulers change the rates of all groups by the same factor, so the multipliers stay.
    Each group also carries its `lr_mult` and `decay_mult`, for schedules of your own.

    Args:
        model: any module, also inside DistributedDataParallel or torch.compile.
        lr: learning rate of all that has no multiplier.
        weight_decay: likewise.
        lr_mult: multiplies the learning rate of every MPELU's alpha and beta; 5 in the paper.
        decay_mult: multiplies their weight decay.
        beta_decay_mult: that of beta, if another than alpha's.
        prelu_decay_mult: multiplies the weight decay of every PReLU's slopes.
        bias_lr_mult: multiplies the learning rate of biases, those of norm layers excepted.
        bias_decay_mult: multiplies their weight decay.
        layers: learning rate multipliers of single modules by name, weights and biases alike, in
            place of the ones above.

    Returns:
        One group for each pair of multipliers in use, alpha and beta apart from the rest.

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
    shapes = {
        id(parameter): given["beta_decay_mult" if name == "beta" else "decay_mult"]
        for module in modules.values()
        if isinstance(module, MPELU)
        for name, parameter in module.named_parameters(recurse=False)
    }
    slopes = {id(module.weight) for module in modules.values() if isinstance(module, nn.PReLU)}
    # A norm layer's bias is a scale's companion, not a layer's bias; it has a 1-d weight beside it.
    biases = {
        id(module.bias)
        for module in modules.values()
        if isinstance(getattr(module, "bias", None), nn.Parameter)
        and getattr(module, "weight", None) is not None
        and module.weight.dim() > 1
    }
    groups: dict[tuple[bool, float, float], dict[str, Any]] = {}
    for parameter in model.parameters():
        key = id(parameter)
        rate, decay = 1.0, 1.0
        if key in shapes:
            rate, decay = lr_mult, shapes[key]
        elif key in slopes:
            decay = prelu_decay_mult
        elif key in biases:
            rate, decay = bias_lr_mult, bias_decay_mult
        rate = single.get(key, rate)
        group = groups.setdefault(
            (key in shapes, rate, decay),
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
