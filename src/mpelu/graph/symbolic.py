"""Finds the calls of a model by symbolic tracing with torch.fx; no layer is run."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mpelu.graph.calls import INPUT, Call, Ref, name_of, tensors_in
from mpelu.graph.probe import isolated
from mpelu.graph.recorded import is_leaf
from mpelu.graph.state import collector_paused, evaluating, hooks_restored, unchanged


@collector_paused()
def trace(model: nn.Module) -> list[Call]:
    """Returns the calls of the model; raises what the model's code raises on symbolic tensors."""
    try:
        return _traced(model, parameters_as_proxies=False)
    except Exception:  # the second attempt raises the actual error
        return _traced(model, parameters_as_proxies=True)


def _traced(model: nn.Module, parameters_as_proxies: bool) -> list[Call]:
    tracer = _Tracer(model, parameters_as_proxies)
    # The code of torch's own containers stores nothing.
    own = [part for part in tracer.others if not type(part).__module__.startswith("torch.nn")]
    parts = list(model.modules())
    with evaluating(parts), hooks_restored(parts), unchanged(own, values=False), _Unwritten():
        tracer.trace(model)
    return tracer.calls


class _Tracer(fx.Tracer):
    """Keeps a list of calls where torch.fx would build a graph, in a quarter of the time."""

    def __init__(self, model: nn.Module, parameters_as_proxies: bool) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._parameters_as_proxies = parameters_as_proxies
        # Decided in advance, because is_opaque traces too, and one trace can't run inside another.
        parts = list(model.modules())
        self._leaves = {
            part
            for part in parts
            if is_leaf(part) or is_opaque(part) or isinstance(part, nn.MultiheadAttention)
        }
        self.others = [part for part in parts if part not in self._leaves]

    def _add(self, name: str, target: Any, args: Any, kwargs: Any) -> fx.Proxy:
        self.calls.append(Call.of(name, target, args, kwargs, fx.Proxy, attrgetter("node")))
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
        function = getattr(Tensor, target, None) if kind == "call_method" else target
        return self._add(name_of(target), function, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        # Needed where a parameter's method takes symbolic sizes, as in
        # self.token.expand(x.size(0), -1).
        if self._parameters_as_proxies and isinstance(attr_val, Tensor):
            return fx.Proxy(attr_val, self)  # type: ignore[arg-type]
        return attr_val

    def create_arg(self, a: Any) -> Any:
        return a

    def create_node(self, *_: object, **__: object) -> Any:
        return None


def is_opaque(module: nn.Module) -> bool:
    """Returns whether a module without parameters has control flow that torch.fx can't follow."""
    if any(True for _ in module.children()) or any(True for _ in module.parameters()):
        return False
    try:
        fx.Tracer().trace(isolated(module))
    except Exception:  # whatever the module's own code raises on a symbolic tensor
        return True
    return False


class _Unwritten(TorchDispatchMode):
    """Restores the tensors that operations write to, such as a counter of batches.

    A trace runs the operations that depend on no input. Only tensors they write to are copied.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in tensors_in((args, kwargs)):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._kept:
                    self._kept[storage._cdata] = storage, storage.clone()
        return func(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for storage, before in self._kept.values():
            storage.copy_(before)
