"""The public function, and the operator `mpelu::mpelu` with its derivative."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.overrides import handle_torch_function, has_torch_function_variadic

from mpelu.kernels import eager, registry
from mpelu.kernels.eager import MIN_BETA, Kept
from mpelu.kernels.layout import as_dense

__all__ = ["MIN_BETA", "mpelu"]


def __dir__() -> list[str]:
    return __all__


def mpelu(
    input: Tensor,
    alpha: Tensor | float | None = None,
    beta: Tensor | float | None = None,
    inplace: bool = False,
    dim: int = 1,
    *,
    slope: Tensor | float | None = None,
    rate: Tensor | float | None = None,
) -> Tensor:
    """Applies the multiple parametric exponential linear unit.

    f(y) = y for y > 0 and alpha (e^(beta y) - 1) otherwise, with one alpha and beta for the whole
    input or one for each channel. The same function has other coordinates: its slope at zero,
    alpha beta, and the rate, beta. With them f(y) = slope (e^(rate y) - 1) / rate for y <= 0, and
    slope y where the rate is 0. docs/semantics.md describes special values and derivatives.

    Args:
        input: floating-point tensor of any shape and strides.
        alpha: any number, or a tensor of shape [1] or [channels].
        beta: like alpha. Values below `MIN_BETA` (1e-6) are treated as `MIN_BETA`; gradients reach
            them only if a gradient step would raise them.
        inplace: overwrite the input and return it.
        dim: channel dimension; -1 for tokens of shape [batch, length, channels].
        slope: with rate, in place of alpha and beta; like alpha.
        rate: like slope. Values below 0 are treated as 0, and gradients as beta's.

    Returns:
        A tensor with the shape, dtype and memory format of the input. Half precision is
        computed in float32.

    Example:
        >>> mpelu.mpelu(torch.tensor([-1.0, 2.0]), 1.0, 1.0)
        tensor([-0.6321,  2.0000])
        >>> mpelu.mpelu(torch.tensor([-1.0, 2.0]), slope=0.25, rate=0.0)
        tensor([-0.2500,  2.0000])
    """
    if has_torch_function_variadic(input, alpha, beta, slope, rate):
        relevant = (input, alpha, beta, slope, rate)
        options: dict[str, Any] = {"inplace": inplace, "dim": dim}
        if slope is None and rate is None:
            return handle_torch_function(mpelu, relevant, input, alpha, beta, **options)
        return handle_torch_function(mpelu, relevant, input, slope=slope, rate=rate, **options)
    by_slope = slope is not None
    first, second = (slope, rate) if by_slope else (alpha, beta)
    if first is None or second is None or (by_slope and not (alpha is None and beta is None)):
        raise TypeError("mpelu: expected either alpha and beta or slope and rate")
    if registry.route(input, first, second) == "direct" and not inplace:
        return _run(input, first, second, dim, by_slope)
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        with warnings.catch_warnings():  # about the number of channels, which is a constant
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            return _run_otherwise(input, first, second, inplace, dim, by_slope)
    return _run_otherwise(input, first, second, inplace, dim, by_slope)


def _run_otherwise(
    input: Tensor,
    first: Tensor | float,
    second: Tensor | float,
    inplace: bool,
    dim: int,
    by_slope: bool,
) -> Tensor:
    """Handles all but the usual case: compilers, transforms, numbers as parameters, in-place."""
    first, second = _tensors(input, first, second)
    eager.check(input, first, second, dim, by_slope)
    route = registry.route(input, first, second)
    if route == "direct":
        return (_run_in_place if inplace else _run)(input, first, second, dim, by_slope)
    run = _compiled if route == "operator" else eager.forward
    return (
        input.copy_(run(input.clone(), first, second, dim, by_slope))
        if inplace
        else run(input, first, second, dim, by_slope)
    )


def _tensors(input: Tensor, first: Tensor | float, second: Tensor | float) -> tuple[Tensor, Tensor]:
    """Returns the parameters as tensors; a number takes the shape of the other parameter."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first, second
    like = first if isinstance(first, Tensor) else second
    if isinstance(like, Tensor):
        shape, dtype = like.shape, like.dtype
    else:
        shape, dtype = torch.Size([1]), eager.compute_dtype(input.dtype)

    def tensor(value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return torch.full(shape, value, dtype=dtype, device=input.device)

    return tensor(first), tensor(second)


# --- Plain eager tensors: no dispatcher in between ---------------------------------------------


def _run(input: Tensor, first: Any, second: Any, dim: int, by_slope: bool) -> Tensor:
    if is_grad_enabled() and (input.requires_grad or first.requires_grad or second.requires_grad):
        return _apply(input, first, second, dim, by_slope)
    return _forward(input, first, second, dim, by_slope, False)[0]


def _forward(
    input: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    by_slope: bool,
    is_differentiated: bool = True,
    inplace: bool = False,
) -> tuple[Tensor, Kept]:
    """Returns the output and what backward needs."""
    kernel = registry.find(input)
    if kernel is not None:
        result = kernel.forward(input, first, second, dim, by_slope, is_differentiated, inplace)
        if result is not None:
            return result
    eager.check(input, first, second, dim, by_slope)
    eager.check_memory(input, first, second)
    kept = is_differentiated and eager.keep(input, first, second, by_slope)
    output = eager.forward(input, first, second, dim, by_slope)
    return input.copy_(output) if inplace else output, kept


def _backward(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    kernel = registry.find(saved)
    if kernel is not None:
        grads = kernel.backward(grad, saved, first, second, dim, kept, by_slope)
        if grads is not None:
            return grads
    return _formula_backward(grad, saved, first, second, dim, kept, by_slope)


def _formula_backward(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if type(saved) in (Tensor, torch.nn.Parameter):  # other types may have symbolic sizes
        eager.check_memory(grad, saved, first, second)
    return eager.backward(grad, saved, first, second, dim, kept, by_slope)


class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, first: Tensor, second: Tensor, dim: int, by_slope: bool
    ) -> Tensor:
        output, kept = _forward(input, first, second, dim, by_slope)
        _save(ctx, output if kept is not False else input, first, second, dim, kept, by_slope)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, first, second, *bits = ctx.saved_tensors
        dim, kept, by_slope, strides = ctx.options
        if bits:
            kept = bits[0]
            if saved.stride() != strides:  # what hooks keep may have another order than the bits
                saved = saved.new_empty_strided(saved.shape, strides).copy_(saved)
        # With create_graph the derivative must itself be differentiable: the saved tensor is part
        # of the graph, so plain torch operations on it give correct second derivatives.
        run: Any = _formula_backward
        if not is_grad_enabled():
            route = registry.route(saved, grad, first)
            if route == "direct":
                run = _backward
            elif route == "operator":
                run = _compiled_backward
        return *run(grad, saved, first, second, dim, kept, by_slope), None, None


def _save(
    ctx: Any,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool,
) -> None:
    if isinstance(kept, Tensor):
        ctx.options = dim, True, by_slope, saved.stride()
        ctx.save_for_backward(saved, first, second, kept)
    else:
        ctx.options = dim, kept, by_slope, None
        ctx.save_for_backward(saved, first, second)


class _DirectInPlace(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, first: Tensor, second: Tensor, dim: int, by_slope: bool
    ) -> Tensor:
        _, kept = _forward(input, first, second, dim, by_slope, inplace=True)
        ctx.mark_dirty(input)
        _save(ctx, input, first, second, dim, kept, by_slope)
        return input

    backward = _Direct.backward


_Apply = Callable[[Tensor, Tensor, Tensor, int, bool], Tensor]
# Function.apply checks for transforms again, which takes a microsecond; `route` has checked.
_apply: _Apply = super(torch.autograd.Function, _Direct).apply
_apply_in_place: _Apply = super(torch.autograd.Function, _DirectInPlace).apply


def _run_in_place(input: Tensor, first: Tensor, second: Tensor, dim: int, by_slope: bool) -> Tensor:
    if not is_grad_enabled() or not any(t.requires_grad for t in (input, first, second)):
        output, _ = _forward(input, first, second, dim, by_slope, False, inplace=True)
        torch.autograd.graph.increment_version(input)
        return output
    if input.requires_grad and input.is_leaf:  # autograd would raise only afterwards
        raise RuntimeError(
            "mpelu: inplace=True can't overwrite a leaf tensor that requires grad; pass a clone"
        )
    if eager.output_suffices(first, second, by_slope, input.dtype):
        return _apply_in_place(input, first, second, dim, by_slope)
    return input.copy_(_apply(input.clone(), first, second, dim, by_slope))


# --- The registered operator: what torch.compile and other programs call ------------------------

# They accept any memory layout, so compilers don't need to copy tensors into another one.
_ANY_LAYOUT = (torch.Tag.flexible_layout,)

_PARAMETERS = "Tensor first, Tensor second, int dim{}, bool by_slope{}"

torch.library.define(
    "mpelu::mpelu",
    f"(Tensor input, {_PARAMETERS.format('=1', '=False')}) -> Tensor",
    tags=_ANY_LAYOUT,
)
torch.library.define(
    "mpelu::mpelu_backward",
    f"(Tensor grad, Tensor saved, {_PARAMETERS.format('', '=False')}, bool saved_is_output=False,"
    " Tensor? bits=None) -> (Tensor, Tensor, Tensor)",
    tags=_ANY_LAYOUT,
)
# Compiled networks can't know while they are traced whether the output will suffice for backward.
# So they keep the output and bits, whose storage holds the input too when a scale is zero.
torch.library.define(
    "mpelu::mpelu_with_bits",
    f"(Tensor input, {_PARAMETERS.format('=1', '=False')}) -> (Tensor, Tensor)",
    tags=_ANY_LAYOUT,
)


@torch.library.impl("mpelu::mpelu", "default")
def _operator_implementation(
    input: Tensor, first: Tensor, second: Tensor, dim: int = 1, by_slope: bool = False
) -> Tensor:
    return _forward(input, first, second, dim, by_slope, False)[0]


@torch.library.impl("mpelu::mpelu_with_bits", "default")
def _operator_with_bits_implementation(
    input: Tensor, first: Tensor, second: Tensor, dim: int = 1, by_slope: bool = False
) -> tuple[Tensor, Tensor]:
    output, kept = _forward(input, first, second, dim, by_slope)
    count = eager.bytes_of_bits(input.numel())
    if isinstance(kept, Tensor):
        return output, kept
    bits = input.new_empty(count, dtype=torch.uint8)
    if kept is False and input.numel():
        dense = as_dense(input)
        flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
        whole = torch.cat([input.new_zeros(_start(count), dtype=torch.uint8), flat])
        bits.set_(whole.untyped_storage(), 0, (count,), (1,))
    return output, bits


def _start(count: int) -> int:
    """Returns where the input begins in the storage of that many bytes of bits."""
    return -(-count // 64) * 64


@torch.library.impl("mpelu::mpelu_backward", "default")
def _operator_backward_implementation(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    by_slope: bool = False,
    saved_is_output: bool = False,
    bits: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_backward(grad, saved, first, second, dim, by_slope)
    kept: Kept = saved_is_output if bits is None else bits
    if bits is not None and not eager.output_suffices(first, second, by_slope, saved.dtype):
        start, size = _start(bits.numel()), saved.numel() * saved.element_size()
        whole = bits.new_empty(0).set_(bits.untyped_storage())
        if whole.numel() < start + size:
            raise RuntimeError(
                "mpelu: compiled code keeps the input with the bits where a scale is 0, but a hook "
                "for saved tensors kept the bits alone; run the module without torch.compile"
            )
        flat = whole[start : start + size].view(saved.dtype)
        saved, kept = flat.as_strided(saved.shape, as_dense(saved).stride()), False
    return _backward(grad, saved, first, second, dim, kept, by_slope)


@torch.library.register_fake("mpelu::mpelu")  # type: ignore[untyped-decorator]
def _(input: Tensor, first: Tensor, second: Tensor, dim: int = 1, by_slope: bool = False) -> Tensor:
    eager.check(input, first, second, dim, by_slope)
    return torch.empty_like(input)


@torch.library.register_fake("mpelu::mpelu_with_bits")  # type: ignore[untyped-decorator]
def _(
    input: Tensor, first: Tensor, second: Tensor, dim: int = 1, by_slope: bool = False
) -> tuple[Tensor, Tensor]:
    eager.check(input, first, second, dim, by_slope)
    count = eager.bytes_of_bits(input.numel())
    return torch.empty_like(input), input.new_empty(count, dtype=torch.uint8)


@torch.library.register_fake("mpelu::mpelu_backward")  # type: ignore[untyped-decorator]
def _(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    by_slope: bool = False,
    saved_is_output: bool = False,
    bits: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_backward(grad, saved, first, second, dim, by_slope)
    return torch.empty_like(saved), torch.empty_like(first), torch.empty_like(second)


def _check_backward(
    grad: Tensor, saved: Tensor, first: Tensor, second: Tensor, dim: int, by_slope: bool
) -> None:
    eager.check(saved, first, second, dim, by_slope)
    if grad.shape != saved.shape or not grad.is_floating_point() or grad.device != saved.device:
        raise ValueError(
            f"mpelu_backward: expected a floating point gradient of shape {list(saved.shape)} on "
            f"{saved.device}, got {grad.dtype} of shape {list(grad.shape)} on {grad.device}"
        )


_operator = torch.ops.mpelu.mpelu.default
_operator_with_bits = torch.ops.mpelu.mpelu_with_bits.default
_operator_backward = torch.ops.mpelu.mpelu_backward.default


def _compiled(input: Tensor, first: Tensor, second: Tensor, dim: int, by_slope: bool) -> Tensor:
    is_differentiated = is_grad_enabled() and (
        input.requires_grad or first.requires_grad or second.requires_grad
    )
    if is_differentiated and input.dtype in (torch.float32, torch.float64):
        output: Tensor = _operator_with_bits(input, first, second, dim, by_slope)[0]
        return output
    return _operator(input, first, second, dim, by_slope)  # type: ignore[no-any-return]


def _compiled_backward(
    grad: Tensor,
    saved: Tensor,
    first: Tensor,
    second: Tensor,
    dim: int,
    kept: Kept,
    by_slope: bool,
) -> Any:
    bits = kept if isinstance(kept, Tensor) else None
    return _operator_backward(grad, saved, first, second, dim, by_slope, kept is not False, bits)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, first, second, dim, by_slope = inputs
    has_values = type(first) is Tensor or type(first) is torch.nn.Parameter
    kept = has_values and eager.keep(input, first, second, by_slope)
    _save(ctx, output if kept is not False else input, first, second, dim, kept, by_slope)


def _setup_context_with_bits(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
) -> None:
    _, first, second, dim, by_slope = inputs
    _save(ctx, output[0], first, second, dim, output[1], by_slope)
    ctx.mark_non_differentiable(output[1])


def _backward_with_bits(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    saved, first, second, bits = ctx.saved_tensors
    dim, _, by_slope, _ = ctx.options
    return *_compiled_backward(grad, saved, first, second, dim, bits, by_slope), None, None


torch.library.register_autograd(
    "mpelu::mpelu",
    _Direct.backward,
    setup_context=_setup_context,
)
torch.library.register_autograd(
    "mpelu::mpelu_with_bits",
    _backward_with_bits,
    setup_context=_setup_context_with_bits,
)
