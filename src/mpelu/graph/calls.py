"""The calls a model makes, each with the calls that feed it; checks of a model and its inputs."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm

from mpelu.graph.ops import KIND_OF

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one tensor, positional arguments or keyword arguments."""

INPUT = "input"


@dataclass(frozen=True)
class Ref:
    """Stands for what an earlier call returned."""

    index: int

    @property
    def name(self) -> str:
        """What torch.fx prints for it in an f-string or an assertion."""
        return f"call_{self.index}"

    @property
    def meta(self) -> dict[str, Any]:
        """Where torch.fx leaves remarks, which nobody reads here."""
        return {}


@dataclass(frozen=True)
class Call:
    """A call of a leaf module or of a torch function."""

    name: str
    """Path of the module, or name of the function without underscores."""
    target: nn.Module | Callable[..., Any] | None
    """None for an input of the model, and for a tensor of unknown origin."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: torch.Size | None = None
    """Of the output, if it is known and a single tensor."""

    @cached_property
    def fed_by(self) -> tuple[int, ...]:
        """Indices of the calls whose outputs this one takes, in order."""
        found: list[Ref] = []
        substitute(self.args, Ref, found.append)
        if self.kwargs:
            substitute(self.kwargs, Ref, found.append)
        return tuple(ref.index for ref in found)

    @cached_property
    def operation(self) -> str:
        """The plain name of what it runs, by which `mpelu.graph.ops` knows operations."""
        is_module = isinstance(self.target, nn.Module)
        return (type(self.target).__name__ if is_module else self.name).replace("_", "").lower()

    @cached_property
    def kind(self) -> str | None:
        """The kind of operation it runs, one of `KINDS`; None for any other."""
        return KIND_OF.get(self.operation)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """The argument, whether it was passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


def substitute(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The value with every instance of a kind changed, also in containers and dataclasses."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        changed = [substitute(item, kind, change) for item in value]
        if isinstance(value, list):
            return changed
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    if isinstance(value, dict):
        items = {key: substitute(item, kind, change) for key, item in value.items()}
        if type(value) is dict:
            return items
        copied = copy.copy(value)
        copied.update(items)
        return copied
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.init
        }
        new = {name: substitute(item, kind, change) for name, item in fields.items()}
        if any(new[name] is not fields[name] for name in fields):
            return dataclasses.replace(value, **new)
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor of a value, also those in dataclasses and other containers of a model's output.

    Example:
        >>> len(tensors_in({"a": torch.zeros(1), "b": [torch.zeros(1), 2]}))
        2
    """
    found: list[Tensor] = []
    seen: set[int] = set()

    def collect(item: Any, depth: int) -> None:
        if isinstance(item, Tensor):
            found.append(item)
            return
        if depth > 6 or id(item) in seen or isinstance(item, (nn.Module, type, str, int, float)):
            return
        seen.add(id(item))
        if isinstance(item, Mapping):
            children: Iterable[Any] = item.values()
        elif isinstance(item, (tuple, list, set, frozenset)):
            children = item
        else:
            children = getattr(item, "__dict__", {}).values()
        for child in list(children):
            collect(child, depth + 1)

    collect(value, 0)
    return found


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as positional and keyword arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, Sequence) else (inputs,), {}


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel or torch.compile."""
    inner: object = model
    while isinstance(inner, nn.Module):
        model = inner
        is_parallel = isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel))
        inner = getattr(model, "module" if is_parallel else "_orig_mod", None)
    return model


def is_frozen(module: nn.Module) -> bool:
    """Whether the module itself has parameters and none of them is trained."""
    parameters = list(module.parameters(recurse=False))
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


@contextlib.contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Sets evaluation mode, except for trained batch norm, which uses batch statistics, and for
    layers whose spectral norm is a hook: its first vectors are random, and say nothing.
    """
    modes = [(module, module.training) for module in modules]
    try:
        for module, _ in modes:
            hooks = module._forward_pre_hooks.values()
            module.training = (isinstance(module, _BatchNorm) and not is_frozen(module)) or any(
                isinstance(hook, SpectralNorm) for hook in hooks
            )
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Without cyclic garbage collection.

    A walk makes many small objects and keeps them all, at which the collector goes through every
    module of the network again: a third of the time for 1001 layers.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def check_model(
    caller: str, model: nn.Module, generator: torch.Generator | None
) -> dict[str, nn.Parameter]:
    """The model's parameters; raises unless weights are among them, in memory and where the
    generator is.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected a torch.nn.Module, got {type(model).__name__}")
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ValueError(f"{caller}: expected weights with a shape, got a lazy {name}")
        if parameter.is_meta:
            raise ValueError(f"{caller}: expected weights with memory, got {name} on meta")
        if generator is not None and generator.device.type != parameter.device.type:
            raise ValueError(
                f"{caller}: expected a generator on {parameter.device.type} as {name}, "
                f"got one on {generator.device.type}"
            )
    if not any(parameter.dim() > 1 for parameter in parameters.values()):
        raise ValueError(
            f"{caller}: expected a model with weights, got none of two or more dimensions in "
            f"{type(model).__name__}"
        )
    return parameters


def check_inputs(caller: str, inputs: Inputs) -> None:
    """Raises if there is no tensor among the inputs or one isn't finite."""
    tensors: list[Tensor] = []
    substitute(arguments(inputs), Tensor, tensors.append)
    if not tensors:
        raise ValueError(f"{caller}: expected tensors as inputs, got {type(inputs).__name__}")
    if not any(tensor.numel() for tensor in tensors):
        raise ValueError(
            f"{caller}: expected inputs with values, got an empty one of shape "
            f"{list(tensors[0].shape)}"
        )
    for tensor in tensors:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"{caller}: expected finite inputs, got NaN or infinity in one of shape "
                f"{list(tensor.shape)}"
            )


def input_error(caller: str, inputs: Inputs, error: Exception) -> ValueError:
    """What a forward pass raised, in one line with the shapes it was given."""
    shapes: list[list[int]] = []
    substitute(arguments(inputs), Tensor, lambda tensor: shapes.append(list(tensor.shape)))
    return ValueError(
        f"{caller}: expected inputs the model can run on, got shapes {shapes}: {reason(error)}"
    )


def reason(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
