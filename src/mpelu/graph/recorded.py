"""The calls of a model by watching a forward pass.

This works for models that torch.fx can't trace, and knows every shape. On fake tensors it needs
shapes alone, and computes nothing.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
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

Before = Callable[[Call, tuple[Any, ...], dict[str, Any]], None]
"""Takes a call and the arguments it is about to get."""
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
        self._derived: dict[int, tuple[Tensor, str, Callable[[], Any]]] = {}
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

    def key(self, tensor: Tensor) -> tuple[str, int, torch.Size] | None:
        """Tells a weight, or part of a packed one, from others; the same in every pass."""
        name = self.name(tensor)
        if name is None:
            return None
        is_part = id(tensor) not in self._names and isinstance(tensor._base, nn.Parameter)
        return name, int(tensor.storage_offset()) if is_part else 0, tensor.shape

    def is_computed(self, tensor: Tensor) -> bool:
        """Whether the tensor was computed from a parameter, rather than being one or part of it."""
        return id(tensor) in self._derived and not isinstance(tensor._base, nn.Parameter)

    def is_trained(self, tensor: Tensor) -> bool:
        """Whether the parameter that a tensor is, or comes from, is trained."""
        if id(tensor) in self._names:
            return tensor.requires_grad
        name = self.name(tensor)
        return name is not None and self._model.get_parameter(name).requires_grad

    def derive(self, name: str, output: Any, again: Callable[[], Any]) -> None:
        """Notes that an output was computed from a parameter, and how to compute it again."""
        for index, tensor in enumerate([output] if isinstance(output, Tensor) else output):
            if isinstance(tensor, Tensor) and id(tensor) not in self._names:
                part = again if isinstance(output, Tensor) else partial(_item, again, index)
                # Kept alive, so that no other tensor gets the same id.
                self._derived[id(tensor)] = tensor, name, part

    def again(self, tensor: Tensor) -> Tensor:
        """The tensor computed again from the parameters as they are now."""
        derived = self._derived.get(id(tensor))
        return tensor if derived is None else derived[2]()

    def exponent(self, tensor: Tensor) -> float:
        """The power of its parameter's scale that a computed weight follows.

        1 for a multiple of the parameter; 0 for a standardized or normalized weight, whose scale
        doesn't depend on that of the parameter.
        """
        name = self.name(tensor)
        if name is None or id(tensor) not in self._derived or _is_fake(tensor):
            return 1.0
        parameter = self._model.get_parameter(name)
        before = self.again(tensor).norm().item()
        parameter.data.mul_(2)
        try:
            after = self.again(tensor).norm().item()
        finally:
            parameter.data.div_(2)  # exact, since a power of two
        return math.log2(after / before) if before > 0 and after > 0 else 1.0

    def _scan(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._names.setdefault(id(parameter), (parameter, name))


def _item(again: Callable[[], Any], index: int) -> Any:
    return again()[index]


def _is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


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
        if not call.fed_by:
            output = forward()
            if isinstance(output, (Tensor, tuple, list)):
                self._remember(output, None)
                self._derive(name, target, args, kwargs, output)
            return output
        if self._before is not None:
            with self._unwatched():
                self._before(call, args, kwargs)
        output = forward()
        if isinstance(output, Tensor):
            with self._unwatched():
                call = Call(name, target, fed_args, fed_kwargs, output.shape)
                if self._after is not None:
                    output = self._after(call, output, forward)
        elif target is Tensor.__setitem__:  # the tensor assigned to is what comes out
            self.add(Call(name, target, fed_args, fed_kwargs, args[0].shape), args[0])
            return output
        elif not isinstance(output, (tuple, list, dict)) and not tensors_in(output):
            return output
        self._note_use(name, tensors_in((fed_args, fed_kwargs)))
        self.add(call, output)
        return output

    def _note_use(self, name: str, tensors: list[Tensor]) -> list[Tensor]:
        """Notes which parameters a call takes, and returns those with a matrix."""
        owned = [(tensor, self.weights.name(tensor)) for tensor in tensors]
        self.weights.used.update({owner: name for _, owner in owned if owner is not None})
        return [tensor for tensor, owner in owned if owner is not None and tensor.dim() > 1]

    def _derive(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> None:
        """Follows what is computed from parameters alone."""
        matrices = self._note_use(name, tensors_in((args, kwargs)))
        if not matrices:
            return
        owner = self.weights.name(max(matrices, key=Tensor.numel))
        assert owner is not None

        def again() -> Any:
            now = substitute((args, kwargs), Tensor, self.weights.again)
            return target(*now[0], **now[1])

        self.weights.derive(owner, output, again)

    @contextlib.contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Writes down nothing."""
        before = self._inside_leaf
        self._inside_leaf = True
        try:
            yield
        finally:
            self._inside_leaf = before

    def run_leaf(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, forward: Any
    ) -> Any:
        if self._inside_leaf:
            return forward(*args, **kwargs)

        def inside() -> Any:
            with self._unwatched():
                return forward(*args, **kwargs)

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
    *,
    weights: Weights | None = None,
    fake: FakeTensorMode | None = None,
    finish: Callable[[Any], None] | None = None,
) -> tuple[list[Call], Weights]:
    """The calls of the model on the inputs, from a forward pass that leaves no trace.

    Args:
        model: not wrapped.
        inputs: one tensor, positional arguments or keyword arguments.
        before: called ahead of each call.
        after: called with each output that is a tensor, and may replace it.
        written: ids of tensors that `before` and `after` change on purpose.
        weights: of the model, if the caller has them already.
        fake: to compute shapes alone.
        finish: called with the model's output, whose graph is then recorded for autograd.
    """
    # Copies, because a model whose first layer works in place would overwrite the inputs.
    copy = torch.clone if fake is None else fake.from_tensor
    args, kwargs = substitute(arguments(inputs), Tensor, copy)
    weights = weights or Weights(model)
    recorder = _Recorder(weights, before, after)
    with (
        unchanged(list(model.modules()), written=written),
        evaluating(model.modules()),
        torch.set_grad_enabled(finish is not None),
        _eagerly(model),
    ):
        recorder.add_constants(model.buffers())
        recorder.add_input((args, kwargs))
        with _watched(model, recorder), recorder, fake or contextlib.nullcontext():
            output = model(*args, **kwargs)
        if finish is not None:
            finish(output)
    return recorder.calls, weights


def record_shapes(model: nn.Module, inputs: Inputs) -> tuple[list[Call], Weights]:
    """The calls of the model on inputs of which only shapes and types count; nothing is computed.

    Works for what torch.export can trace: the flow of control must not depend on values.
    """
    return record(model, inputs, fake=FakeTensorMode(allow_non_fake_inputs=True))


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
        stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance
    return contextlib.nullcontext()
