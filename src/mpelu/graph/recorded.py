"""The calls of a model by watching a forward pass.

This works for models that torch.fx can't trace, and knows every shape. On fake tensors it needs
shapes alone, and computes nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from mpelu.graph.attention import attention_forward
from mpelu.graph.calls import (
    INPUT,
    Call,
    Inputs,
    Ref,
    arguments,
    evaluating,
    name_of,
    substitute,
    tensors_in,
)
from mpelu.graph.probe import is_leaf
from mpelu.graph.state import unchanged

Before = Callable[[Call], None]
After = Callable[[Call, Tensor, Callable[[], Tensor]], Tensor]
"""Takes a call, its output and a way to run it again; returns the output to go on with."""

UNKNOWN = "a tensor of unknown origin"
"""Name of the call that stands for a tensor made where torch functions can't be watched."""


class Weights:
    """Which parameter a tensor is, or was computed from by functions of parameters alone.

    Views of packed weights, weights under a parametrization and standardized weights are such
    tensors.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: dict[int, tuple[Tensor, str]] = {}
        self._derived: dict[int, tuple[Tensor, str]] = {}
        self.used: dict[str, str] = {}
        """The function that last took each parameter, by the parameter's path."""
        self._scan()

    def name(self, tensor: Tensor) -> str | None:
        """Path of the parameter, or None for any other tensor."""
        found = self._names.get(id(tensor)) or self._derived.get(id(tensor))
        if found is None and isinstance(tensor, nn.Parameter):
            self._scan()  # FSDP puts whole parameters in place of its shards during a pass
            found = self._names.get(id(tensor))
        return None if found is None else found[1]

    def derive(self, sources: list[Tensor], outputs: list[Tensor]) -> None:
        """Notes that the outputs were computed from the sources alone."""
        owners = [source for source in sources if source.dim() > 1 and self.name(source)]
        if owners:
            name = self.name(max(owners, key=Tensor.numel))
            assert name is not None
            for output in outputs:
                if id(output) not in self._names:
                    # Kept alive, so that no other tensor gets the same id.
                    self._derived[id(output)] = output, name

    def _scan(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._names.setdefault(id(parameter), (parameter, name))


class _Recorder(TorchFunctionMode):
    """Writes down the calls of leaf modules and, outside of these, of torch functions."""

    def __init__(self, weights: Weights, before: Before | None, after: After | None) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.weights = weights
        self._before, self._after = before, after
        self._inside_leaf = False
        # Weak, so that watching keeps no activation alive; the reference tells a tensor from a
        # later one with the same id.
        self._origin: dict[int, tuple[weakref.ref[Tensor], int | None]] = {}

    def _ref(self, tensor: Tensor) -> Tensor | Ref:
        """The call a tensor comes from, or the tensor itself if it comes from none."""
        known = self._origin.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return tensor if known[1] is None else Ref(known[1])
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # inside vmap
            return self._ref(torch._C._functorch.get_unwrapped(tensor))
        return tensor

    def _remember(self, output: Any, index: int | None) -> None:
        for tensor in tensors_in(output):
            self._origin[id(tensor)] = weakref.ref(tensor), index

    def _is_foreign(self, value: Any) -> bool:
        """Whether it is a tensor of numbers that no watched function returned."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return False
        known = self._origin.get(id(value))
        if known is not None and known[0]() is value:
            return False
        return not isinstance(self._ref(value), Ref) and self.weights.name(value) is None

    def add(self, call: Call, output: Any) -> None:
        self._remember(output, len(self.calls))
        self.calls.append(call)

    def add_input(self, value: Any, name: str = INPUT) -> None:
        for tensor in tensors_in(value):
            self.add(Call(name, None, (tensor,), {}, tensor.shape), tensor)

    def add_constants(self, tensors: Iterator[Tensor]) -> None:
        for tensor in tensors:
            self._remember(tensor, None)

    def run(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: Any, forward: Callable[[], Any]
    ) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        if self._is_foreign(first) and _has_weight(target, args, kwargs):
            self.add_input(first, UNKNOWN)
        fed_args, fed_kwargs = substitute((args, kwargs), Tensor, self._ref)
        call = Call(name, target, fed_args, fed_kwargs)
        sources = tensors_in((fed_args, fed_kwargs))
        for source in sources:
            owner = self.weights.name(source)
            if owner is not None:
                self.weights.used[owner] = name
        if not call.fed_by:
            output = forward()
            made = tensors_in(output) if isinstance(output, (Tensor, tuple, list)) else []
            self._remember(made, None)
            self.weights.derive(sources, made)
            return output
        if self._before is not None:
            self._before(call)
        output = forward()
        if isinstance(output, Tensor):
            if self._after is not None:
                output = self._after(call, output, forward)
            call = Call(name, target, fed_args, fed_kwargs, output.shape)
        elif not isinstance(output, (tuple, list, dict)) and not tensors_in(output):
            return output
        self.add(call, output)
        return output

    def run_leaf(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, forward: Any
    ) -> Any:
        if self._inside_leaf:
            return forward(*args, **kwargs)

        def inside() -> Any:
            self._inside_leaf = True
            try:
                return forward(*args, **kwargs)
            finally:
                self._inside_leaf = False

        for parameter_name, _ in module.named_parameters(recurse=False):
            self.weights.used[f"{name}.{parameter_name}"] = type(module).__name__
        return self.run(name, module, args, kwargs, inside)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside_leaf:
            return func(*args, **kwargs)
        return self.run(name_of(func), func, args, kwargs, lambda: func(*args, **kwargs))


def record(
    model: nn.Module,
    inputs: Inputs,
    before: Before | None = None,
    after: After | None = None,
    written: Collection[int] = (),
) -> tuple[list[Call], Weights]:
    """The calls of the model on the inputs, from a forward pass that leaves no trace.

    Args:
        model: not wrapped.
        inputs: one tensor, positional arguments or keyword arguments.
        before: called ahead of each call.
        after: called with each output that is a tensor, and may replace it.
        written: ids of tensors that `before` and `after` change on purpose.
    """
    # Copies, because a model whose first layer works in place would overwrite the inputs.
    args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
    weights = Weights(model)
    recorder = _Recorder(weights, before, after)
    with (
        unchanged(list(model.modules()), written=written),
        evaluating(model.modules()),
        torch.no_grad(),
        _eagerly(model),
        _watched(model, recorder),
    ):
        recorder.add_constants(model.buffers())
        recorder.add_input((args, kwargs))
        with recorder:
            model(*args, **kwargs)
    return recorder.calls, weights


def record_shapes(model: nn.Module, inputs: Inputs) -> tuple[list[Call], Weights]:
    """The calls of the model on inputs of which only shapes and types count; nothing is computed.

    Works for what torch.export can trace: the flow of control must not depend on values.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        return record(model, substitute(inputs, Tensor, fake.from_tensor))


def _has_weight(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call may be that of a layer: a module or function that takes a parameter."""
    if isinstance(target, nn.Module):
        return any(parameter.dim() > 1 for parameter in target.parameters(recurse=False))
    others = tensors_in((args[1:], kwargs))
    return any(tensor.dim() > 1 and tensor.requires_grad for tensor in others)


@contextlib.contextmanager
def _watched(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Sends every call of a leaf module through the recorder."""
    leaves: list[tuple[nn.Module, Any]] = []

    def replacement(name: str, module: nn.Module, forward: Any) -> Any:
        return lambda *args, **kwargs: recorder.run_leaf(name, module, args, kwargs, forward)

    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        if type(module) is nn.MultiheadAttention:
            leaves.append((module, attention_forward(module)))
        elif is_leaf(module):
            leaves.append((module, replacement(name, module, module.forward)))
    own = [module.__dict__.get("forward") for module, _ in leaves]
    try:
        for module, forward in leaves:
            module.__dict__["forward"] = forward
        yield
    finally:
        for (module, _), forward in zip(leaves, own, strict=True):
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


def _eagerly(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Has compiled parts of the model run as written."""
    is_compiled = any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    if is_compiled:
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()
