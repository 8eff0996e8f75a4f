"""How large the gradient is at every parameter and behind every layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.init.graph import Inputs, arguments, substitute, unwrap
from mpelu.lab.inspecting.layers import Layer, find_layers
from mpelu.lab.inspecting.streams import chunks
from mpelu.lab.inspecting.watch import Watch, check, checked, undisturbed


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGradient:
    """The gradient with respect to the output of a layer, over the whole batch."""

    name: str
    call: int
    """1, or more where a pass calls the module again."""
    kind: str
    norm: float | None
    """Euclidean; None if the loss doesn't depend on this output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientNorms:
    """The signal backward."""

    loss: float
    parameters: dict[str, float]
    """Euclidean norm by the name of the parameter; those without a gradient are left out."""
    layers: tuple[LayerGradient, ...]
    """In the order of the forward pass."""


def _norm(values: Tensor) -> float:
    return math.sqrt(sum(part.square().sum().item() for part in chunks(values)))


def gradient_norms(
    model: nn.Module,
    batch: Inputs,
    loss: Callable[[Any], Tensor],
    *,
    layers: Iterable[str] | None = None,
) -> GradientNorms:
    """Norms of the gradients of one batch.

    The model is left as it was, as by `activation_statistics`; `.grad` of its parameters too.

    Args:
        model: any module.
        batch: what to call the model with: a tensor, a tuple of positional or a dict of keyword
            arguments.
        loss: from the model's output to one number.
        layers: as of `activation_statistics`.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 2, bias=False))
        >>> found = gradient_norms(model, torch.ones(1, 8), torch.sum)
        >>> found.parameters["0.weight"]
        4.0
        >>> round(found.layers[0].norm, 4)
        1.4142
    """
    check("gradient_norms", model)
    model = unwrap(model)
    norms: dict[tuple[str, int], float | None] = {}
    kinds: dict[str, str] = {}

    def after(layer: Layer, call: int, output: Tensor) -> None:
        def keep(gradient: Tensor) -> None:
            norms[layer.name, call] = _norm(gradient)

        norms[layer.name, call] = None
        kinds[layer.name] = layer.kind
        if output.requires_grad:
            output.register_hook(keep)

    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    watch = Watch(model, lambda *_: None, after, repeats=layers is not None)
    chosen = find_layers("gradient_norms", model, layers)
    with torch.enable_grad(), undisturbed(model), watch.on(chosen):
        (checked_batch,) = checked("gradient_norms", [batch])
        leaves, inputs = _differentiable(checked_batch)
        value = loss(watch.run(inputs))
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ValueError(
                "gradient_norms: expected a loss of one number that depends on the model, got "
                f"{value if not isinstance(value, Tensor) else list(value.shape)}"
            )
        # The inputs are asked for as well, so that layers with nothing to learn are passed too.
        found = torch.autograd.grad(value, [*parameters.values(), *leaves], allow_unused=True)
    return GradientNorms(
        loss=value.item(),
        parameters={
            name: _norm(gradient)
            for name, gradient in zip(parameters, found, strict=False)
            if gradient is not None
        },
        layers=tuple(
            LayerGradient(name=name, call=call, kind=kinds[name], norm=norm)
            for (name, call), norm in norms.items()
        ),
    )


def _differentiable(batch: Inputs) -> tuple[list[Tensor], Inputs]:
    """Leaves that ask for gradients, and inputs made of them that may be overwritten."""
    leaves: list[Tensor] = []

    def fresh(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaf = tensor.detach().requires_grad_()
        leaves.append(leaf)
        return leaf.clone()

    args, kwargs = arguments(batch)
    args, kwargs = substitute((args, kwargs), Tensor, fresh)
    return leaves, kwargs or args
