"""Checks a model and its inputs before it is observed, and restores its state afterwards."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm

from mpelu.graph.calls import substitute, tensors_in

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""Inputs of a model: one tensor, positional arguments or keyword arguments."""


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Splits inputs into positional and keyword arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, Sequence) else (inputs,), {}


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the model inside DistributedDataParallel, DataParallel or torch.compile."""
    inner: object = model
    while isinstance(inner, nn.Module):
        model = inner
        is_parallel = isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel))
        inner = getattr(model, "module" if is_parallel else "_orig_mod", None)
    return model


def check_model(
    caller: str, model: nn.Module, generator: torch.Generator | None
) -> dict[str, nn.Parameter]:
    """Returns the model's parameters after checking that some are weights, and that all are in
    memory and on the generator's device.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"{caller}: expected a model of Python code, got {type(model).__name__}; call it "
            "before scripting or tracing"
        )
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"{caller}: expected a torch.Generator, got {generator!r}; write "
            "torch.Generator().manual_seed(0)"
        )
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ValueError(f"{caller}: {name} is lazy and has no shape yet; run the model once")
        if parameter.is_meta:
            raise ValueError(
                f"{caller}: {name} is on the meta device and has no memory; call to_empty first"
            )
        if generator is not None and generator.device.type != parameter.device.type:
            raise ValueError(
                f"{caller}: expected a generator on {parameter.device.type}, where {name} is, "
                f"got one on {generator.device.type}"
            )
    if not any(parameter.dim() > 1 for parameter in parameters.values()):
        raise ValueError(
            f"{caller}: {type(model).__name__} has no weights (parameters of two or more "
            "dimensions)"
        )
    return parameters


def check_inputs(caller: str, inputs: Inputs) -> None:
    """Raises ValueError unless the inputs contain tensors with values, all of them finite."""
    tensors: list[Tensor] = []
    substitute(arguments(inputs), Tensor, tensors.append)
    if not tensors:
        raise ValueError(f"{caller}: expected tensors as inputs, got {type(inputs).__name__}")
    if not any(tensor.numel() for tensor in tensors):
        raise ValueError(
            f"{caller}: expected inputs with values, got an empty tensor of shape "
            f"{list(tensors[0].shape)}"
        )
    for tensor in tensors:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"{caller}: expected finite inputs, got NaN or infinity in a tensor of shape "
                f"{list(tensor.shape)}"
            )


def input_error(caller: str, inputs: Inputs, error: Exception) -> ValueError:
    """Returns the error of a forward pass in one line, with the shapes of its inputs."""
    shapes: list[list[int]] = []
    substitute(arguments(inputs), Tensor, lambda tensor: shapes.append(list(tensor.shape)))
    return ValueError(
        f"{caller}: the model can't run on inputs of shapes {shapes}: {reason(error)}"
    )


def reason(error: Exception) -> str:
    """Returns the first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_frozen(module: nn.Module) -> bool:
    """Returns whether the module has parameters of its own and none of them is trained."""
    parameters = list(module.parameters(recurse=False))
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def copied(module: nn.Module) -> nn.Module:
    """Returns a deep copy, even of a module that stores tensors it has computed.

    `torch.nn.utils.weight_norm`, for example, stores the weight of the last pass. Such tensors are
    copied by value, without the graph they come from.
    """
    computed = [
        tensor
        for part in module.modules()
        for tensor in tensors_in(part.__dict__)
        if not tensor.is_leaf
    ]
    return copy.deepcopy(module, {id(each): each.detach().clone() for each in computed})


@contextlib.contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Sets evaluation mode, except for two kinds of modules that are put in training mode.

    Batch norm that isn't frozen uses the statistics of the batch. A layer whose spectral norm is a
    hook computes its vectors, which are random at first.
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
    """Turns cyclic garbage collection off.

    Reading a model creates many small objects and keeps them all, so the collector would go
    through the whole network again and again. This takes a third of the time for 1001 layers.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def unchanged(
    modules: Sequence[nn.Module], *, values: bool = True, written: Collection[int] = ()
) -> Iterator[None]:
    """Restores attributes, parameters, buffers, training flags and random states.

    Attributes include flags, counters and the contents of containers. Random states are those of
    torch, Python and NumPy.

    Args:
        modules: every module whose code runs inside.
        values: whether parameters and buffers may be overwritten, so that a copy is needed.
        written: ids of tensors that are meant to change; ids may be added until the end. Tensors
            whose ids are in it at the start aren't copied.
    """
    restore = snapshot(modules, values=values, written=written)
    own = [value for module in modules for value in module.parameters(recurse=False)]
    gpus = sorted({value.get_device() for value in own if value.is_cuda})
    numpy: Any = sys.modules.get("numpy")
    states = random.getstate(), None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng(devices=gpus):
        try:
            yield
        finally:
            restore()
            random.setstate(states[0])
            if numpy is not None:
                numpy.random.set_state(states[1])


@contextlib.contextmanager
def hooks_restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Removes hooks that the block installs, and restores hooks that it removes."""
    kept = [
        (hooks, hooks.copy() if hooks else ())
        for module in modules
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    ]
    try:
        yield
    finally:
        for hooks, before in kept:
            if hooks.keys() != set(before):
                _refill(hooks, before)


@contextlib.contextmanager
def restored_on_error(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restores the values of tensors if an error or an interrupt ends the block."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, old in kept:
                tensor.copy_(old)
        raise


@contextlib.contextmanager
def unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """Restores the model's state if an error or an interrupt ends the block.

    Observations inside the block share its copies of values that haven't changed.
    """
    copies: dict[int, Tensor] = {}
    restore = snapshot(list(model.modules()), copies=copies)
    token = _shared.set(copies)
    try:
        yield
    except BaseException:
        restore()
        raise
    finally:
        _shared.reset(token)


_shared: ContextVar[Mapping[int, Tensor]] = ContextVar("_shared", default=MappingProxyType({}))
"""Copies by the id of the tensor; the owner of the copies keeps the tensors alive."""


def snapshot(
    modules: Sequence[nn.Module],
    *,
    values: bool = True,
    written: Collection[int] = (),
    copies: dict[int, Tensor] | None = None,
) -> Callable[[], None]:
    """Saves the state of the modules, and returns a function that restores it.

    Args:
        modules: same as in `unchanged`.
        values: same as in `unchanged`.
        written: same as in `unchanged`.
        copies: dictionary to fill with the copies of values, by the ids of the tensors.
    """
    attributes = [(module, dict(module.__dict__)) for module in modules]
    contents = [
        (container, container.copy())
        for _, saved in attributes
        for name, attribute in saved.items()
        if type(attribute) in _CONTAINERS and not name.endswith("_hooks")
        for container in _containers(attribute)
    ]
    # Models that install hooks on their first call would otherwise install them again.
    hooks = [
        (attribute, attribute.copy() if attribute else ())
        for _, saved in attributes
        for attribute in saved.values()
        if type(attribute) is OrderedDict
    ]
    own = _tensors_of(attributes) if values else []
    tensors = [(tensor, _copy(tensor)) for tensor in own if id(tensor) not in written]
    if copies is not None:
        copies.update((id(tensor), old) for tensor, old in tensors)

    def restore() -> None:
        for module in modules:
            reshard = getattr(module, "reshard", None)
            if callable(reshard):  # FSDP, which keeps whole parameters after a pass
                reshard()
        with torch.no_grad():
            # Compared by value, because writing through .data leaves no trace.
            for tensor, old in tensors:
                if id(tensor) not in written and not torch.equal(tensor, old):
                    tensor.copy_(old)
        for container, saved_items in contents:
            _refill(container, saved_items)
        for container, saved_items in hooks:
            if container.keys() != set(saved_items):
                _refill(container, saved_items)
        for module, saved in attributes:
            for name in module.__dict__.keys() - saved.keys():
                del module.__dict__[name]
            module.__dict__.update(saved)

    return restore


def _copy(tensor: Tensor) -> Tensor:
    shared = _shared.get().get(id(tensor))
    if shared is not None and torch.equal(shared, tensor):
        return shared
    return tensor.detach().clone()


_CONTAINERS = (list, dict, set, deque)


def _containers(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yields the container and the containers inside it."""
    yield value
    if depth > 0:
        for item in _items(value):
            if type(item) in _CONTAINERS:
                yield from _containers(item, depth - 1)


def _items(container: Any) -> Iterable[Any]:
    found: Iterable[Any] = container.values() if isinstance(container, dict) else container
    return found


def _refill(container: Any, items: Any) -> None:
    if isinstance(container, (list, deque)):
        if len(container) != len(items) or any(
            one is not other for one, other in zip(container, items, strict=True)
        ):
            container.clear()
            container.extend(items)
        return
    container.clear()
    container.update(items)


_OF_MODULE = ("_parameters", "_buffers", "_modules")
"""Names of containers that every module has."""


def _tensors_of(attributes: list[tuple[nn.Module, dict[str, Any]]]) -> list[Tensor]:
    """Returns parameters, buffers and the tensors in attributes or their containers, each once."""
    found: dict[int, Tensor] = {}
    for _, saved in attributes:
        own = [*saved.get("_parameters", {}).values(), *saved.get("_buffers", {}).values()]
        for name, value in saved.items():
            if isinstance(value, Tensor):
                own.append(value)
            elif type(value) in _CONTAINERS and name not in _OF_MODULE and value:
                for container in _containers(value):
                    own += [item for item in _items(container) if isinstance(item, Tensor)]
        found.update({id(tensor): tensor for tensor in own if tensor is not None})
    return list(found.values())
