"""What a model does with its activations: the calls of each, and calls of functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

import mpelu
from mpelu.activations import ActivationRecord, find_function
from mpelu.converting.signs import Demand, demands, must_stay
from mpelu.graph import Call, Channels, Inputs, find_channels, record, trace


@dataclass(frozen=True)
class Site:
    """A call of an activation module."""

    shape: torch.Size | None
    channels: Channels | None


@dataclass(frozen=True)
class FunctionCall:
    """A call of an activation's function, such as F.relu."""

    record: ActivationRecord
    owner: nn.Module
    """The module whose code calls it."""
    method: str
    """The method of the owner's class that calls it."""
    depth: int
    """How many methods of the owner are running by then."""
    path: str
    """Of the owner."""
    name: str
    """Of the function."""
    place: str
    """File and line."""
    stays: str = ""
    """Why its output must not become negative, if it must not."""


@dataclass(frozen=True)
class Observation:
    """The activations of a model in one forward pass."""

    sites: dict[int, list[Site]]
    """By the id of the module."""
    functions: tuple[FunctionCall, ...]
    lowest: dict[int, float]
    """The lowest input of each module, by its id."""
    overwriting: frozenset[int] = frozenset()
    """Ids of modules that overwrote their input, or say so."""
    with_more: frozenset[int] = frozenset()
    """Ids of modules that were called with more than their input, or with it by another name."""
    stays: dict[int, str] = field(default_factory=dict)
    """By the id of each module whose output must not become negative: why."""


def observe(model: nn.Module, inputs: Inputs, activations: Sequence[nn.Module]) -> Observation:
    """Runs the model once on the inputs; leaves no trace."""
    paths = {id(module): path for path, module in model.named_modules()}
    watched = {id(module) for module in activations}
    functions: dict[str, FunctionCall] = {}
    noted: dict[int, str] = {}
    asked: list[Demand] = []
    lowest: dict[int, float] = {}
    overwriting = {id(module) for module in activations if getattr(module, "inplace", False)}
    with_more: set[int] = set()
    versions: dict[int, int] = {}

    def before(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        asked.extend(demands(call, args, kwargs, _place))
        found = None if isinstance(call.target, nn.Module) else find_function(call.target)
        if found is not None:
            # The call that is written down has the same arguments.
            noted[id(call.args)] = _note(functions, found, call, paths)

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = args[0] if args else kwargs.get("input")
        if len(args) + len(kwargs) != 1 or not isinstance(first, Tensor):
            with_more.add(id(module))
            return
        with torch._C.DisableTorchFunction():
            versions[id(module)] = _version(first)
            if first.is_floating_point() and first.numel():
                lowest[id(module)] = min(lowest.get(id(module), 0.0), first.min().item())

    def look_again(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: object
    ) -> None:
        first = args[0] if args else kwargs.get("input")
        with torch._C.DisableTorchFunction():
            if isinstance(first, Tensor) and _version(first) != versions.get(id(module)):
                overwriting.add(id(module))

    handles = [
        handle
        for module in activations
        for handle in (
            module.register_forward_pre_hook(look, with_kwargs=True),
            module.register_forward_hook(look_again, with_kwargs=True, prepend=True),
        )
    ]
    try:
        calls, _ = record(model, inputs, before)
    finally:
        for handle in handles:
            handle.remove()
    stays = must_stay(
        calls, asked, lambda call: id(call.target) in watched or id(call.args) in noted
    )
    for index, reason in stays.items():
        key = noted.get(id(calls[index].args), "")
        if key in functions:
            functions[key] = replace(functions[key], stays=reason)
    return Observation(
        _sites(calls, watched),
        tuple(functions.values()),
        lowest,
        frozenset(overwriting),
        frozenset(with_more),
        {id(calls[index].target): reason for index, reason in stays.items()},
    )


def observe_symbolically(model: nn.Module, activations: Sequence[nn.Module]) -> Observation | None:
    """Without a run; None for a model that torch.fx can't trace."""
    try:
        calls = trace(model)
    except Exception:  # whatever the model's code raises on a symbolic tensor
        return None
    watched = {id(module) for module in activations}
    asked = [each for call in calls for each in demands(call, (), {}, lambda: "the model")]
    stays = must_stay(calls, asked, lambda call: id(call.target) in watched)
    reasons = {id(calls[index].target): reason for index, reason in stays.items()}
    return Observation(_sites(calls, watched), (), {}, stays=reasons)


def _sites(calls: Sequence[Call], watched: set[int]) -> dict[int, list[Site]]:
    channels = find_channels(calls)
    sites: dict[int, list[Site]] = {}
    for index, call in enumerate(calls):
        if id(call.target) in watched:
            site = Site(call.shape, channels[index])
            sites.setdefault(id(call.target), []).append(site)
    return sites


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; a constant in inference mode, where nobody counts."""
    return -1 if tensor.is_inference() else tensor._version


def _note(
    functions: dict[str, FunctionCall], found: ActivationRecord, call: Call, paths: dict[int, str]
) -> str:
    """The key of the function among those that are called."""
    owner, methods, place = _caller(paths)
    if owner is None:
        return ""
    path = paths[id(owner)]
    name = getattr(call.target, "__name__", call.name)
    method = methods[0] if methods else "forward"
    key = f"{path} {place}"
    if key not in functions or functions[key].depth < len(methods):
        functions[key] = FunctionCall(found, owner, method, len(methods), path, name, place)
    return key


_OWN = str(Path(mpelu.__file__).parent)
_TORCH = str(Path(torch.__file__).parent)


def _caller(paths: dict[int, str]) -> tuple[nn.Module | None, list[str], str]:
    """The innermost module of the model whose code is running, its methods that are running from
    the innermost on, and the line that it is at."""
    owner: nn.Module | None = None
    methods: list[str] = []
    place = ""
    for frame in _frames():
        code = frame.f_code
        if code.co_filename in _PLUMBING:
            continue
        place = place or f"{code.co_filename}:{frame.f_lineno}"
        module = frame.f_locals.get(code.co_varnames[0] if code.co_argcount else "")
        own: Any = getattr(type(module), code.co_name, None)
        is_method = (
            getattr(inspect.unwrap(own), "__code__", None) is code
            and getattr(nn.Module, code.co_name, None) is not own
        )
        module = module if is_method else frame.f_locals.get("self")
        if owner is None and isinstance(module, nn.Module) and id(module) in paths:
            owner = module
        if owner is not None and module is owner and is_method:
            methods.append(code.co_name)
    return owner, methods, place


def _place() -> str:
    """The line outside of torch that is running."""
    outside = (each for each in _frames() if not each.f_code.co_filename.startswith(_TORCH))
    frame = next(outside)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _frames() -> Iterator[FrameType]:
    """What is running, from the innermost function on, without functions of mpelu."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN):
            yield frame
        frame = frame.f_back


_PLUMBING = {
    f"{_TORCH}/nn/functional.py",
    f"{_TORCH}/overrides.py",
    f"{_TORCH}/_tensor.py",
    f"{_TORCH}/utils/_contextlib.py",
}
