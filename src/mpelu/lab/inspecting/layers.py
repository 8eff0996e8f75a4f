"""The layers of a model that can be inspected, their kinds, and what is known of activations."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules import activation as torch_activations
from torch.nn.modules import conv, dropout, pooling
from torch.nn.modules.batchnorm import _NormBase

from mpelu.activations import describe, find_activation
from mpelu.elementwise import LINEAR, ElementwiseFunction, Value, as_value
from mpelu.lab.errors import choose
from mpelu.modules import MIN_BETA

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)
_POOLS = tuple(getattr(pooling, name) for name in pooling.__all__)
_LINEARS = (nn.Linear, nn.Bilinear)


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedLayer:
    """A module whose inputs and outputs are observed."""

    name: str
    """Path of the module in the model."""
    kind: str
    """conv, linear, norm, activation, pool, dropout, block (a module with submodules) or other."""
    module: nn.Module
    activation: ElementwiseFunction | None = None
    """The function of an elementwise activation."""
    probe: nn.Module | None = None
    """A copy whose slopes autograd computes, if the activation is neither exponential nor leaky."""


def find_layers(model: nn.Module, names: Iterable[str] | None) -> list[InspectedLayer]:
    """The layers with the given names, or all modules without submodules.

    Raises:
        UserError: for a name that the model doesn't have.

    Example:
        >>> found = find_layers(nn.Sequential(nn.Linear(8, 2), nn.ReLU()), None)
        >>> [(layer.name, layer.kind) for layer in found]
        [('0', 'linear'), ('1', 'activation')]
    """
    modules = dict(model.named_modules())
    if names is None:
        return [
            _describe(name, module)
            for name, module in modules.items()
            if not any(True for _ in module.children())
        ]
    chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    for name in chosen:
        if name not in modules:
            choose("layers", name, filter(None, modules), noun="module")
    return [_describe(name, modules[name]) for name in chosen]


def saturation_threshold(activation: ElementwiseFunction, slope: float) -> Tensor | None:
    """The input below which a negative input is saturated, per channel.

    Args:
        activation: the activation.
        slope: an input is saturated if the absolute slope there is below this.

    Returns:
        None if there is no formula for the activation.
    """
    if activation.slope is not None:
        slopes = torch.as_tensor(activation.slope, dtype=torch.float64).detach()
        return torch.where(slopes.abs() < slope, math.inf, -math.inf)
    if activation.alpha is None or activation.beta is None:
        return None
    alpha = torch.as_tensor(activation.alpha, dtype=torch.float64).detach()
    beta = torch.as_tensor(activation.beta, dtype=torch.float64).detach().clamp(min=MIN_BETA)
    scale = torch.as_tensor(activation.scale, dtype=torch.float64)
    return torch.log(slope / ((scale * alpha).abs() * beta)) / beta


def exponential_parameters(activation: ElementwiseFunction | None) -> tuple[Tensor, Tensor] | None:
    """The absolute value of alpha, and beta, per channel, on the CPU.

    Piecewise linear activations have alpha 0: they are their own Taylor expansion.

    Returns:
        None for activations of any other kind.
    """
    if activation is None:
        return None
    if activation.slope is not None:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if activation.alpha is None or activation.beta is None:
        return None
    alpha = torch.as_tensor(activation.alpha, dtype=torch.float64).detach().cpu()
    beta = torch.as_tensor(activation.beta, dtype=torch.float64).detach().cpu()
    return (activation.scale * alpha).abs(), beta.clamp(min=MIN_BETA)


def residual_thresholds(
    activation: ElementwiseFunction | None, residuals: Sequence[float]
) -> list[Value] | None:
    """The inputs above which the Taylor residual is below each bound.

    Returns:
        For each bound a number if it holds for all channels, otherwise a number per channel; None
        if `exponential_parameters` is None.
    """
    parameters = exponential_parameters(activation)
    if parameters is None:
        return None
    alpha, beta = parameters
    return [as_value(-torch.sqrt(2 * each / alpha) / beta) for each in residuals]


def _describe(name: str, module: nn.Module) -> InspectedLayer:
    """The module as a layer. If it has to be run to find out, a copy is run."""
    if find_activation(module) is not None:
        return _describe_activation(name, module)
    if any(True for _ in module.children()):
        return InspectedLayer(name=name, kind="block", module=module)
    if isinstance(module, conv._ConvNd):
        return InspectedLayer(name=name, kind="conv", module=module)
    for kind, classes in (("linear", _LINEARS), ("norm", _NORMS), ("pool", _POOLS)):
        if isinstance(module, classes):
            return InspectedLayer(name=name, kind=kind, module=module)
    if isinstance(module, dropout._DropoutNd):
        return InspectedLayer(name=name, kind="dropout", module=module)
    return _describe_activation(name, module)


def _describe_activation(name: str, module: nn.Module) -> InspectedLayer:
    """The module as an activation if it is one, otherwise as a layer of kind other."""
    found = describe(module)
    if found is not None and found is not LINEAR:
        probe = None
        if not found.has_closed_form:
            probe = copy.deepcopy(module)
            probe._forward_hooks.clear()
            probe._forward_pre_hooks.clear()
        return InspectedLayer(
            name=name, kind="activation", module=module, activation=found, probe=probe
        )
    is_known = find_activation(module) is not None
    listed = is_known or type(module).__name__ in torch_activations.__all__
    return InspectedLayer(name=name, kind="activation" if listed else "other", module=module)
