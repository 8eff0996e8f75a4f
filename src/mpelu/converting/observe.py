"""What a model does with its activations, and which activation functions its code calls."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import mpelu
from mpelu.activations import ActivationRecord, find_function
from mpelu.converting.signs import Demand, demands, must_stay
from mpelu.graph import (
    Call,
    Channels,
    Inputs,
    arguments,
    find_channels,
    input_error,
    record,
    substitute,
    tensors_in,
    trace,
    unchanged,
)


@dataclass(frozen=True)
class Site:
    """A call of an activation module."""

    shape: torch.Size | None
    channels: Channels | None


@dataclass
class Seen:
    """What is known about an activation module."""

    sites: list[Site] | None = None
    """Its calls; None if they are unknown."""
    overwrites: bool = False
    """Whether it overwrites its input."""
    in_place: bool = False
    """Whether it does so and the model relies on that, or may rely on it."""
    takes_more: bool = False
    """Whether it is called with more than its input, or with its input under another name."""
    stays: str = ""
    """Why its output must not become negative; empty if it may."""
    _version: int | None = None

    def before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook that runs ahead of its forward."""
        first = args[0] if args else kwargs.get("input")
        if len(args) + len(kwargs) != 1 or not isinstance(first, Tensor):
            self.takes_more = True
            return
        with torch._C.DisableTorchFunction():
            self._version = _version(first)

    def after(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], __: Any) -> None:
        """Hook that runs behind its forward."""
        first = args[0] if args else kwargs.get("input")
        with torch._C.DisableTorchFunction():
            if isinstance(first, Tensor) and _version(first) != self._version:
                self.overwrites = True


@dataclass
class FunctionCall:
    """A line of code that calls an activation's function, such as F.relu."""

    record: ActivationRecord
    name: str
    """Name of the function."""
    owner: nn.Module
    """Module whose code calls it."""
    path: str
    """Path of the owner."""
    methods: list[str]
    """Methods of the owner that are running, the innermost first."""
    place: str
    """File and line."""
    stays: str = ""
    """Why its output must not become negative; empty if it may."""

    @property
    def method(self) -> str:
        return self.methods[0] if self.methods else "forward"


@dataclass(frozen=True)
class Observation:
    """A model's activation modules, by id, and its calls of activation functions."""

    modules: dict[int, Seen]
    functions: list[FunctionCall]


def observe(
    model: nn.Module,
    inputs: Inputs | None,
    activations: Sequence[nn.Module] = (),
    left: Collection[int] = (),
) -> Observation:
    """Watches the activations in one forward pass, or in a symbolic trace if there are no inputs.

    The model isn't changed. If torch.fx can't trace it, nothing is known about the calls.

    Args:
        model: model to run.
        inputs: example inputs, or None.
        activations: modules to watch.
        left: ids of those that won't be swapped.
    """
    seen = {
        id(module): Seen(overwrites=bool(getattr(module, "inplace", False)))
        for module in activations
    }
    if inputs is not None:
        with _input_errors(inputs):
            functions = _recorded(model, inputs, activations, seen)
    else:
        functions = []
        _traced(model, seen)
    overwriting = [
        module
        for module in activations
        if (one := seen[id(module)]).overwrites
        and not (one.takes_more or one.stays or id(module) in left)
    ]
    for module in overwriting if inputs is None else _overwritten(model, inputs, overwriting):
        seen[id(module)].in_place = True
    return Observation(seen, functions)


def _traced(model: nn.Module, seen: dict[int, Seen]) -> None:
    """Fills in what a symbolic trace shows."""
    try:
        calls = trace(model)
    except Exception:  # whatever the model's code raises on a symbolic tensor
        return
    asked = [each for call in calls for each in demands(call, (), {}, lambda: "the model")]
    stays = must_stay(calls, asked, lambda call: id(call.target) in seen)
    for index, why in stays.items():
        seen[id(calls[index].target)].stays = why
    _add_sites(seen, calls)


def _recorded(
    model: nn.Module, inputs: Inputs, activations: Sequence[nn.Module], seen: dict[int, Seen]
) -> list[FunctionCall]:
    """Fills in what a forward pass shows; returns the calls of functions."""
    paths = {id(module): path for path, module in model.named_modules()}
    functions: dict[str, FunctionCall] = {}
    keys: dict[int, tuple[Call, str]] = {}  # which keeps the calls, so that their ids stay theirs
    asked: list[Demand] = []

    def before(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        asked.extend(demands(call, args, kwargs, _place))
        found = None if isinstance(call.target, nn.Module) else find_function(call.target)
        if found is None:
            return
        owner, methods, place = _caller(paths)
        path = "" if owner is None else paths[id(owner)]
        key = f"{path} {place}"
        keys[id(call)] = call, key
        if owner is not None and (
            key not in functions or len(functions[key].methods) < len(methods)
        ):
            name = getattr(call.target, "__name__", call.name)
            functions[key] = FunctionCall(found, name, owner, path, methods, place)

    handles = []
    for module in activations:
        hooks = seen[id(module)]
        handles += [
            module.register_forward_pre_hook(hooks.before, with_kwargs=True),
            module.register_forward_hook(hooks.after, with_kwargs=True, prepend=True),
        ]
    try:
        calls, _ = record(model, inputs, before)
    finally:
        for handle in handles:
            handle.remove()
    stays = must_stay(calls, asked, lambda call: id(call.target) in seen or id(call) in keys)
    for index, why in stays.items():
        call = calls[index]
        found = seen.get(id(call.target)) or functions.get(keys.get(id(call), (call, ""))[1])
        if found is not None:
            found.stays = why
    _add_sites(seen, calls)
    return list(functions.values())


def _add_sites(seen: dict[int, Seen], calls: Sequence[Call]) -> None:
    for each in seen.values():
        each.sites = []
    for call, channels in zip(calls, find_channels(calls), strict=True):
        found = seen.get(id(call.target))
        if found is not None and found.sites is not None:
            found.sites.append(Site(call.shape, channels))


def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Copies of the model's floating-point outputs in evaluation mode."""
    args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
    with _input_errors(inputs), unchanged(list(model.modules())), torch.no_grad():
        found = tensors_in(model.eval()(*args, **kwargs))
        return [tensor.clone() for tensor in found if tensor.is_floating_point()]


@contextlib.contextmanager
def _input_errors(inputs: Inputs) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the model's code raises
        raise input_error("convert", inputs, error) from error


def _overwritten(
    model: nn.Module, inputs: Inputs, activations: Sequence[nn.Module]
) -> list[nn.Module]:
    """Finds the activations whose overwritten inputs the model reads later.

    A model may call `self.relu(x)` and go on with x, or with a view of it. To find out, the
    activations work on copies of their inputs in a pass for each mode: whatever reads the memory of
    an input after that relies on finding the output there. The other MPELUs aren't in place, since
    in place is slower wherever backward needs the input.

    Args:
        model: model to run.
        inputs: example inputs.
        activations: modules that overwrite their inputs.
    """
    reads = _Reads()
    for is_training in (False, True) if activations else ():
        args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
        with unchanged(list(model.modules())), torch.no_grad():  # which removes the hooks, too
            for module in activations:
                module.register_forward_pre_hook(reads.give_copies, with_kwargs=True)
            try:
                with reads:
                    output = model.train(is_training)(*args, **kwargs)
                    for lasting in (*tensors_in(output), *model.buffers()):
                        lasting.clone()
            except Exception:  # whatever the model's code raises, as without targets in training
                pass
    return [module for module in activations if id(module) in reads.needed]


class _Reads(TorchDispatchMode):
    """Finds the activations whose inputs are read after they should have been overwritten."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.needed: set[int] = set()
        # Weak, so that no input is kept alive; while there is a reference, its id isn't reused.
        self._overwritten: dict[int, tuple[StorageWeakRef, set[int]]] = {}

    def give_copies(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hook that has the module work on copies, and notes what it would have overwritten."""
        copies = substitute((args, kwargs), Tensor, torch.clone)
        for tensor in tensors_in((args, kwargs)):
            memory: Any = StorageWeakRef(tensor.untyped_storage())
            self._overwritten.setdefault(memory.cdata, (memory, set()))[1].add(id(module))
        return copies

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in tensors_in((args, kwargs)):
            if tensor.layout is torch.strided:
                memory = tensor.untyped_storage()._cdata
                self.needed |= self._overwritten.get(memory, (None, set[int]()))[1]
        return func(*args, **(kwargs or {}))


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; inference tensors don't count that."""
    return -1 if tensor.is_inference() else tensor._version


_OWN = str(Path(mpelu.__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_PLUMBING = {
    f"{_TORCH}/nn/functional.py",
    f"{_TORCH}/overrides.py",
    f"{_TORCH}/_tensor.py",
    f"{_TORCH}/utils/_contextlib.py",
}


def _caller(paths: dict[int, str]) -> tuple[nn.Module | None, list[str], str]:
    """Finds whose code is running.

    Returns:
        The innermost module of the model, its methods that are running (the innermost first), and
        file and line.
    """
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
    """File and line of the running code outside of torch."""
    outside = (each for each in _frames() if not each.f_code.co_filename.startswith(_TORCH))
    frame = next(outside)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _frames() -> Iterator[FrameType]:
    """The running functions outside of mpelu, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN):
            yield frame
        frame = frame.f_back
