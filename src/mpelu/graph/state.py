"""A model's state before an observation, put back after it."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.graph.calls import tensors_in


def copied(module: nn.Module) -> nn.Module:
    """A deep copy, also of a module that keeps tensors it has computed.

    `torch.nn.utils.weight_norm` keeps the weight of the last pass, for example. Such tensors are
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
def unchanged(
    modules: Sequence[nn.Module], *, values: bool = True, written: Collection[int] = ()
) -> Iterator[None]:
    """Restores attributes, parameters, buffers, training flags and random states.

    Attributes are those of every module: flags and counters, and what containers in them hold.
    Random states are those of torch, Python and NumPy.

    Args:
        modules: every module whose code runs inside.
        values: whether parameters and buffers may be overwritten, so that a copy is needed.
        written: ids of tensors that are meant to change; read at the end. Those that are known
            at the start aren't copied.
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
    """Takes out hooks that are installed in the block, and puts back those that it takes out."""
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

    What is observed inside of it shares its copy of the values, as far as these are still the same.
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
"""Copies by the ids of tensors, which their owner keeps alive."""


def snapshot(
    modules: Sequence[nn.Module],
    *,
    values: bool = True,
    written: Collection[int] = (),
    copies: dict[int, Tensor] | None = None,
) -> Callable[[], None]:
    """Records the state of the modules; the function returned puts it back.

    Args:
        modules: as for `unchanged`.
        values: as for `unchanged`.
        written: as for `unchanged`.
        copies: filled with the copies of values, by the ids of the tensors.
    """
    attributes = [(module, dict(module.__dict__)) for module in modules]
    contents = [
        (container, container.copy())
        for _, saved in attributes
        for name, attribute in saved.items()
        if type(attribute) in _CONTAINERS and not name.endswith("_hooks")
        for container in _containers(attribute)
    ]
    # Models that install hooks on their first call would install them once more.
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
            # By value, because writing through .data leaves no trace.
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
    """The container and those inside of it."""
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
"""Containers that every module has."""


def _tensors_of(attributes: list[tuple[nn.Module, dict[str, Any]]]) -> list[Tensor]:
    """Parameters, buffers and tensors in attributes or in containers there, each once."""
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
