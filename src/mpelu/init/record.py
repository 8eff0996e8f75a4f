"""The calls a model makes, from watching a real forward pass.

This works for models that torch.fx cannot trace, and knows every shape.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mpelu.init.graph import (
    INPUT,
    Call,
    Inputs,
    Ref,
    arguments,
    evaluating,
    is_leaf,
    plain_name,
    substitute,
)

Before = Callable[[Call], None]
After = Callable[[Call, Tensor, Callable[[], Tensor]], Tensor]
"""Takes a call, its output and a way to run it again; returns the output to go on with."""


class _Recorder(TorchFunctionMode):
    """Writes down the calls of leaf modules and, outside of these, of torch functions."""

    def __init__(self, before: Before | None, after: After | None) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._before, self._after = before, after
        self._inside_leaf = False
        # Weak, so that watching keeps no activation alive; the reference tells a tensor from a
        # later one with the same id.
        self._origin: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def _ref(self, tensor: Tensor) -> Tensor | Ref:
        known = self._origin.get(id(tensor))
        return Ref(known[1]) if known is not None and known[0]() is tensor else tensor

    def _remember(self, output: Any, index: int) -> None:
        def remember(tensor: Tensor) -> None:
            self._origin[id(tensor)] = weakref.ref(tensor), index

        substitute(output, Tensor, remember)

    def add(self, call: Call, output: Any) -> None:
        self._remember(output, len(self.calls))
        self.calls.append(call)

    def add_input(self, value: Any) -> None:
        def add(tensor: Tensor) -> None:
            self.add(Call(INPUT, None, (tensor,), {}, tensor.shape), tensor)

        substitute(value, Tensor, add)

    def run(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: Any, forward: Callable[[], Any]
    ) -> Any:
        fed_args, fed_kwargs = substitute((args, kwargs), Tensor, self._ref)
        call = Call(name, target, fed_args, fed_kwargs)
        if not call.fed_by:
            return forward()
        if self._before is not None:
            self._before(call)
        output = forward()
        if isinstance(output, Tensor):
            if self._after is not None:
                output = self._after(call, output, forward)
            call = Call(name, target, fed_args, fed_kwargs, output.shape)
        elif not isinstance(output, (tuple, list, dict)):
            return output
        self.add(call, output)
        return output

    def run_leaf(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, forward: Any
    ) -> Any:
        def inside() -> Any:
            self._inside_leaf = True
            try:
                return forward(*args, **kwargs)
            finally:
                self._inside_leaf = False

        return self.run(name, module, args, kwargs, inside)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside_leaf:
            return func(*args, **kwargs)
        return self.run(plain_name(func), func, args, kwargs, lambda: func(*args, **kwargs))


@contextlib.contextmanager
def _watched(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Sends every call of a leaf module through the recorder."""
    leaves = [(name, module) for name, module in model.named_modules() if is_leaf(module)]

    def replacement(name: str, module: nn.Module, forward: Any) -> Any:
        return lambda *args, **kwargs: recorder.run_leaf(name, module, args, kwargs, forward)

    own = [module.__dict__.get("forward") for _, module in leaves]
    try:
        for name, module in leaves:
            module.__dict__["forward"] = replacement(name, module, module.forward)
        yield
    finally:
        for (_, module), forward in zip(leaves, own, strict=True):
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


@contextlib.contextmanager
def _without_traces(model: nn.Module) -> Iterator[None]:
    """No gradients, and buffers restored."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.no_grad():
            yield
    finally:
        for buffer, saved in buffers:
            buffer.copy_(saved)


def _eagerly(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Has compiled parts of the model run as written."""
    is_compiled = any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    if is_compiled:
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


def record(
    model: nn.Module, inputs: Inputs, before: Before | None = None, after: After | None = None
) -> list[Call]:
    """The calls of the model on the inputs, from a forward pass.

    Args:
        model: not wrapped.
        inputs: one tensor, positional arguments or keyword arguments.
        before: called ahead of each call.
        after: called with each output that is a tensor, and may replace it.
    """
    args, kwargs = arguments(inputs)
    recorder = _Recorder(before, after)
    with (
        evaluating(model.modules()),
        _without_traces(model),
        _eagerly(model),
        _watched(model, recorder),
    ):
        recorder.add_input((args, kwargs))
        with recorder:
            model(*args, **kwargs)
    return recorder.calls


def variance_of(output: Tensor) -> float:
    """Over all elements."""
    return output.to(torch.promote_types(output.dtype, torch.float32)).var(correction=0).item()
