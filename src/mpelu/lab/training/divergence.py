"""Finding the module in which a value first became infinite or NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """What wasn't finite, where and at which step."""

    step: int
    module: str
    quantity: str
    """activation, loss or gradient."""

    def __str__(self) -> str:
        where = f" of {self.module}" if self.module else ""
        return f"diverged at step {self.step}: the {self.quantity}{where} isn't finite"


def find(
    model: nn.Module,
    step: int,
    batches: Iterable[Tensor],
    forward: Callable[[Tensor], object],
    *,
    loss_is_finite: bool,
) -> Divergence | None:
    """Repeats the forward pass of a step and looks for the first value that isn't finite.

    Args:
        model: in training mode, with the gradients of the step.
        step: number of the step.
        batches: the images of the step.
        forward: calls the model as the step did.
        loss_is_finite: whether the loss of the step was finite.

    Returns:
        None if nothing in this process is the cause.
    """
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                found.append(name)

        return hook

    hooks = [
        module.register_forward_hook(look(name))
        for name, module in model.named_modules()
        if next(module.children(), None) is None
    ]
    try:
        with torch.no_grad():
            for images in batches:
                forward(images)
                if found:
                    return Divergence(step=step, module=found[0], quantity="activation")
    finally:
        for hook in hooks:
            hook.remove()
    if not loss_is_finite:
        return Divergence(step=step, module="", quantity="loss")
    # Backward starts at the output, so the last layer's gradient is the first to be wrong.
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            module = name.rpartition(".")[0]
            return Divergence(step=step, module=module, quantity="gradient")
    return None


def finite(gradients: list[Tensor]) -> bool:
    """Whether every element of every gradient is finite."""
    return all(bool(gradient.isfinite().all()) for gradient in gradients)
