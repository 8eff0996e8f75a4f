"""The parts of a model that can be watched, and what kind each is."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from torch import nn
from torch.nn.modules import activation as torch_activations
from torch.nn.modules import conv, dropout, pooling
from torch.nn.modules.batchnorm import _NormBase

from mpelu.init.activations import LINEAR, Activation, describe_module
from mpelu.modules import MPELU

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)
_POOLS = tuple(getattr(pooling, name) for name in pooling.__all__)
_LINEARS = (nn.Linear, nn.Bilinear)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A module that is watched."""

    name: str
    """Its path in the model."""
    kind: str
    """conv, linear, norm, activation, pool, dropout, block (it has parts) or other."""
    module: nn.Module
    activation: Activation | None = None
    """What is known of an elementwise activation."""
    probe: nn.Module | None = None
    """A copy to ask for slopes, of an activation that is neither exponential nor leaky."""


def describe(name: str, module: nn.Module) -> Layer:
    """The module as a layer. Where it must be run to know it, a copy is."""
    if isinstance(module, MPELU):
        return Layer(
            name=name, kind="activation", module=module, activation=describe_module(module)
        )
    if any(True for _ in module.children()):
        return Layer(name=name, kind="block", module=module)
    if isinstance(module, conv._ConvNd):
        return Layer(name=name, kind="conv", module=module)
    for kind, classes in (("linear", _LINEARS), ("norm", _NORMS), ("pool", _POOLS)):
        if isinstance(module, classes):
            return Layer(name=name, kind=kind, module=module)
    if isinstance(module, dropout._DropoutNd):
        return Layer(name=name, kind="dropout", module=module)
    return _unlisted(name, module)


def _unlisted(name: str, module: nn.Module) -> Layer:
    if any(sum(size > 1 for size in each.shape) > 1 for each in module.parameters()):
        return Layer(name=name, kind="other", module=module)  # a weight, maybe too large to copy
    try:
        probe = copy.deepcopy(module)
        probe._forward_hooks.clear()
        probe._forward_pre_hooks.clear()
        found = describe_module(copy.deepcopy(probe).cpu())
    except Exception:  # whatever a module that can't be copied raises
        probe, found = None, None
    if found is not None and found is not LINEAR:
        is_known = found.slope is not None or found.alpha is not None
        return Layer(
            name=name,
            kind="activation",
            module=module,
            activation=found,
            probe=None if is_known else probe,
        )
    listed = type(module).__name__ in torch_activations.__all__
    return Layer(name=name, kind="activation" if listed else "other", module=module)


def find_layers(caller: str, model: nn.Module, names: Iterable[str] | None) -> list[Layer]:
    """The layers of the given names, or all modules without parts."""
    modules = dict(model.named_modules())
    if names is None:
        return [
            describe(name, module)
            for name, module in modules.items()
            if not any(True for _ in module.children())
        ]
    chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    for name in chosen:
        if name not in modules:
            closest = get_close_matches(name, list(modules), n=1, cutoff=0.0)[0]
            raise ValueError(
                f"{caller}: expected names of modules of the model as layers, got {name!r} "
                f"(closest: {closest!r})"
            )
    return [describe(name, modules[name]) for name in chosen]
