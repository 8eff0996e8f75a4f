"""Gradient norms of all parameters and at the output of every layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.lab.inspecting.accumulators import chunks
from mpelu.lab.inspecting.hooks import (
    ForwardHooks,
    Inputs,
    checked_batches,
    checked_model,
    differentiable,
    preserved_state,
)
from mpelu.lab.inspecting.layers import InspectedLayer, find_layers


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGradient:
    """The gradient of the loss with respect to a layer's output, over the whole batch."""

    name: str
    call: int
    """1 for the first call of the module in a forward pass, 2 for the second, and so on."""
    kind: str
    norm: float | None
    """Euclidean norm; None if the loss doesn't depend on this output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientNorms:
    """Gradient norms of one batch."""

    loss: float
    parameters: dict[str, float]
    """Euclidean norm by parameter name, without parameters that have no gradient."""
    layers: tuple[LayerGradient, ...]
    """In the order of the forward pass."""


def gradient_norms(
    model: nn.Module,
    batch: Inputs,
    loss: Callable[[Any], Tensor],
    *,
    layers: Iterable[str] | None = None,
) -> GradientNorms:
    """Gradient norms of one batch.

    The model is left as it was, as by `activation_statistics`, and so is `.grad`.

    Args:
        model: any module.
        batch: inputs of the model: a tensor, a tuple of positional arguments or a dict of keyword
            arguments.
        loss: maps the model's output to a scalar.
        layers: as in `activation_statistics`.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 2, bias=False))
        >>> found = gradient_norms(model, torch.ones(1, 8), torch.sum)
        >>> found.parameters["0.weight"]
        4.0
        >>> round(found.layers[0].norm, 4)
        1.4142
    """
    model = checked_model("gradient_norms", model)
    norms: dict[tuple[str, int], float | None] = {}
    kinds: dict[str, str] = {}

    def after(layer: InspectedLayer, call: int, output: Tensor) -> None:
        def keep(gradient: Tensor) -> None:
            norms[layer.name, call] = _norm(gradient)

        norms[layer.name, call] = None
        kinds[layer.name] = layer.kind
        if output.requires_grad:
            output.register_hook(keep)

    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    hooks = ForwardHooks(model, lambda *_: None, after, repeats=layers is not None)
    chosen = find_layers(model, layers)
    with torch.enable_grad(), preserved_state(model), hooks.attached(chosen):
        (checked,) = checked_batches("gradient_norms", [batch])
        leaves, inputs = differentiable(checked)
        value = loss(hooks.run(inputs))
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ValueError(
                "gradient_norms: expected a scalar loss that depends on the model, got "
                f"{value if not isinstance(value, Tensor) else f'shape {list(value.shape)}'}"
            )
        # Gradients of the inputs are asked for too, so that layers before the first parameter have
        # one.
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


def _norm(values: Tensor) -> float:
    return math.sqrt(sum(part.square().sum().item() for part in chunks(values)))
