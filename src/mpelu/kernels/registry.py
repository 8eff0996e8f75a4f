"""What computes a call: the kernels by device and dtype, and the route that a call takes."""

from __future__ import annotations

from types import ModuleType
from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

KERNELS: dict[str, dict[torch.dtype, ModuleType]] = {}
"""Device type -> dtype -> a module with `forward` and `backward` as in `mpelu.kernels.native`.

Each answers None for what it can't do. Plain torch operations (`mpelu.kernels.eager`) serve those
calls, and devices and dtypes that aren't listed.
"""


def register(device: str, dtypes: tuple[torch.dtype, ...], kernel: ModuleType) -> None:
    """Let a kernel serve tensors of these dtypes on a type of device ("cpu", "cuda", ...)."""
    KERNELS.setdefault(device, {}).update(dict.fromkeys(dtypes, kernel))


def find(tensor: Tensor) -> ModuleType | None:
    """The kernel for a tensor, or None."""
    found = KERNELS.get("cpu" if tensor.is_cpu else tensor.device.type)
    return None if found is None else found.get(tensor.dtype)


Route = Literal["direct", "operator", "formula"]


def route(input: Tensor, alpha: object, beta: object) -> Route:
    """The one place where it is decided how a call runs.

    - "direct": plain eager tensors. A kernel or torch operations, without the dispatcher.
    - "operator": torch.compile where there is a kernel, which the compiled code calls. On the CPU
      it takes half the time of what Inductor makes of an accurate formula.
    - "formula": plain torch operations that every transform and compiler sees through.
    """
    if torch.compiler.is_compiling():
        if is_exporting() or is_differentiated_by_transform() or find(input) is None:
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


def is_differentiated_by_transform() -> bool:
    """Inside torch.func (grad, vmap, jvp, ...) or forward-mode AD, compiled or not."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_exporting() -> bool:
    """Inside torch.export, torch.onnx.export or torch.jit.trace: graphs for other programs."""
    return _is_exporting() or torch.jit.is_tracing()


# torch 2.5 and older don't tell; programs they export contain the operator.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
