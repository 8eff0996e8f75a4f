"""Forward passes watched by hooks that leave the model as it was."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpelu.init.graph import Inputs, arguments, substitute
from mpelu.lab.inspecting.layers import Layer

Batches = Tensor | Iterable[Inputs]
"""One tensor for one batch, or batches: a tensor, a tuple of positional or a dict of keyword
arguments each."""

Seen = Callable[[Layer, int, Tensor], None]
"""Takes a layer, the number of its call in this pass, from 1, and a tensor."""


def check(caller: str, model: nn.Module) -> None:
    """Raises unless the model is a module with its values in memory."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected a torch.nn.Module, got {type(model).__name__}")
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(value):
            raise ValueError(f"{caller}: expected weights with a shape, got a lazy {name}")
        if value.is_meta:
            raise ValueError(f"{caller}: expected weights with memory, got {name} on meta")


def checked(caller: str, batches: Batches) -> Iterator[Inputs]:
    """The batches, each looked at before it is used; raises ValueError if there is none."""
    found = False
    for batch in [batches] if isinstance(batches, Tensor) else batches:
        tensors: list[Tensor] = []
        substitute(arguments(batch), Tensor, tensors.append)
        for tensor in tensors:
            if tensor.is_meta:
                raise ValueError(f"{caller}: expected batches with memory, got one on meta")
            if tensor.numel() == 0:
                raise ValueError(
                    f"{caller}: expected batches with values, got one of shape {list(tensor.shape)}"
                )
            if tensor.is_floating_point() and tensor.isnan().any():
                raise ValueError(f"{caller}: expected batches of numbers, got NaN in one")
        if not tensors:
            raise ValueError(f"{caller}: expected tensors in a batch, got {type(batch).__name__}")
        found = True
        yield batch
    if not found:
        raise ValueError(f"{caller}: expected at least one batch, got none")


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Puts back buffers, training flags and torch's random state, and runs compiled parts eagerly.

    Parameters aren't touched by a forward pass.
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


class _Version:
    """A tensor at one time, without keeping it alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = weakref.ref(tensor), tensor._version

    def is_still(self, tensor: Tensor) -> bool:
        return self._tensor() is tensor and tensor._version == self._version


class Watch:
    """Tells what goes into and comes out of layers during `run`.

    What it passes on is not copied: a layer that works in place overwrites it after `before`.

    Args:
        model: what runs.
        before: told of the first input of a layer.
        after: told of the output of a layer.
        repeats: also of a layer that hands on the output of another as it is, such as
            torch.nn.Identity or dropout in evaluation.
    """

    def __init__(
        self, model: nn.Module, before: Seen, after: Seen, *, repeats: bool = False
    ) -> None:
        self._model, self._before, self._after, self._repeats = model, before, after, repeats
        self._calls: Counter[str] = Counter()
        self._open: list[tuple[str, int, _Version | None]] = []
        # Weak, so that watching keeps no activation alive.
        self._told: dict[int, _Version] = {}
        self._is_running = False

    @contextlib.contextmanager
    def on(self, layers: Iterable[Layer]) -> Iterator[None]:
        """Hooks on the layers, taken off at the end."""
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
        """A forward pass; what runs later, such as recomputation in backward, isn't watched."""
        # Copies: a model that starts in place would overwrite the caller's batch.
        args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
        self._calls.clear()
        self._open.clear()
        self._told.clear()
        self._is_running = True
        try:
            return self._model(*args, **kwargs)
        finally:
            self._is_running = False

    def _hook_before(self, layer: Layer) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_running:
                return
            self._calls[layer.name] += 1
            call = self._calls[layer.name]
            first = next(iter([*args, *kwargs.values()]), None)
            version = _Version(first) if isinstance(first, Tensor) else None
            self._open.append((layer.name, call, version))
            if is_measurable(first):
                self._before(layer, call, first)

        return layer.module.register_forward_pre_hook(hook, with_kwargs=True)

    def _hook_after(self, layer: Layer) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not self._is_running:
                return
            name, call, given = self._open.pop()
            while name != layer.name:  # a call that ended in an error the model caught
                name, call, given = self._open.pop()
            if not is_measurable(output):
                return
            told = self._told.get(id(output))
            passes_on = all(each is not None and each.is_still(output) for each in (told, given))
            if passes_on and not self._repeats:
                return
            self._told[id(output)] = _Version(output)
            self._after(layer, call, output)

        return layer.module.register_forward_hook(hook)


def is_measurable(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a tensor of real numbers in memory, with at least one."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and not value.is_meta
        and value.numel() > 0
    )
