"""The operator `mpelu::mpelu`, its derivative, and the function users call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function_variadic
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from mpelu.kernels import eager, native

# They take tensors in any order of memory, so compilers need not copy theirs into another.
_ANY_LAYOUT = (torch.Tag.flexible_layout,)

torch.library.define(
    "mpelu::mpelu", "(Tensor input, Tensor alpha, Tensor beta) -> Tensor", tags=_ANY_LAYOUT
)
torch.library.define(
    "mpelu::mpelu_",
    "(Tensor(a!) input, Tensor alpha, Tensor beta) -> ()",
    tags=_ANY_LAYOUT,
)
torch.library.define(
    "mpelu::mpelu_backward",
    "(Tensor grad, Tensor saved, Tensor alpha, Tensor beta, bool saved_is_output)"
    " -> (Tensor, Tensor, Tensor)",
    tags=_ANY_LAYOUT,
)


def _forward_cpu(input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    output = native.forward(input, alpha, beta)
    return eager.forward(input, alpha, beta) if output is None else output


def _in_place(input: Tensor, alpha: Tensor, beta: Tensor) -> None:
    input.copy_(eager.forward(input, alpha, beta))


def _in_place_cpu(input: Tensor, alpha: Tensor, beta: Tensor) -> None:
    if native.forward_(input, alpha, beta) is None:
        _in_place(input, alpha, beta)


def _backward_cpu(
    grad: Tensor, saved: Tensor, alpha: Tensor, beta: Tensor, saved_is_output: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grads = native.backward(grad, saved, alpha, beta, saved_is_output)
    return eager.backward(grad, saved, alpha, beta, saved_is_output) if grads is None else grads


torch.library.impl("mpelu::mpelu", "default", eager.forward)
torch.library.impl("mpelu::mpelu", "cpu", _forward_cpu)
torch.library.register_fake("mpelu::mpelu", lambda input, alpha, beta: torch.empty_like(input))
torch.library.impl("mpelu::mpelu_", "default", _in_place)
torch.library.impl("mpelu::mpelu_", "cpu", _in_place_cpu)
torch.library.register_fake("mpelu::mpelu_", lambda input, alpha, beta: None)
torch.library.impl("mpelu::mpelu_backward", "default", eager.backward)
torch.library.impl("mpelu::mpelu_backward", "cpu", _backward_cpu)
torch.library.register_fake(
    "mpelu::mpelu_backward",
    lambda grad, saved, alpha, beta, saved_is_output: (
        torch.empty_like(saved),
        torch.empty_like(alpha),
        torch.empty_like(beta),
    ),
)

_mpelu = torch.ops.mpelu.mpelu.default
_mpelu_in_place = torch.ops.mpelu.mpelu_.default
_mpelu_backward = torch.ops.mpelu.mpelu_backward.default


def _output_suffices(alpha: Tensor, beta: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradients can be had from the output, so that the input need not be kept.

    Where alpha > 0 and beta > 0 in every channel the output tells the branch by its sign, and
    y = log(1 + f / alpha) / beta. The limits leave f all its digits. Half precision has too few:
    beta's gradient would be off by 3 % at beta y = -5. On other devices the answer would cost a
    wait for the device; there the input is kept.
    """
    if dtype not in (torch.float32, torch.float64) or alpha.device.type != "cpu":
        return False
    if type(alpha) not in _PLAIN:  # a tensor without values
        return False
    return alpha.min().item() >= 1e-20 and beta.min().item() >= 1e-10


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    input, alpha, beta = inputs
    ctx.saved_is_output = _output_suffices(alpha, beta, output.dtype)
    ctx.save_for_backward(output if ctx.saved_is_output else input, alpha, beta)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    saved, alpha, beta = ctx.saved_tensors
    # With create_graph the derivative must itself be differentiable: the saved tensor is part of
    # the graph, so plain torch operations on it give right second derivatives.
    run = eager.backward if torch.is_grad_enabled() else _mpelu_backward
    return run(grad, saved, alpha, beta, ctx.saved_is_output)


torch.library.register_autograd("mpelu::mpelu", _differentiate, setup_context=_setup_context)


class _InPlace(torch.autograd.Function):
    """In place: torch.library has no autograd for operators that change their input."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.saved_is_output = True
        _mpelu_in_place(input, alpha, beta)
        ctx.mark_dirty(input)
        ctx.save_for_backward(input, alpha, beta)
        return input

    backward = staticmethod(_differentiate)


def _run_in_place(input: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in (input, alpha, beta)):
        _mpelu_in_place(input, alpha, beta)
        torch.autograd.graph.increment_version(input)
        return input
    if input.requires_grad and input.is_leaf:  # autograd would only say so afterwards
        raise RuntimeError(
            "mpelu: expected an input that may be overwritten, got a leaf that requires grad"
        )
    if _output_suffices(alpha, beta, input.dtype):
        return _InPlace.apply(input, alpha, beta)
    return input.copy_(_mpelu(input.clone(), alpha, beta))


_PLAIN = (Tensor, torch.nn.Parameter)


def is_transformed() -> bool:
    """Under torch.compile, export, tracing, functional transforms or forward-mode AD.

    The plain formula serves these: GPU compilers fuse it, transforms see through it.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or is_in_torch_dispatch_mode()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _is_compiled_for_native(input: Tensor) -> bool:
    """Whether Inductor should call the kernel rather than fuse the formula.

    On the CPU the kernel alone takes half the time of what Inductor makes of an accurate formula;
    in a ResNet-20, where that fuses with its neighbours, the two are even.
    """
    is_for_inductor = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return is_for_inductor and input.device.type == "cpu" and native.serves(input.dtype)


def _check(input: Tensor, alpha: Tensor, beta: Tensor) -> None:
    for name, tensor in (("input", input), ("alpha", alpha), ("beta", beta)):
        if not tensor.is_floating_point():
            raise TypeError(f"mpelu: expected a floating point {name}, got {tensor.dtype}")
        if tensor.device != input.device:
            raise ValueError(
                f"mpelu: expected {name} on the device of the input, {input.device}, "
                f"got {tensor.device}"
            )
    if alpha.dim() != 1 or alpha.shape != beta.shape:
        raise ValueError(
            "mpelu: expected alpha and beta of one shape [1] or [channels], "
            f"got {list(alpha.shape)} and {list(beta.shape)}"
        )
    if alpha.numel() != 1:
        channels = input.size(1) if input.dim() > 1 else 1
        if alpha.numel() != channels:
            counts = "1 value" if channels == 1 else f"1 or {channels} values"
            raise ValueError(
                f"mpelu: expected alpha and beta with {counts} for an input of shape "
                f"{list(input.shape)}, got {alpha.numel()}"
            )


def mpelu(input: Tensor, alpha: Tensor, beta: Tensor, inplace: bool = False) -> Tensor:
    """Multiple parametric exponential linear unit.

    f(y) = y for y > 0 and alpha (e^(beta y) - 1) otherwise, with one alpha and beta for all of the
    input or one for each channel.

    Args:
        input: any shape and strides, floating point; channels are dimension 1.
        alpha: shape [1] or [channels]; any value.
        beta: as alpha. Negative values are calculated as written, though the paper asks for
            beta > 0 (the module `mpelu.MPELU` sees to that).
        inplace: overwrite the input and return it.

    Returns:
        A tensor with the shape, dtype and memory format of the input. Half precision is
        calculated in float32.

    Example:
        >>> mpelu(torch.tensor([-1.0, 2.0]), torch.tensor([1.0]), torch.tensor([1.0]))
        tensor([-0.6321,  2.0000])
    """
    if has_torch_function_variadic(input, alpha, beta):
        return handle_torch_function(
            mpelu, (input, alpha, beta), input, alpha, beta, inplace=inplace
        )
    _check(input, alpha, beta)
    if type(input) not in _PLAIN or is_transformed():
        run = _mpelu if _is_compiled_for_native(input) else eager.forward
        return input.copy_(run(input.clone(), alpha, beta)) if inplace else run(input, alpha, beta)
    return _run_in_place(input, alpha, beta) if inplace else _mpelu(input, alpha, beta)
