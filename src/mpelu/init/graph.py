"""The calls a model makes, in order, each with what it is fed by, from torch.fx."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mpelu.init.activations import describe_module
from mpelu.modules import MPELU


@dataclass(frozen=True)
class Ref:
    """Stands for what an earlier call returned."""

    index: int


@dataclass(frozen=True)
class Call:
    """A call of a leaf module or of a function."""

    name: str
    """Path of the module, or name of the function without underscores."""
    target: nn.Module | Callable[..., Any] | None
    """None for an input of the model."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: torch.Size | None = None
    """Of the output, where known and a single tensor."""

    @cached_property
    def fed_by(self) -> tuple[int, ...]:
        """Indices of the calls whose outputs this one takes, in order."""
        found: list[Ref] = []
        substitute(self.args, Ref, found.append)
        substitute(self.kwargs, Ref, found.append)
        return tuple(ref.index for ref in found)


INPUT = "input"

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one tensor, positional arguments or keyword arguments."""

_PLAIN_NAMES = {
    **{prefix + name: name for name in ("add", "mul") for prefix in "ir"},
    "concat": "cat",
    "concatenate": "cat",
    "isub": "sub",
    "subtract": "sub",
    "multiply": "mul",
    "truediv": "div",
    "itruediv": "div",
    "true_divide": "div",
}


def plain_name(function: Any) -> str:
    name = str(getattr(function, "__name__", function)).strip("_")
    return _PLAIN_NAMES.get(name, name)


def substitute(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The value, nested in tuples, lists and dicts, with every instance of a kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        changed = [substitute(item, kind, change) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    if isinstance(value, dict):
        return {key: substitute(item, kind, change) for key, item in value.items()}
    return value


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel or torch.compile."""
    inner: object = model
    while isinstance(inner, nn.Module):
        model = inner
        is_parallel = isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel))
        inner = getattr(model, "module" if is_parallel else "_orig_mod", None)
    return model


def is_leaf(module: nn.Module) -> bool:
    if isinstance(module, (MPELU, nn.MultiheadAttention)):
        return True
    if any(True for _ in module.children()):
        return False
    return type(module).__module__.startswith("torch.nn") or describe_module(module) is not None


def is_opaque(module: nn.Module) -> bool:
    """Whether the module has nothing to set, and control flow that keeps torch.fx out."""
    if any(True for _ in module.children()) or any(True for _ in module.parameters()):
        return False
    try:
        fx.Tracer().trace(module)
    except Exception:  # whatever the module's own code raises on a symbolic tensor
        return True
    return False


class _Tracer(fx.Tracer):
    """Keeps a list of calls where torch.fx would build a graph, at a quarter of the time."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        # Found out ahead: while a trace runs no other can.
        parts = list(model.modules())
        self._leaves = {part for part in parts if is_leaf(part) or is_opaque(part)}
        self.others = [part for part in parts if part not in self._leaves]

    def _add(self, name: str, target: Any, args: Any, kwargs: Any) -> fx.Proxy:
        args = substitute(args, fx.Proxy, _node)
        kwargs = substitute(kwargs, fx.Proxy, _node)
        self.calls.append(Call(name, target, args, kwargs))
        return fx.Proxy(Ref(len(self.calls) - 1), self)  # type: ignore[arg-type]

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if m in self._leaves:
            return self._add(self.path_of_module(m), m, args, kwargs)
        return forward(*args, **kwargs)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *_: object, **__: object
    ) -> fx.Proxy:
        if kind == "placeholder":
            return self._add(INPUT, None, (), {})
        function = _method(target) if kind == "call_method" else target
        return self._add(plain_name(target), function, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        return attr_val

    def create_arg(self, a: Any) -> Any:
        return a

    def create_node(self, *_: object, **__: object) -> Any:
        return None


def _node(proxy: fx.Proxy) -> Any:
    return proxy.node


def _method(name: str) -> Callable[..., Any]:
    return lambda value, *args, **kwargs: getattr(value, name)(*args, **kwargs)


@contextlib.contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Sets evaluation mode, but for batch norm that is trained, which uses batch statistics."""
    modes = [(module, module.training) for module in modules]
    try:
        for module, _ in modes:
            module.training = isinstance(module, _BatchNorm) and not is_frozen(module)
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


@collector_paused()
def trace(model: nn.Module) -> list[Call]:
    """The calls of the model, by symbolic tracing; raises what the model's code raises then."""
    tracer = _Tracer(model)
    with evaluating(tracer.others):
        tracer.trace(model)
    return tracer.calls


def is_frozen(module: nn.Module) -> bool:
    """Whether the module itself has parameters and none of them is to be trained."""
    parameters = list(module.parameters(recurse=False))
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as positional and keyword arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}
