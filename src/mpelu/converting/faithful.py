"""Whether a trace of a module says all that its code does."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.converting.trials import without_traces


@contextlib.contextmanager
def watched(owner: nn.Module) -> Iterator[list[str]]:
    """Puts back what the code inside changes, and says what that was once it has run.

    A trace has none of it: neither a counter, nor an attribute that is set, nor a number that is
    drawn while the trace runs.
    """
    modules = list(owner.modules())
    names = {id(module): f"{path}." if path else "" for path, module in owner.named_modules()}
    changed: list[str] = []
    with without_traces(modules):
        before = {id(module): _state(module) for module in modules}
        torch_state, python_state = _torch_state(), random.getstate()
        try:
            yield changed
        finally:
            for module in modules:
                old, new = before[id(module)], _state(module)
                names_of_it = sorted(key for key in old | new if old.get(key) != new.get(key))
                changed += [_said(names[id(module)], key) for key in names_of_it]
            if random.getstate() != python_state or _torch_state() != torch_state:
                changed.append("the state of a random generator")


def _state(module: nn.Module) -> dict[str, Any]:
    """What the attributes of a module are, in a form that tells whether they were changed."""
    own = {name: value for name, value in vars(module).items() if name not in _EVERY_MODULES}
    stored = {**own, **module._parameters, **module._buffers, **module._modules}
    return {name: _mark(value) for name, value in stored.items()}


_EVERY_MODULES = frozenset(vars(nn.Module()))


def _mark(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Same(value), -1 if value.is_inference() else value._version
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple, set):
        return [_mark(item) for item in value]
    if type(value) is dict:
        return [(_mark(key), _mark(item)) for key, item in value.items()]
    return _Same(value)


class _Same:
    """Equal if the object is the same one, which is kept so that no other gets its id."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _said(path: str, name: str) -> str:
    """An attribute by its name; those that torch.fx sets by what they stand for."""
    is_constant = name.startswith("_tensor_constant")
    return "a tensor that it makes" if is_constant else f"{path}{name}"


def _torch_state() -> list[list[int]]:
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [state.tolist() for state in (torch.get_rng_state(), *gpus)]
