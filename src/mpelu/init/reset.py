"""What goes with new weights: biases at zero, norm layers at the identity."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from mpelu.init.graph import is_frozen
from mpelu.init.layers import Layer
from mpelu.init.propagate import NORMS


@torch.no_grad()
def zero_biases_(layers: Iterable[Layer]) -> None:
    """Zeroes the biases that are trained."""
    for layer in layers:
        if layer.bias is not None and layer.bias.requires_grad:
            layer.bias.zero_()


@torch.no_grad()
def reset_norms_(model: nn.Module) -> None:
    """Weight one, bias zero and fresh running statistics for every norm layer that is trained."""
    for module in model.modules():
        if not isinstance(module, NORMS) or is_frozen(module):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                parameter.fill_(1.0 if name == "weight" else 0.0)
        if isinstance(module, _NormBase):
            module.reset_running_stats()
