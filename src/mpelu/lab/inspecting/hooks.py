"""Observes forward passes through hooks, and leaves the model unchanged."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpelu.diagnosis import is_measurable
from mpelu.graph import Inputs, arguments, eagerly, substitute, unchanged, unwrap

Batches = Tensor | Iterable[Inputs]
"""A tensor, which is one batch, or batches: each a tensor, a tuple of positional arguments or a
dict of keyword arguments."""

Observer = Callable[[str, int, Tensor], None]
"""Function that receives the path of a module, the number of its call in this pass (from 1), and a
tensor."""


class ForwardHooks:
    """Observes what goes into and comes out of modules during `run`.

    Tensors aren't copied: a module that works in place overwrites its input after `before`.

    Args:
        model: model that runs.
        modules: modules to observe, by path.
        before: function that receives the first input of each module.
        after: function that receives the output of each module.
        repeats: whether to observe modules that return the output of another module unchanged, such
            as torch.nn.Identity, or dropout in evaluation mode.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        before: Observer,
        after: Observer,
        *,
        repeats: bool = False,
    ) -> None:
        self._model, self._modules = model, modules
        self._before, self._after, self._repeats = before, after, repeats
        self._calls: Counter[str] = Counter()
        self._open: list[tuple[str, int, _Version | None]] = []
        self._reported: dict[int, _Version] = {}
        self._is_running = False

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Installs the hooks, and restores the model and torch's random state at the end.

        Parameters aren't copied, since a forward pass doesn't change them.
        """
        parameters = {id(each) for each in self._model.parameters()}
        modules = list(self._model.modules())
        with unchanged(modules, written=parameters), eagerly(self._model):
            handles = []
            try:
                for name, module in self._modules.items():
                    handles.append(self._hook_before(name, module))
                    handles.append(self._hook_after(name, module))
                yield
            finally:
                for handle in handles:
                    handle.remove()

    def run(self, inputs: Inputs) -> Any:
        """Runs a forward pass. Later calls, such as repetitions in backward, aren't observed."""
        # Copies: a model whose first layer works in place would overwrite the batch.
        args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
        self._calls.clear()
        self._open.clear()
        self._reported.clear()
        self._is_running = True
        try:
            return self._model(*args, **kwargs)
        finally:
            self._is_running = False

    def _hook_before(self, name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_running:
                return
            self._calls[name] += 1
            first = next(iter([*args, *kwargs.values()]), None)
            version = _Version(first) if isinstance(first, Tensor) else None
            self._open.append((name, self._calls[name], version))
            if isinstance(first, Tensor) and is_measurable(first):
                self._before(name, self._calls[name], first)

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    def _hook_after(self, name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not self._is_running:
                return
            opened, call, given = self._open.pop()
            while opened != name:  # a call that raised an error, which the model caught
                opened, call, given = self._open.pop()
            if not isinstance(output, Tensor) or not is_measurable(output):
                return
            reported = self._reported.get(id(output))
            is_repeat = all(each is not None and each.matches(output) for each in (reported, given))
            if is_repeat and not self._repeats:
                return
            self._reported[id(output)] = _Version(output)
            self._after(name, call, output)

        return module.register_forward_hook(hook)


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
