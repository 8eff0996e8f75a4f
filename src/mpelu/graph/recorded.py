"""Finds the calls of a model by watching a forward pass.

This works for models that torch.fx can't trace, and records every shape. With fake tensors it needs
only shapes and computes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.nn.utils.parametrize import ParametrizationList
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from mpelu.graph.calls import INPUT, UNKNOWN, Call, Ref, name_of, substitute, tensors_in
from mpelu.graph.probe import elementwise, is_elementwise_call
from mpelu.graph.state import Inputs, arguments, evaluating, unchanged
from mpelu.graph.weights import Weights, place
from mpelu.modules import MPELU

Before = Callable[[Call, tuple[Any, ...], dict[str, Any]], None]
"""Takes a call and the arguments it is about to receive."""
After = Callable[[Call, Tensor, Callable[[], Tensor]], Tensor]
"""Takes a call, its output and a function that runs it again; returns the output to use."""
Known = Callable[[Call], bool]
"""Returns whether a call is understood as a whole. Other calls are looked into."""


LEAVES: set[type] = {MPELU}
"""Classes whose modules are recorded as one call; registering a rule for a class adds it."""


def is_leaf(module: nn.Module) -> bool:
    """Returns whether a run of the module is recorded as one call.

    Modules of torch.nn without submodules are leaves, and so is every elementwise module.
    """
    if not LEAVES.isdisjoint(type(module).__mro__):
        return True
    if any(True for _ in module.children()) or isinstance(module, torch.jit.ScriptModule):
        return False
    return type(module).__module__.startswith("torch.nn") or elementwise(module) is not None


def record(
    model: nn.Module,
    inputs: Inputs,
    before: Before | None = None,
    after: After | None = None,
    written: Collection[int] = (),
    *,
    weights: Weights | None = None,
    fake: FakeTensorMode | None = None,
    known: Known | None = None,
    finish: Callable[[Any], None] | None = None,
) -> tuple[list[Call], Weights]:
    """Returns the model's calls in a forward pass on the inputs, which leaves no trace.

    Args:
        model: model without a wrapper.
        inputs: one tensor, positional arguments or keyword arguments.
        before: function that is called before each call.
        after: function that is called with each output that is a tensor, and may replace it.
        written: ids of tensors that `before` and `after` change on purpose.
        weights: weights of the model, if the caller has them already.
        fake: mode that computes only shapes.
        known: whether a call is understood; a call that isn't is replaced by the operations that
            the dispatcher sees inside it. By default all calls are understood.
        finish: function that is called with the model's output. If given, autograd records a graph.
    """
    # Copies, because a model whose first layer works in place would overwrite the inputs.
    copy = torch.clone if fake is None else fake.from_tensor
    args, kwargs = substitute(arguments(inputs), Tensor, copy)
    weights = weights or Weights(model)
    recorder = _Recorder(weights, before, after, known)
    with (
        unchanged(list(model.modules()), written=written),
        evaluating(model.modules()),
        torch.set_grad_enabled(finish is not None),
        eagerly(model),
    ):
        recorder.add_constants(model.buffers())
        recorder.add_inputs((args, kwargs))
        with _watched(model, recorder), recorder, fake or contextlib.nullcontext():
            output = model(*args, **kwargs)
        if finish is not None:
            finish(output)
    return recorder.calls, weights


def record_shapes(
    model: nn.Module, inputs: Inputs, known: Known | None = None
) -> tuple[list[Call], Weights]:
    """Returns the model's calls for the shapes and types of the inputs; computes nothing.

    Works for models that torch.export can trace: control flow must not depend on values.
    """
    return record(model, inputs, fake=FakeTensorMode(allow_non_fake_inputs=True), known=known)


class _Recorder(TorchFunctionMode):
    """Records the calls of leaf modules and, outside of these, of torch functions.

    While it handles a call the mode is off, so that it records neither what happens inside the call
    nor what the caller's functions do.
    """

    def __init__(
        self, weights: Weights, before: Before | None, after: After | None, known: Known | None
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._weights = weights
        self._before, self._after, self._known = before, after, known
        self._leaves: dict[Any, tuple[str, Any, Callable[..., Any]]] = {}
        """Name, target and original forward of each leaf, by the forward that replaces it."""
        self._is_busy = False
        """Whether a call is being handled."""
        self._reals: dict[int, tuple[Tensor, Tensor]] = {}
        """Constants with values, by the id of the fake tensor that represents them."""
        self._places: dict[tuple[Any, ...], int] | None = None
        """Calls that tensors come from, by the tensors' places, while a call is looked into."""
        # Weak references, so that watching keeps no activation alive. They also tell a tensor from
        # a later one with the same id.
        self._origin: dict[int, tuple[weakref.ref[Tensor], int | None]] = {}

    def add_inputs(self, value: Any, name: str = INPUT) -> None:
        for tensor in tensors_in(value):
            self._add(Call(name, None, (tensor,), {}, shape=tensor.shape), tensor)

    def add_constants(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._remember(tensor, None)

    def leaf(self, name: str, target: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the forward of what is recorded as one call, such as a module of torch.nn."""

        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_busy or not has_torch_function((self,)):
                return forward(*args, **kwargs)
            return handle_torch_function(watched, (), *args, **kwargs)

        self._leaves[watched] = name, target, forward
        return watched

    def parametrization(self, module: ParametrizationList) -> Callable[[], Any]:
        """Wraps its forward as one function of its parameters, whatever runs inside."""
        forward = module.forward

        def compute(*_: Tensor) -> Any:
            return forward()

        watched = self.leaf("its parametrization", compute, compute)
        return lambda: watched(*reversed([*module.parameters()]))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name, target, forward = self._leaves.get(func) or (name_of(func), func, func)
        if isinstance(target, nn.Module):
            for own, _ in target.named_parameters(recurse=False):
                self._weights.used[f"{name}.{own}"] = type(target).__name__
        was_busy, self._is_busy = self._is_busy, True
        try:
            return self._run(name, target, args, kwargs, lambda: forward(*args, **kwargs))
        finally:
            self._is_busy = was_busy

    def _run(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: Any, forward: Callable[[], Any]
    ) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        if self._is_foreign(first) and _has_weight(target, args, kwargs):
            self.add_inputs(first, UNKNOWN)
        call = Call.of(name, target, args, kwargs, Tensor, self._ref)
        if not call.fed_by:
            output = forward()
            if isinstance(output, (Tensor, tuple, list)):
                self._remember(output, None)
                self._derive(name, target, args, kwargs, output)
                self._make_real(target, args, kwargs, output)
            return output
        if self._before is not None:
            self._before(call, args, kwargs)
        if self._places is None and self._known is not None and not self._known(call):
            return self._look_inside(call, args, kwargs, forward)
        return self._finish(call, forward(), args, forward)

    def _finish(self, call: Call, output: Any, args: tuple[Any, ...], forward: Any) -> Any:
        """Records a call once its output is available."""
        written = output
        if isinstance(output, Tensor):
            call.shape = output.shape
            if self._after is not None:
                written = output = self._after(call, output, forward)
        elif call.target is Tensor.__setitem__:  # the output is the tensor assigned to
            call.shape, written = args[0].shape, args[0]
        elif not isinstance(output, (tuple, list, dict)) and not tensors_in(output):
            return output
        self._note_use(call.name, tensors_in((call.args, call.kwargs)))
        self._add(call, written)
        return output

    def _look_inside(
        self, call: Call, args: tuple[Any, ...], kwargs: Any, forward: Callable[[], Any]
    ) -> Any:
        """Runs a call that isn't understood, and records the dispatcher's operations instead of it.

        It stays one call if it is elementwise, or if the operations don't lead to its output.
        """
        start = len(self.calls)
        refs = [(tensor, self._ref(tensor)) for tensor in tensors_in((args, kwargs))]
        self._places = {place(each): ref.index for each, ref in refs if isinstance(ref, Ref)}
        alive: list[Any] = []  # so that no place is taken twice

        def run(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
            output = self._run(name_of(func), func, args, kwargs, lambda: func(*args, **kwargs))
            alive.append(output)
            for tensor in tensors_in(output):
                ref = self._ref(tensor)
                if isinstance(ref, Ref) and self._places is not None:
                    self._places[place(tensor)] = ref.index
            return output

        try:
            with _Dispatched(run, self._known):
                output = forward()
            ends = [self._ref(tensor) for tensor in tensors_in(output)]
        finally:
            self._places = None
        if isinstance(output, Tensor):
            call.shape = output.shape
        leads = bool(ends) and all(isinstance(end, Ref) and end.index >= start for end in ends)
        if leads and len(self.calls) > start + 1 and not is_elementwise_call(call):
            for tensor, end in zip(tensors_in(output), ends, strict=True):
                assert isinstance(end, Ref)
                self._remember(tensor, end.index)
            return output
        del self.calls[start:]
        return self._finish(call, output, (), lambda: output)

    def _ref(self, tensor: Tensor) -> Tensor | Ref:
        """Returns the call a tensor comes from, or the tensor itself if it comes from none."""
        known = self._origin.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return self._real(tensor) if known[1] is None else Ref(known[1])
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # inside vmap
            return self._ref(torch._C._functorch.get_unwrapped(tensor))
        if self._places is not None and self._weights.name(tensor) is None:
            index = self._places.get(place(tensor))
            return tensor if index is None else Ref(index)
        return tensor

    def _add(self, call: Call, output: Any) -> None:
        self._remember(output, len(self.calls))
        self.calls.append(call)

    def _remember(self, output: Any, index: int | None) -> None:
        for tensor in tensors_in(output):
            self._origin[id(tensor)] = weakref.ref(tensor), index

    def _is_foreign(self, value: Any) -> bool:
        """Returns whether a value is a floating-point tensor that no watched function returned."""
        if not isinstance(value, Tensor):
            return False
        known = self._origin.get(id(value))
        if (known is not None and known[0]() is value) or not value.is_floating_point():
            return False
        return not isinstance(self._ref(value), Ref) and self._weights.name(value) is None

    def _note_use(self, name: str, tensors: list[Tensor]) -> list[Tensor]:
        """Notes which parameters a call uses, and returns those with two or more dimensions."""
        owned = [(tensor, self._weights.name(tensor)) for tensor in tensors]
        self._weights.used.update({owner: name for _, owner in owned if owner is not None})
        return [tensor for tensor, owner in owned if owner is not None and tensor.dim() > 1]

    def _derive(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> None:
        """Tracks tensors that are computed from parameters alone."""
        tensors = tensors_in((args, kwargs))
        matrices = self._note_use(name, tensors)
        if not matrices:
            return
        owner = self._weights.name(max(matrices, key=Tensor.numel))
        assert owner is not None
        # Looked up before the call, whose output may be one of them: in place, or unchanged.
        makers = {id(each): self._weights.maker(each) for each in tensors}

        def again() -> Any:
            now = substitute((args, kwargs), Tensor, lambda each: makers[id(each)]())
            return target(*now[0], **now[1])

        self._weights.derive(owner, output, again)

    def _make_real(self, target: Any, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        """Computes the values of a constant that so far is a fake tensor, so that they count."""
        fakes = [tensor for tensor in tensors_in(output) if isinstance(tensor, FakeTensor)]
        if not fakes:
            return
        args, kwargs = substitute((args, kwargs), FakeTensor, self._real)
        if any(isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs))):
            return
        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                reals = tensors_in(target(*args, **kwargs))
        except Exception:  # whatever a function raises when called outside its context
            return
        for fake, real in zip(fakes, reals, strict=False):
            # The fake tensor is kept alive, so that no other gets its id.
            self._reals[id(fake)] = fake, real
            self._weights.derive_like(fake, real)

    def _real(self, tensor: Tensor) -> Tensor:
        found = self._reals.get(id(tensor))
        return tensor if found is None else found[1]


class _Dispatched(TorchDispatchMode):
    """Records what the dispatcher runs inside a call that isn't understood.

    Args:
        run: function that runs an operation on its arguments and returns its output.
        known: whether an operation is understood; others are decomposed if torch knows how.
    """

    def __init__(self, run: Callable[..., Any], known: Known | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run, self._known = run, known

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        parts = decomposition_table.get(func)
        if parts is None or func._schema.is_mutable or self._knows(func, args, kwargs):
            return self._run(func, args, kwargs)
        with self:
            return parts(*args, **kwargs)

    def _knows(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        call = Call.of(name_of(func), func, args, kwargs, Tensor, lambda _: Ref(0))
        return self._known is None or self._known(call)


def _has_weight(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a call may be a layer: a module or function that takes a weight matrix."""
    if isinstance(target, nn.Module):
        return any(parameter.dim() > 1 for parameter in target.parameters(recurse=False))
    others = tensors_in((args[1:], kwargs))
    return any(tensor.dim() > 1 and tensor.requires_grad for tensor in others)


@contextlib.contextmanager
def _watched(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Routes every call of a leaf module through the recorder."""
    leaves: list[tuple[nn.Module, Any]] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        if type(module) is nn.MultiheadAttention:
            leaves.append((module, _attention_forward(module)))
        elif isinstance(module, ParametrizationList):
            leaves.append((module, recorder.parametrization(module)))
        elif is_leaf(module):
            leaves.append((module, recorder.leaf(name, module, module.forward)))
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


def eagerly(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Runs compiled parts of the model as written."""
    is_compiled = any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    if is_compiled:
        stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance
    return contextlib.nullcontext()


def _attention_forward(module: nn.MultiheadAttention) -> Callable[..., Any]:
    """Returns a forward of MultiheadAttention made of torch functions, which can be watched.

    It equals the module's own in evaluation mode: linear layers with the attention between them.
    Learned biases of keys and values, which hardly any model has, are left to the module.
    """
    own = module.forward

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if module.bias_k is not None or module.add_zero_attn or query.dim() != 3:
            return own(
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                need_weights=need_weights,
                attn_mask=attn_mask,
                average_attn_weights=average_attn_weights,
                is_causal=is_causal,
            )
        if not module.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        heads = module.num_heads
        queries, keys, values = (
            projected.unflatten(-1, (heads, -1)).transpose(1, 2)
            for projected in _projections(module, query, key, value)
        )
        mask = _mask(attn_mask, key_padding_mask, queries, heads)
        if need_weights:
            scores = queries @ keys.transpose(-2, -1) * module.head_dim**-0.5
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            mixed = weights @ values
            shown = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, mask)
            shown = None
        output = F.linear(
            mixed.transpose(1, 2).flatten(2), module.out_proj.weight, module.out_proj.bias
        )
        return output if module.batch_first else output.transpose(0, 1), shown

    return forward


def _projections(
    module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> list[Tensor]:
    if module.in_proj_weight is None:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = list(module.in_proj_weight.chunk(3))
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    inputs = (query, key, value)
    return [F.linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def _mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, queries: Tensor, heads: int
) -> Tensor | None:
    """Combines both masks into one to add to the scores, [batch, heads, queries, keys]."""

    def additive(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask.to(queries.dtype)
        return torch.zeros_like(mask, dtype=queries.dtype).masked_fill(mask, float("-inf"))

    total = None
    if attn_mask is not None:
        total = additive(attn_mask)
        if total.dim() == 3:
            total = total.unflatten(0, (-1, heads))
    if key_padding_mask is not None:
        padding = additive(key_padding_mask)[:, None, None, :]
        total = padding if total is None else total + padding
    return total
