"""The calls a model makes, in order, each with what it is fed by, from torch.fx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

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


def refs(call: Call) -> list[int]:
    """Indices of the calls this one is fed by, in order."""
    found: list[int] = []
    substitute((call.args, call.kwargs), Ref, lambda ref: found.append(ref.index))
    return found


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


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


def trace(model: nn.Module) -> list[Call]:
    """The calls of the model, by symbolic tracing; raises what torch.fx raises."""
    modules = dict(model.named_modules(remove_duplicate=False))
    calls: list[Call] = []
    position: dict[fx.Node, Any] = {}
    for node in _Tracer().trace(model).nodes:
        args, kwargs = substitute((node.args, node.kwargs), fx.Node, position.__getitem__)
        target: Any = node.target
        if node.op == "get_attr":
            position[node] = _attribute(model, target)
            continue
        if node.op == "output":
            continue
        if node.op == "placeholder":
            call = Call(INPUT, None, (), {})
        elif node.op == "call_module":
            call = Call(target, modules[target], args, kwargs)
        elif node.op == "call_method":
            call = Call(plain_name(target), _method(target), args, kwargs)
        else:
            call = Call(plain_name(target), target, args, kwargs)
        position[node] = Ref(len(calls))
        calls.append(call)
    return calls


def _attribute(model: nn.Module, path: str) -> Any:
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _method(name: str) -> Callable[..., Any]:
    return lambda value, *args, **kwargs: getattr(value, name)(*args, **kwargs)


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
