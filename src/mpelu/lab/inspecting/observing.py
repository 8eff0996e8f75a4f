"""The layers of a model, and what goes into and comes out of them in forward passes."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import activation as torch_activations
from torch.nn.modules import conv, dropout, pooling
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from mpelu.activations import describe, find_activation
from mpelu.diagnosis import Moments, is_measurable
from mpelu.elementwise import LINEAR, ElementwiseFunction
from mpelu.graph import Inputs, arguments, eagerly, substitute, unchanged, unwrap
from mpelu.lab.errors import choose

Batches = Tensor | Iterable[Inputs]
"""A tensor, which is one batch, or batches: each a tensor, a tuple of positional arguments or a
dict of keyword arguments."""

Observer = Callable[[str, int, Tensor], None]
"""Function that receives the path of a module, the number of its call in this pass (from 1), and a
tensor."""

_CHUNK = 2**21
"""Number of values that are copied to float64 at a time."""
_KINDS: dict[str, tuple[type, ...]] = {
    "conv": (conv._ConvNd,),
    "linear": (nn.Linear, nn.Bilinear),
    "norm": (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm),
    "pool": tuple(getattr(pooling, name) for name in pooling.__all__),
    "dropout": (dropout._DropoutNd,),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedLayer:
    """A module to observe."""

    kind: str
    """conv, linear, norm, activation, pool, dropout, block (a module with submodules) or other."""
    module: nn.Module
    activation: ElementwiseFunction | None = None
    """The function of an elementwise activation."""


def find_layers(model: nn.Module, names: Iterable[str] | None) -> dict[str, InspectedLayer]:
    """Returns the layers with the given names, or all modules without submodules, by path.

    Raises:
        UserError: for a name that the model doesn't have.

    Example:
        >>> found = find_layers(nn.Sequential(nn.Linear(8, 2), nn.ReLU()), None)
        >>> {name: layer.kind for name, layer in found.items()}
        {'0': 'linear', '1': 'activation'}
    """
    modules = dict(model.named_modules())
    if names is None:
        chosen = [name for name, each in modules.items() if not any(True for _ in each.children())]
    else:
        chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    for name in chosen:
        if name not in modules:
            choose("layers", name, filter(None, modules), noun="module")
    return {name: _layer(modules[name]) for name in chosen}


def _layer(module: nn.Module) -> InspectedLayer:
    """Describes a module. Where only a run can tell what it computes, a copy is run."""
    is_known = find_activation(module) is not None
    if not is_known:
        if any(True for _ in module.children()):
            return InspectedLayer(kind="block", module=module)
        for kind, classes in _KINDS.items():
            if isinstance(module, classes):
                return InspectedLayer(kind=kind, module=module)
    found = describe(module)
    if found is not None and found is not LINEAR:
        return InspectedLayer(kind="activation", module=module, activation=found)
    is_known = is_known or type(module).__name__ in torch_activations.__all__
    return InspectedLayer(kind="activation" if is_known else "other", module=module)


def chunks(values: Tensor) -> Iterator[Tensor]:
    """Yields the values in float64, split along dimension 0 so that copies stay small.

    Example:
        >>> [part.dtype for part in chunks(torch.zeros(3))]
        [torch.float64]
    """
    return (part.to(torch.float64) for part in split(values))


def split(values: Tensor) -> Iterable[Tensor]:
    """Returns the values in their own dtype, split likewise."""
    return torch.split(values.detach(), max(1, _CHUNK // values[0].numel()))


def add_values(moments: Moments, values: Tensor) -> None:
    """Adds single values, for moments over all of them."""
    moments.add(values.reshape(-1, 1), values.numel())


@contextlib.contextmanager
def observing(
    model: nn.Module,
    layers: Mapping[str, InspectedLayer],
    *,
    before: Observer | None = None,
    after: Observer | None = None,
    repeats: bool = False,
) -> Iterator[Callable[[Inputs], Any]]:
    """Installs hooks for a `with` block, and restores the model and torch's random state after it.

    Tensors aren't copied: a module that works in place overwrites its input after `before`.
    Neither are parameters, since a forward pass doesn't change them.

    Args:
        model: model that runs.
        layers: modules to observe, by path.
        before: function that receives the first input of each module.
        after: function that receives the output of each module.
        repeats: whether to observe modules that return the output of another module unchanged, such
            as torch.nn.Identity, or dropout in evaluation mode.

    Returns:
        A function that runs a forward pass. Calls outside it, such as repetitions in backward,
        aren't observed.
    """
    calls: Counter[str] = Counter()
    opened: list[tuple[str, int, _Version | None]] = []
    reported: dict[int, _Version] = {}
    is_running = False

    def enter(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_running:
            return
        calls[name] += 1
        first = next(iter([*args, *kwargs.values()]), None)
        if not isinstance(first, Tensor):
            opened.append((name, calls[name], None))
            return
        opened.append((name, calls[name], _Version(first)))
        if before is not None and is_measurable(first):
            before(name, calls[name], first)

    def leave(name: str, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not is_running:
            return
        entered, call, given = opened.pop()
        while entered != name:  # a call that raised an error, which the model caught
            entered, call, given = opened.pop()
        if after is None or not isinstance(output, Tensor) or not is_measurable(output):
            return
        versions = (reported.get(id(output)), given)
        if repeats or not all(each is not None and each.matches(output) for each in versions):
            reported[id(output)] = _Version(output)
            after(name, call, output)

    def run(inputs: Inputs) -> Any:
        nonlocal is_running
        # Copies: a model whose first layer works in place would overwrite the batch.
        args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
        for kept in (calls, opened, reported):
            kept.clear()
        is_running = True
        try:
            return model(*args, **kwargs)
        finally:
            is_running = False

    parameters = {id(each) for each in model.parameters()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchanged(list(model.modules()), written=parameters))
        stack.enter_context(eagerly(model))
        for name, layer in layers.items():
            entry, end = partial(enter, name), partial(leave, name)
            for handle in (
                layer.module.register_forward_pre_hook(entry, with_kwargs=True),
                layer.module.register_forward_hook(end),
            ):
                stack.callback(handle.remove)
        yield run


class _Version:
    """Identifies a tensor at one point in time without keeping it alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = weakref.ref(tensor), tensor._version

    def matches(self, tensor: Tensor) -> bool:
        """Whether a tensor is this one, and unmodified since."""
        return self._tensor() is tensor and tensor._version == self._version


def checked_model(caller: str, model: nn.Module) -> nn.Module:
    """Returns the model without wrappers such as DistributedDataParallel or torch.compile.

    Raises:
        TypeError: if the model isn't a module.
        ValueError: if a parameter or buffer has no memory yet.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected a torch.nn.Module, got {type(model).__name__}")
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(value):
            raise ValueError(f"{caller}: {name} is lazy; run the model once to set its shape")
        if value.is_meta:
            raise ValueError(f"{caller}: {name} is on the meta device; move the model to a device")
    return unwrap(model)


def checked_batches(caller: str, batches: Batches) -> Iterator[Inputs]:
    """Yields the batches, each checked first.

    Raises:
        ValueError: if there is no batch, or one is empty, on the meta device or contains NaN.
    """
    found = False
    for batch in [batches] if isinstance(batches, Tensor) else batches:
        tensors: list[Tensor] = []
        substitute(arguments(batch), Tensor, tensors.append)
        if not tensors:
            raise ValueError(f"{caller}: expected tensors in a batch, got {type(batch).__name__}")
        for tensor in tensors:
            if tensor.is_meta or tensor.numel() == 0:
                came = "one on meta" if tensor.is_meta else f"shape {list(tensor.shape)}"
                raise ValueError(f"{caller}: expected a batch with values, got {came}")
            if tensor.is_floating_point() and tensor.isnan().any():
                raise ValueError(f"{caller}: expected a batch without NaN, got NaN")
        found = True
        yield batch
    if not found:
        raise ValueError(f"{caller}: expected at least one batch, got none")
