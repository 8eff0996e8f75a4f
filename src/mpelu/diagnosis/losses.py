"""The scalar whose gradient is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpelu.graph import tensors_in

Loss = Callable[..., Tensor]


def differentiable(output: Any) -> list[Tensor]:
    """The tensors of a model's output that have a gradient."""
    return [each for each in tensors_in(output) if each.is_floating_point() and each.requires_grad]


def loss_of(output: Any, outputs: Sequence[Tensor], targets: Any, loss: Loss | None) -> Tensor:
    """The loss, or a random direction of the first output without targets and loss.

    Args:
        output: what the model returned.
        outputs: its tensors that have a gradient.
        targets: integers for cross entropy, others for squares.
        loss: from the output, and the targets if there are any, to a scalar.
    """
    if not outputs:
        raise ValueError("diagnose: expected an output that depends on trained parameters")
    if loss is not None:
        value = loss(output) if targets is None else loss(output, targets)
    elif targets is None:
        return random_direction(outputs[:1])
    elif targets.is_floating_point():
        value = F.mse_loss(outputs[0], targets)
    else:
        value = F.cross_entropy(outputs[0], targets)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        came = f"shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"diagnose: expected a scalar loss that depends on the model, got {came}")
    return value


def random_direction(outputs: Sequence[Tensor]) -> Tensor:
    """The sum of the outputs' values, with random weights that are always the same."""
    generator = torch.Generator().manual_seed(0)
    total = outputs[0].new_zeros((), dtype=torch.float32)
    for each in outputs:
        direction = torch.randn(each.shape, generator=generator).to(each.device)
        total = total + (each.float() * direction).sum() / math.sqrt(each.numel())
    return total
