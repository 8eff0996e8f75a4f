"""The public function, and the operator `mpelu::mpelu` with its derivative."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.overrides import handle_torch_function, has_torch_function_variadic

from mpelu.kernels import eager, registry
from mpelu.kernels.eager import MIN_BETA

__all__ = ["MIN_BETA", "mpelu"]


def __dir__() -> list[str]:
    return __all__


def mpelu(
    input: Tensor,
    alpha: Tensor | float,
    beta: Tensor | float,
    inplace: bool = False,
    dim: int = 1,
) -> Tensor:
    """Applies the multiple parametric exponential linear unit.

    f(y) = y for y > 0 and alpha (e^(beta y) - 1) otherwise, with one alpha and beta for the whole
    input or one for each channel. docs/semantics.md describes special values and derivatives.

    Args:
        input: floating-point tensor of any shape and strides.
        alpha: any number, or a tensor of shape [1] or [channels].
        beta: like alpha. Values below `MIN_BETA` (1e-6) are treated as `MIN_BETA`; gradients reach
            them only if a gradient step would raise them.
        inplace: overwrite the input and return it.
        dim: channel dimension; -1 for tokens of shape [batch, length, channels].

    Returns:
        A tensor with the shape, dtype and memory format of the input. Half precision is
        computed in float32.

    Example:
        >>> mpelu.mpelu(torch.tensor([-1.0, 2.0]), 1.0, 1.0)
        tensor([-0.6321,  2.0000])
    """
    if has_torch_function_variadic(input, alpha, beta):
        return handle_torch_function(
            mpelu, (input, alpha, beta), input, alpha, beta, inplace=inplace, dim=dim
        )
    if registry.route(input, alpha, beta) == "direct" and not inplace:
        return _run(input, alpha, beta, dim)
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        with warnings.catch_warnings():  # about the number of channels, which is a constant
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            return _run_otherwise(input, alpha, beta, inplace, dim)
    return _run_otherwise(input, alpha, beta, inplace, dim)


def _run_otherwise(
    input: Tensor, alpha: Tensor | float, beta: Tensor | float, inplace: bool, dim: int
) -> Tensor:
    """Handles all but the usual case: compilers, transforms, numbers as parameters, in-place."""
    alpha, beta = _tensors(input, alpha, beta)
    eager.check(input, alpha, beta, dim)
    route = registry.route(input, alpha, beta)
    if route == "direct":
        return (_run_in_place if inplace else _run)(input, alpha, beta, dim)
    run = _operator if route == "operator" else eager.forward
    return (
        input.copy_(run(input.clone(), alpha, beta, dim))
        if inplace
        else run(input, alpha, beta, dim)
    )


def _tensors(input: Tensor, alpha: Tensor | float, beta: Tensor | float) -> tuple[Tensor, Tensor]:
    """Returns alpha and beta as tensors; a number takes the shape of the other parameter."""
    if isinstance(alpha, Tensor) and isinstance(beta, Tensor):
        return alpha, beta
    like = alpha if isinstance(alpha, Tensor) else beta
    if isinstance(like, Tensor):
        shape, dtype = like.shape, like.dtype
    else:
        shape, dtype = torch.Size([1]), eager.compute_dtype(input.dtype)

    def tensor(value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return torch.full(shape, value, dtype=dtype, device=input.device)

    return tensor(alpha), tensor(beta)


# --- Plain eager tensors: no dispatcher in between ---------------------------------------------


def _run(input: Tensor, alpha: Any, beta: Any, dim: int) -> Tensor:
    if is_grad_enabled() and (input.requires_grad or alpha.requires_grad or beta.requires_grad):
        return _apply(input, alpha, beta, dim)
    return _forward(input, alpha, beta, dim)[0]


def _forward(
    input: Tensor, alpha: Tensor, beta: Tensor, dim: int, inplace: bool = False
) -> tuple[Tensor, bool]:
    """Returns the output and whether backward can do without the input."""
    kernel = registry.find(input)
    if kernel is not None:
        result = kernel.forward(input, alpha, beta, dim, inplace)
        if result is not None:
            return result
    eager.check(input, alpha, beta, dim)
    eager.check_memory(input, alpha, beta)
    output = eager.forward(input, alpha, beta, dim)
    return input.copy_(output) if inplace else output, eager.output_suffices(alpha, input.dtype)


def _backward(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    kernel = registry.find(saved)
    if kernel is not None:
        grads = kernel.backward(grad, saved, alpha, beta, dim, saved_is_output)
        if grads is not None:
            return grads
    return _formula_backward(grad, saved, alpha, beta, dim, saved_is_output)


def _formula_backward(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if type(saved) in (Tensor, torch.nn.Parameter):  # other types may have symbolic sizes
        eager.check_memory(grad, saved, alpha, beta)
    return eager.backward(grad, saved, alpha, beta, dim, saved_is_output)


class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, alpha: Tensor, beta: Tensor, dim: int) -> Tensor:
        output, suffices = _forward(input, alpha, beta, dim)
        ctx.options = dim, suffices
        ctx.save_for_backward(output if suffices else input, alpha, beta)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, alpha, beta = ctx.saved_tensors
        # With create_graph the derivative must itself be differentiable: the saved tensor is part
        # of the graph, so plain torch operations on it give correct second derivatives.
        run: Any = _formula_backward
        if not is_grad_enabled():
            route = registry.route(saved, grad, alpha)
            if route == "direct":
                run = _backward
            elif route == "operator":
                run = _operator_backward
        return *run(grad, saved, alpha, beta, *ctx.options), None


class _DirectInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, alpha: Tensor, beta: Tensor, dim: int) -> Tensor:
        _forward(input, alpha, beta, dim, inplace=True)
        ctx.mark_dirty(input)
        ctx.options = dim, True
        ctx.save_for_backward(input, alpha, beta)
        return input

    backward = _Direct.backward


_Apply = Callable[[Tensor, Tensor, Tensor, int], Tensor]
# Function.apply checks for transforms again, which takes a microsecond; `route` has checked.
_apply: _Apply = super(torch.autograd.Function, _Direct).apply
_apply_in_place: _Apply = super(torch.autograd.Function, _DirectInPlace).apply


def _run_in_place(input: Tensor, alpha: Tensor, beta: Tensor, dim: int) -> Tensor:
    if not is_grad_enabled() or not any(t.requires_grad for t in (input, alpha, beta)):
        output, _ = _forward(input, alpha, beta, dim, inplace=True)
        torch.autograd.graph.increment_version(input)
        return output
    if input.requires_grad and input.is_leaf:  # autograd would raise only afterwards
        raise RuntimeError(
            "mpelu: inplace=True can't overwrite a leaf tensor that requires grad; pass a clone"
        )
    if eager.output_suffices(alpha, input.dtype):
        return _apply_in_place(input, alpha, beta, dim)
    return input.copy_(_apply(input.clone(), alpha, beta, dim))


# --- The registered operator: what torch.compile and other programs call ------------------------

# They accept any memory layout, so compilers don't need to copy tensors into another one.
_ANY_LAYOUT = (torch.Tag.flexible_layout,)

torch.library.define(
    "mpelu::mpelu",
    "(Tensor input, Tensor alpha, Tensor beta, int dim=1) -> Tensor",
    tags=_ANY_LAYOUT,
)
torch.library.define(
    "mpelu::mpelu_backward",
    "(Tensor grad, Tensor saved, Tensor alpha, Tensor beta, int dim, bool saved_is_output)"
    " -> (Tensor, Tensor, Tensor)",
    tags=_ANY_LAYOUT,
)


@torch.library.impl("mpelu::mpelu", "default")
def _operator_implementation(input: Tensor, alpha: Tensor, beta: Tensor, dim: int = 1) -> Tensor:
    return _forward(input, alpha, beta, dim)[0]


@torch.library.impl("mpelu::mpelu_backward", "default")
def _operator_backward_implementation(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _check_backward(grad, saved, alpha, beta, dim)
    return _backward(grad, saved, alpha, beta, dim, saved_is_output)


@torch.library.register_fake("mpelu::mpelu")  # type: ignore[untyped-decorator]
def _(input: Tensor, alpha: Tensor, beta: Tensor, dim: int = 1) -> Tensor:
    eager.check(input, alpha, beta, dim)
    return torch.empty_like(input)


@torch.library.register_fake("mpelu::mpelu_backward")  # type: ignore[untyped-decorator]
def _(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _check_backward(grad, saved, alpha, beta, dim)
    return torch.empty_like(saved), torch.empty_like(alpha), torch.empty_like(beta)


def _check_backward(grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, dim: int) -> None:
    eager.check(saved, alpha, beta, dim)
    if grad.shape != saved.shape or not grad.is_floating_point() or grad.device != saved.device:
        raise ValueError(
            f"mpelu_backward: expected a floating point gradient of shape {list(saved.shape)} on "
            f"{saved.device}, got {grad.dtype} of shape {list(grad.shape)} on {grad.device}"
        )


_operator = torch.ops.mpelu.mpelu.default
_operator_backward = torch.ops.mpelu.mpelu_backward.default


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    input, alpha, beta, dim = inputs
    has_values = type(alpha) is Tensor or type(alpha) is torch.nn.Parameter
    suffices = has_values and eager.output_suffices(alpha, output.dtype)
    ctx.options = dim, suffices
    ctx.save_for_backward(output if suffices else input, alpha, beta)


torch.library.register_autograd(
    "mpelu::mpelu",
    _Direct.backward,
    setup_context=_setup_context,
)
