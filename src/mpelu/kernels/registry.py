"""Decides what computes a call: kernels by device and dtype, and the route that a call takes."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


class Kernel(Protocol):
    """A module with `forward` and `backward` as in `mpelu.kernels.native`.

    Both return None for calls they can't handle.
    """

    def forward(
        self,
        input: Tensor,
        first: Tensor,
        second: Tensor,
        dim: int,
        by_slope: bool = False,
        is_differentiated: bool = True,
        inplace: bool = False,
        /,
    ) -> tuple[Tensor, bool | Tensor] | None: ...

    def backward(
        self,
        grad: Tensor,
        saved: Tensor,
        first: Tensor,
        second: Tensor,
        dim: int,
        kept: bool | Tensor,
        by_slope: bool = False,
        /,
    ) -> tuple[Tensor, Tensor, Tensor] | None: ...


KERNELS: dict[str, dict[torch.dtype, Kernel]] = {}
"""Kernels by device type and dtype.

Plain torch operations (`mpelu.kernels.eager`) serve devices and dtypes that aren't listed, and
calls for which the kernel returns None.
"""


def register(device: str, dtypes: tuple[torch.dtype, ...], kernel: Kernel) -> None:
    """Lets a kernel serve tensors of these dtypes on a type of device ("cpu", "cuda", ...)."""
    KERNELS.setdefault(device, {}).update(dict.fromkeys(dtypes, kernel))


def find(tensor: Tensor) -> Kernel | None:
    """Returns the kernel for a tensor, or None."""
    found = KERNELS.get("cpu" if tensor.is_cpu else tensor.device.type)
    return None if found is None else found.get(tensor.dtype)


Route = Literal["direct", "operator", "formula"]


def route(input: Tensor, alpha: object, beta: object) -> Route:
    """Returns how a call runs, which is decided only here.

    - "direct": plain eager tensors. A kernel or torch operations run without the dispatcher.
    - "operator": torch.compile for the CPU if there is a kernel, which the compiled code calls. It
      takes half as long as the code that Inductor generates from an accurate formula.
    - "formula": plain torch operations that every transform and compiler can see through. On a
      GPU, Inductor fuses them with what comes before and after. They are then free in inference,
      and cost about the kernel's memory traffic in training (benchmarks/roofline.py --inductor).
    """
    if torch.compiler.is_compiling():
        if (
            not input.is_cpu
            or is_exporting()
            or is_differentiated_by_transform()
            or find(input) is None
        ):
            return "formula"
        return "operator"
    if (
        (type(input) is Tensor or type(input) is Parameter)
        and (type(alpha) is Parameter or type(alpha) is Tensor)
        and (type(beta) is Parameter or type(beta) is Tensor)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and not is_in_torch_dispatch_mode()
        and not torch._C._is_tracing()
    ):
        return "direct"
    return "formula"


def has_memory(*tensors: Tensor) -> bool:
    """Returns whether a kernel can read the tensors.

    Wrappers from transforms and is_grads_batched have no memory of their own, torch's zero tensors
    have none at all, and storage can be freed.
    """
    try:
        return all(map(torch._C._data_address, tensors))  # type: ignore[attr-defined]
    except RuntimeError:  # no storage
        return False


def is_differentiated_by_transform() -> bool:
    """Returns whether torch.func (grad, vmap, ...) or forward-mode AD is active, also compiled."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_exporting() -> bool:
    """Returns whether torch.export, torch.onnx.export or torch.jit.trace is making a graph."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
