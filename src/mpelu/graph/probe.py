"""What a module or function does, found out by running it on noise: always a copy of the module."""

from __future__ import annotations

import ctypes
import hashlib
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, fx, nn

from mpelu.gaussian import plain_tensors
from mpelu.graph.calls import Call, Ref, substitute
from mpelu.graph.state import copied
from mpelu.modules import MPELU

LEAVES: set[type] = {MPELU}
"""Classes whose modules are one node of the graph; those with a registered rule join them."""


def is_leaf(module: nn.Module) -> bool:
    """Whether the module is one node of the graph.

    Modules of torch.nn without submodules are, and so is every elementwise module. Attention runs
    as the linear layers it consists of.
    """
    if not LEAVES.isdisjoint(type(module).__mro__):
        return True
    if any(True for _ in module.children()) or isinstance(module, torch.jit.ScriptModule):
        return False
    return type(module).__module__.startswith("torch.nn") or elementwise(module) is not None


def is_opaque(module: nn.Module) -> bool:
    """Whether the module has nothing to set, and control flow that torch.fx can't follow."""
    if any(True for _ in module.children()) or any(True for _ in module.parameters()):
        return False
    try:
        fx.Tracer().trace(isolated(module))
    except Exception:  # whatever the module's own code raises on a symbolic tensor
        return True
    return False


def isolated(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode, without hooks."""
    isolate = copied(module)
    for part in isolate.modules():
        for hooks in (
            part._forward_hooks,
            part._forward_pre_hooks,
            part._backward_hooks,
            part._backward_pre_hooks,
        ):
            hooks.clear()
        part._compiled_call_impl = None
    return isolate.eval()


def elementwise(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """A copy of the module as a function of [points, channels], if each output depends on the
    input at its own place only.

    Returns:
        None if the module has submodules or weight matrices, can't be copied, or isn't elementwise.
    """
    if any(True for _ in module.children()) or any(
        sum(size > 1 for size in parameter.shape) > 1 for parameter in module.parameters()
    ):
        return None
    try:
        with plain_tensors():
            isolate = isolated(module).cpu()
    except Exception:  # modules that can't be copied raise anything
        return None
    channels = elementwise_channels(module)
    # Its parameters may be shaped for maps or for features alone.
    return elementwise_function(isolate, channels, 4) or elementwise_function(isolate, channels, 2)


def key_of_module(module: nn.Module) -> Hashable | None:
    """Equal for modules of one class with equal parameters, buffers and attributes.

    None if an attribute has no value that can be compared. Keeps neither module nor class alive.
    """
    own = {name: value for name, value in vars(module).items() if name not in _BOOKKEEPING}
    key = key_of_value(own)
    return None if key is None else (weakref.ref(type(module)), key)


_BOOKKEEPING = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
"""Attributes of every module that don't decide what it computes: hooks and the mode."""


def key_of_value(value: Any) -> Hashable | None:
    """Equal for equal values of one type; None for what can only be compared by identity."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes, torch.dtype, torch.device, torch.Size):
        return kind, value
    if kind is types.BuiltinFunctionType:
        is_bound = not isinstance(value.__self__, (type(None), type, types.ModuleType))
        return None if is_bound else (kind, value)
    if kind in (float, complex):
        return kind, repr(value)  # tells zeros apart, and not NaNs
    if kind in (nn.Parameter, Tensor):
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        if value.layout != torch.strided or value.is_meta or is_wrapped:
            return None
        held = value.detach().clone().cpu().resolve_conj().resolve_neg().contiguous()
        content = ctypes.string_at(held.data_ptr(), held.nbytes) if held.nbytes else b""
        return kind, value.dtype, value.shape, hashlib.sha256(content).digest()
    if kind in (tuple, list):
        items = tuple(map(key_of_value, value))
    elif kind in (dict, OrderedDict):
        items = tuple(map(key_of_value, (*value.keys(), *value.values())))
    elif kind in (set, frozenset):
        found = frozenset(map(key_of_value, value))
        return None if None in found else (kind, found)
    else:
        return None
    return None if None in items else (kind, items)


def elementwise_channels(module: nn.Module) -> int:
    """How many channels the parameters of an elementwise module are for; 1 if it has none."""
    return max((parameter.numel() for parameter in module.parameters()), default=1)


def elementwise_function(
    function: Callable[[Tensor], Tensor], channels: int = 1, dims: int = 4
) -> Callable[[Tensor], Tensor] | None:
    """The function as one of [points, channels], or None if it isn't elementwise.

    Args:
        function: takes and returns one tensor, with channels in dimension 1.
        channels: size of dimension 1 it expects; 1 if any will do.
        dims: number of dimensions it expects.
    """
    with plain_tensors():  # it may be asked for while a model runs on fake tensors
        return _elementwise_function(function, channels, dims)


def _elementwise_function(
    function: Callable[[Tensor], Tensor], channels: int, dims: int
) -> Callable[[Tensor], Tensor] | None:
    generator = torch.Generator().manual_seed(0)
    shape = (8, channels if channels > 1 else 3, *[3] * (dims - 2))[:dims]
    one, other = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    kept = torch.rand(shape, generator=generator, dtype=torch.float32) < 0.5
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            outputs = function(one.clone()), function(torch.where(kept, one, other))
            fewer = function(one[:5].clone())  # fails if it holds a tensor with a batch
    except Exception:  # whatever a function not made for such a tensor raises
        return None
    if any(not isinstance(out, Tensor) or out.shape != shape for out in outputs):
        return None
    if not isinstance(fewer, Tensor) or fewer.shape != one[:5].shape:
        return None
    if torch.equal(outputs[0], one):
        return identity
    if not torch.equal(outputs[0][kept], outputs[1][kept]):
        return None

    def on_channels(y: Tensor) -> Tensor:
        spread = y.reshape(*y.shape, *[1] * (dims - 2)) if dims > 2 else y
        with plain_tensors(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            return function(spread.clone()).detach().reshape(y.shape).to(torch.float64)

    return on_channels


def is_elementwise_call(call: Call) -> bool:
    """Whether a function of one tensor is elementwise in it, as called here."""
    function = call.target
    if not callable(function) or isinstance(function, nn.Module) or len(call.fed_by) != 1:
        return False

    def on_tensor(y: Tensor) -> Tensor:
        args, kwargs = substitute((call.args, call.kwargs), Ref, lambda _: y)
        output: Tensor = function(*args, **kwargs)
        return output

    dims = 4 if call.shape is None else max(2, len(call.shape))
    return elementwise_function(on_tensor, 1, dims) is not None


def identity(y: Tensor) -> Tensor:
    """What `elementwise` and `elementwise_function` return for whatever returns its input."""
    return y
