"""The optimizers. To add one, add a record to `OPTIMIZERS`.

Importing this module doesn't import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpelu.lab import references
from mpelu.lab.errors import UserError, one_line

if TYPE_CHECKING:
    from torch.optim import Optimizer

Groups = list[dict[str, Any]]
"""Parameter groups with `lr` and `weight_decay`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerInfo:
    """What is known about an optimizer."""

    build: Callable[[Groups, float, float, bool], Optimizer]
    """From parameter groups, learning rate, momentum and nesterov."""
    lr: float
    """Default learning rate."""
    has_nesterov: bool = False
    activation_decay_mult: float | None = 1.0
    """Default weight decay multiplier of activations' parameters; None where `param_groups` has to
    find out whether weight decay is decoupled."""


def _sgd(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    import torch

    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)


def _adamw(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    import torch

    return torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999))


OPTIMIZERS = {
    "sgd": OptimizerInfo(build=_sgd, lr=0.1, has_nesterov=True),
    "adamw": OptimizerInfo(build=_adamw, lr=0.001, activation_decay_mult=0.0),
}


def find(name: str) -> OptimizerInfo:
    """The record of an optimizer, or of a reference to one.

    A reference is called with the parameter groups and ``lr=``.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]

    def build(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        from torch.optim import Optimizer

        made = references.call("optimizer", name, groups, lr=lr)
        if not isinstance(made, Optimizer):
            raise UserError(
                f"{name}: expected a torch.optim.Optimizer, got {type(made).__name__}",
                field="optimizer",
            )
        return made

    def checked(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
        """Tries a step on a parameter of its own first: some optimizers need more than that."""
        from torch import nn, ones

        parameter = nn.Parameter(ones(2, 2))
        parameter.grad = ones(2, 2)
        trial = build([{"params": [parameter], "lr": lr, "weight_decay": 0.0}], lr, 0.0, False)
        try:
            trial.step()
        except Exception as error:
            raise UserError(
                f"{name}: can't take a step: {type(error).__name__}: {one_line(error)}",
                field="optimizer",
            ) from error
        return build(groups, lr, momentum, nesterov)

    return OptimizerInfo(build=checked, lr=0.001, activation_decay_mult=None)
