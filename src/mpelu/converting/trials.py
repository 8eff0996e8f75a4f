"""Trials: what a model returns as it is, and with its activations changed. None leaves a trace."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from mpelu.graph import Inputs, arguments, substitute, tensors_in, unchanged


@contextlib.contextmanager
def without_traces(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restores the modules, torch's random state and Python's."""
    state = random.getstate()
    try:
        with unchanged(modules):
            yield
    finally:
        random.setstate(state)


def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """What the model returns in evaluation, as far as it is real numbers."""
    found = _run(model, inputs, is_training=False, after=tensors_in)
    return [tensor for tensor in found if tensor.is_floating_point()]


def difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest difference, divided by the largest output."""
    finite = [each[each.isfinite()] for each in before]
    largest = max((each.abs().max().item() for each in finite if each.numel()), default=0.0)
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a.numel()]
    off = max((_distance(one, other).max().item() for one, other in pairs), default=0.0)
    return off / largest if largest else off


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Zero where both are the same infinity or NaN."""
    is_same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(is_same, 0.0, (one - other).abs())


def is_off(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether outputs that should be the same differ by more than rounding makes of them."""
    rounding = max((torch.finfo(each.dtype).eps for each in before), default=0.0)
    return not difference(before, after) <= rounding**0.5


def overwriting_needed(
    model: nn.Module, inputs: Inputs, activations: Sequence[nn.Module]
) -> set[int]:
    """The ids of the activations that have to overwrite their inputs.

    A model may go on with what an activation has overwritten, or with a view of it. To find out,
    the activations get copies for a pass in each mode: what reads the memory of an input
    afterwards, counts on finding the output there.

    Args:
        model: with activations that overwrite their inputs.
        inputs: of the model.
        activations: those that overwrite their inputs.
    """
    needed: set[int] = set()
    for is_training in (False, True) if activations else ():
        reads = _Reads()
        on_copies = {module: _on_copies(module, reads) for module in activations}
        try:
            with _acting(on_copies), reads:
                _run(model, inputs, is_training=is_training, after=partial(_kept, model))
        except Exception:  # whatever the model's code raises, as without targets in training
            pass
        needed |= reads.needed
    return needed


def _kept(model: nn.Module, output: Any) -> list[Tensor]:
    """What lasts longer than a forward pass."""
    return [*tensors_in(output), *model.buffers()]


class _Reads(TorchDispatchMode):
    """Finds the activations whose inputs are read once they should have been overwritten."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.needed: set[int] = set()
        # Weak, so that no input is kept alive; while a reference is, its number isn't given again.
        self._overwritten: dict[int, tuple[StorageWeakRef, set[int]]] = {}

    def add(self, module: nn.Module, tensor: Tensor) -> None:
        """Notes that the module should have overwritten the tensor by now."""
        memory: Any = StorageWeakRef(tensor.untyped_storage())
        self._overwritten.setdefault(memory.cdata, (memory, set()))[1].add(id(module))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in tensors_in((args, kwargs)):
            if tensor.layout is torch.strided:
                memory = tensor.untyped_storage()._cdata
                self.needed |= self._overwritten.get(memory, (None, set[int]()))[1]
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Rehearsal:
    """What a model returns with the values of other activations."""

    outputs: list[Tensor]
    errors: dict[int, float]
    """By the id of each activation: how far the other's values were, rounding aside."""


def rehearse(
    model: nn.Module, inputs: Inputs, pairs: Sequence[tuple[nn.Module, nn.Module]]
) -> Rehearsal:
    """Runs the model with the values of other activations in the place of its own.

    Args:
        model: with the activations that it had.
        inputs: of the model.
        pairs: each activation of the model, and the one whose values count.
    """
    measured: dict[int, float] = {}

    def replaced(old: nn.Module, new: nn.Module) -> Callable[..., Any]:
        forward = old.forward

        def values(*args: Any, **kwargs: Any) -> Any:
            (given,) = (*args, *kwargs.values())
            shown = new(given.clone())
            was = forward(*args, **kwargs)
            if was.numel():
                rounding = 8 * torch.finfo(was.dtype).eps * was.abs().max().item()
                off = (shown - was).abs().max().item() - rounding
                measured[id(old)] = max(measured.get(id(old), 0.0), off)
            return was.copy_(shown) if was.data_ptr() == given.data_ptr() else shown

        return values

    with _acting({old: replaced(old, new) for old, new in pairs}):
        return Rehearsal(outputs(model, inputs), measured)


def _run(
    model: nn.Module,
    inputs: Inputs,
    *,
    is_training: bool,
    after: Callable[[Any], Sequence[Tensor]],
) -> list[Tensor]:
    """Copies of what `after` takes from the model's output."""
    args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
    with without_traces(list(model.modules())), torch.no_grad():
        return [tensor.clone() for tensor in after(model.train(is_training)(*args, **kwargs))]


def _on_copies(module: nn.Module, reads: _Reads) -> Callable[..., Any]:
    forward = module.forward

    def on_copies(*args: Any, **kwargs: Any) -> Any:
        copied_args, copied_kwargs = substitute((args, kwargs), Tensor, torch.clone)
        output = forward(*copied_args, **copied_kwargs)
        for tensor in tensors_in((args, kwargs)):
            reads.add(module, tensor)
        return output

    return on_copies


@contextlib.contextmanager
def _acting(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Has modules run other code, between their hooks."""
    own = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, before in own.items():
            del module.__dict__["forward"]
            if before is not None:
                module.__dict__["forward"] = before
