"""Forward passes observed through hooks that leave the model as it was."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpelu.graph import Inputs, arguments, evaluating, substitute, unwrap
from mpelu.lab.inspecting.layers import InspectedLayer

__all__ = [
    "Batches",
    "ForwardHooks",
    "Inputs",
    "checked_batches",
    "checked_model",
    "differentiable",
    "initial_mode",
    "preserved_state",
    "unwrap",
]

Batches = Tensor | Iterable[Inputs]
"""A tensor, which is one batch, or batches: each a tensor, a tuple of positional arguments or a
dict of keyword arguments."""

Observer = Callable[[InspectedLayer, int, Tensor], None]
"""Receives a layer, the number of its call in this pass (from 1), and a tensor."""


class ForwardHooks:
    """Observes what goes into and comes out of layers during `run`.

    Tensors aren't copied: a layer that works in place overwrites its input after `before`.

    Args:
        model: the model that runs.
        before: receives the first input of each layer.
        after: receives the output of each layer.
        repeats: also observe layers that return the output of another layer unchanged, such as
            torch.nn.Identity, or dropout in evaluation mode.
    """

    def __init__(
        self, model: nn.Module, before: Observer, after: Observer, *, repeats: bool = False
    ) -> None:
        self._model, self._before, self._after, self._repeats = model, before, after, repeats
        self._calls: Counter[str] = Counter()
        self._open: list[tuple[str, int, _Version | None]] = []
        self._reported: dict[int, _Version] = {}
        self._is_running = False

    @contextlib.contextmanager
    def attached(self, layers: Iterable[InspectedLayer]) -> Iterator[None]:
        """Puts hooks on the layers, and removes them at the end."""
        handles = []
        try:
            for layer in layers:
                handles.append(self._hook_before(layer))
                handles.append(self._hook_after(layer))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def run(self, inputs: Inputs) -> Any:
        """Runs a forward pass. Later calls, such as recomputation in backward, aren't observed."""
        # Copies, because a model whose first layer works in place would overwrite the batch.
        args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
        self._calls.clear()
        self._open.clear()
        self._reported.clear()
        self._is_running = True
        try:
            return self._model(*args, **kwargs)
        finally:
            self._is_running = False

    def _hook_before(self, layer: InspectedLayer) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_running:
                return
            self._calls[layer.name] += 1
            call = self._calls[layer.name]
            first = next(iter([*args, *kwargs.values()]), None)
            version = _Version(first) if isinstance(first, Tensor) else None
            self._open.append((layer.name, call, version))
            if _is_measurable(first):
                self._before(layer, call, first)

        return layer.module.register_forward_pre_hook(hook, with_kwargs=True)

    def _hook_after(self, layer: InspectedLayer) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not self._is_running:
                return
            name, call, given = self._open.pop()
            while name != layer.name:  # a call that raised an error, which the model caught
                name, call, given = self._open.pop()
            if not _is_measurable(output):
                return
            reported = self._reported.get(id(output))
            is_repeat = all(each is not None and each.matches(output) for each in (reported, given))
            if is_repeat and not self._repeats:
                return
            self._reported[id(output)] = _Version(output)
            self._after(layer, call, output)

        return layer.module.register_forward_hook(hook)


def checked_model(caller: str, model: nn.Module) -> nn.Module:
    """The model without wrappers such as DistributedDataParallel or torch.compile.

    Raises:
        TypeError: if it isn't a module.
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
    """The batches, each checked before it is used.

    Raises:
        ValueError: if there is no batch, or one is empty, on the meta device or contains NaN.
    """
    found = False
    for batch in [batches] if isinstance(batches, Tensor) else batches:
        tensors: list[Tensor] = []
        substitute(arguments(batch), Tensor, tensors.append)
        for tensor in tensors:
            if tensor.is_meta:
                raise ValueError(f"{caller}: expected a batch with values, got one on meta")
            if tensor.numel() == 0:
                raise ValueError(
                    f"{caller}: expected a batch with values, got shape {list(tensor.shape)}"
                )
            if tensor.is_floating_point() and tensor.isnan().any():
                raise ValueError(f"{caller}: expected a batch without NaN, got NaN")
        if not tensors:
            raise ValueError(f"{caller}: expected tensors in a batch, got {type(batch).__name__}")
        found = True
        yield batch
    if not found:
        raise ValueError(f"{caller}: expected at least one batch, got none")


@contextlib.contextmanager
def preserved_state(model: nn.Module) -> Iterator[None]:
    """Restores buffers, training flags and torch's random state, and runs compiled parts eagerly.

    A forward pass doesn't change parameters.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    is_compiled = any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    eagerly: contextlib.AbstractContextManager[Any] = (
        torch.compiler.set_stance("force_eager") if is_compiled else contextlib.nullcontext()
    )
    values = [*model.parameters(), *model.buffers()]
    gpus = sorted({value.get_device() for value in values if value.is_cuda})
    with torch.random.fork_rng(devices=gpus), eagerly:
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, saved in buffers:
                    buffer.copy_(saved)
                    module._buffers[name] = buffer
            for module, mode in modes:
                module.training = mode


@contextlib.contextmanager
def initial_mode(model: nn.Module) -> Iterator[None]:
    """The mode for a network before training: batch norm uses each batch, dropout is off."""
    with evaluating(model.modules()):
        yield


def differentiable(batch: Inputs) -> tuple[list[Tensor], Inputs]:
    """Leaf tensors that require gradients, and inputs made from them that may be overwritten."""
    leaves: list[Tensor] = []

    def fresh(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaf = tensor.detach().requires_grad_()
        leaves.append(leaf)
        return leaf.clone()

    args, kwargs = substitute(arguments(batch), Tensor, fresh)
    return leaves, kwargs or args


class _Version:
    """A tensor at one point in time, held weakly so that no activation stays alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = weakref.ref(tensor), tensor._version

    def matches(self, tensor: Tensor) -> bool:
        """Whether it is this tensor, not modified since."""
        return self._tensor() is tensor and tensor._version == self._version


def _is_measurable(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a dense tensor of real numbers, in memory and not empty."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and not value.is_meta
        and value.numel() > 0
    )
