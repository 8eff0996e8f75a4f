"""Finds what an elementwise module or function computes by running a copy of it on noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from mpelu.elementwise import (
    LINEAR,
    ElementwiseFunction,
    key_of_module,
    probed,
)
from mpelu.gaussian import plain_tensors
from mpelu.graph.calls import Call, Ref, substitute
from mpelu.graph.state import copied


def isolated(module: nn.Module) -> nn.Module:
    """Returns a copy of the module in evaluation mode, without hooks."""
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
    """Returns the function of a module whose outputs each depend on the input at the same place.

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
    except Exception:  # whatever a module that can't be copied raises
        return None
    name, key = type(module).__name__, key_of_module(module)
    channels = max((parameter.numel() for parameter in module.parameters()), default=1)
    # Its parameters may be shaped for maps or for feature vectors.
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
    """Does the same as `elementwise` for a function of one tensor.

    Args:
        function: function that takes and returns one tensor, with channels in dimension 1.
        name: name of the function in reports.
        channels: size of dimension 1 that the function expects; 1 if any size will do.
        dims: number of dimensions that the function expects.
        key: key that is equal for equal functions; None if there is none.
    """
    with plain_tensors():  # a model may be running on fake tensors
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
                fewer = function(one[:5].clone())  # fails if it holds a batched tensor
        except Exception:  # whatever a function raises that isn't made for such a tensor
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
    """Returns whether a function of one tensor, as it is called here, is elementwise."""
    function = call.target
    if not callable(function) or isinstance(function, nn.Module) or len(call.fed_by) != 1:
        return False

    def on_tensor(y: Tensor) -> Tensor:
        args, kwargs = substitute((call.args, call.kwargs), Ref, lambda _: y)
        output: Tensor = function(*args, **kwargs)
        return output

    dims = 4 if call.shape is None else max(2, len(call.shape))
    return elementwise_function(on_tensor, call.name, 1, dims) is not None
