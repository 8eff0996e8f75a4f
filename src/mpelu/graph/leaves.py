"""Which modules are one call each, and what elementwise modules and functions compute.

Elementwise functions are found by running copies on noise. torch.nn.MultiheadAttention is no leaf:
it runs as the linear layers and the attention that it consists of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from mpelu.elementwise import (
    LINEAR,
    ElementwiseFunction,
    key_of_module,
    probed,
)
from mpelu.gaussian import plain_tensors
from mpelu.graph.calls import Call, Ref, substitute
from mpelu.graph.state import copied
from mpelu.modules import MPELU

LEAVES: set[type] = {MPELU}
"""Classes whose modules are one call; registering a rule for a class adds it."""


def is_leaf(module: nn.Module) -> bool:
    """Whether a run of the module is one call.

    Modules of torch.nn without submodules are leaves, and so is every elementwise module.
    """
    if not LEAVES.isdisjoint(type(module).__mro__):
        return True
    if any(True for _ in module.children()) or isinstance(module, torch.jit.ScriptModule):
        return False
    return type(module).__module__.startswith("torch.nn") or elementwise(module) is not None


def is_opaque(module: nn.Module) -> bool:
    """Whether the module has no parameters, and control flow that torch.fx can't follow."""
    if any(True for _ in module.children()) or any(True for _ in module.parameters()):
        return False
    try:
        fx.Tracer().trace(isolated(module))
    except Exception:  # whatever the module's own code raises on a symbolic tensor
        return True
    return False


def isolated(module: nn.Module) -> nn.Module:
    """A copy of the module in evaluation mode, without hooks."""
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


def elementwise(module: nn.Module) -> ElementwiseFunction | None:
    """The function of a module each of whose outputs depends on one input, at the same place.

    A copy of the module runs in float64. Neither the module nor the state of random number
    generators changes.

    Returns:
        The function, `LINEAR` if the module returns its input, or None if it isn't elementwise,
        has weight matrices, has no values (meta) or can't be copied.
    """
    if any(each.is_meta for each in (*module.parameters(), *module.buffers())) or any(
        sum(size > 1 for size in parameter.shape) > 1 for parameter in module.parameters()
    ):
        return None
    try:
        with plain_tensors():
            isolate = isolated(module).to("cpu", torch.float64).requires_grad_(False)
    except Exception:  # modules that can't be copied raise anything
        return None
    name, key = type(module).__name__, key_of_module(module)
    channels = max((parameter.numel() for parameter in module.parameters()), default=1)
    # Its parameters may be shaped for maps or for features alone.
    for dims in (4, 2):
        found = elementwise_function(isolate, name, channels, dims, key)
        if found is not None:
            return found
    return None


def elementwise_function(
    function: Callable[[Tensor], Tensor],
    name: str,
    channels: int = 1,
    dims: int = 4,
    key: Hashable = None,
) -> ElementwiseFunction | None:
    """The same for a function of one tensor.

    Args:
        function: function that takes and returns one tensor, with channels in dimension 1.
        name: name of the function in reports.
        channels: size of dimension 1 that the function expects; 1 if any size will do.
        dims: number of dimensions that the function expects.
        key: key that is equal for equal functions; None if there is none.
    """
    with plain_tensors():  # it may be asked for while a model runs on fake tensors
        generator = torch.Generator().manual_seed(0)
        shape = (8, channels if channels > 1 else 3, *[3] * (dims - 2))
        one, other = (
            torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)
        )
        kept = torch.rand(shape, generator=generator, dtype=torch.float32) < 0.5
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = function(one.clone()), function(torch.where(kept, one, other))
                fewer = function(one[:5].clone())  # fails if it holds a tensor with a batch
        except Exception:  # whatever a function that isn't made for such a tensor raises
            return None
        if any(not isinstance(out, Tensor) or out.shape != shape for out in outputs):
            return None
        if not isinstance(fewer, Tensor) or fewer.shape != one[:5].shape:
            return None
        if torch.equal(outputs[0], one):
            return LINEAR
        if not torch.equal(outputs[0][kept], outputs[1][kept]):
            return None

        def apply(y: Tensor) -> Tensor:
            spread = y.reshape(*y.shape, *[1] * (dims - 2))
            with plain_tensors(), torch.random.fork_rng(devices=[]):
                # A copy: the function may work in place.
                return function(spread.clone()).reshape(y.shape).to(torch.float64)

        return probed(name, apply, channels, key)


def is_elementwise_call(call: Call) -> bool:
    """Whether a function of one tensor is elementwise in it, as it is called here."""
    function = call.target
    if not callable(function) or isinstance(function, nn.Module) or len(call.fed_by) != 1:
        return False

    def on_tensor(y: Tensor) -> Tensor:
        args, kwargs = substitute((call.args, call.kwargs), Ref, lambda _: y)
        output: Tensor = function(*args, **kwargs)
        return output

    dims = 4 if call.shape is None else max(2, len(call.shape))
    return elementwise_function(on_tensor, call.name, 1, dims) is not None


def attention_forward(module: nn.MultiheadAttention) -> Callable[..., Any]:
    """A forward of MultiheadAttention in torch functions, which can be watched.

    It equals the module's own in evaluation mode: linear layers, and the attention between them.
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
    """Both masks as one that is added to the scores, shape [batch, heads, queries, keys]."""

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
