"""The dispatcher's operations inside of a call: what a function does that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from mpelu.graph.calls import Call, Ref, substitute
from mpelu.graph.ops import name_of

Operation = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an operation and returns its output."""


class Dispatched(TorchDispatchMode):
    """Sends each operation that reaches the dispatcher through a function.

    Args:
        operation: what to run it by.
        known: whether an operation is understood; others are taken apart where torch knows how.
    """

    def __init__(self, operation: Operation, known: Callable[[Call], bool] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operation, self._known = operation, known
        self._open: list[OpOverload] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        parts = decomposition_table.get(func)
        if (
            parts is not None
            and not func._schema.is_mutable
            and not self._knows(func, args, kwargs)
        ):
            with self:
                return parts(*args, **kwargs)
        return self._operation(func, args, kwargs)

    def _knows(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        fed = substitute((args, kwargs), Tensor, lambda _: Ref(0))
        return self._known is None or self._known(Call(name_of(func), func, *fed))
