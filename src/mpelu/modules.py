"""MPELU as a module, used like torch.nn.PReLU."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

from mpelu.functional import MIN_BETA, mpelu
from mpelu.kernels import eager

__all__ = ["MIN_BETA", "MPELU", "LazyMPELU"]

Initial = float | Sequence[float] | Tensor


class MPELU(nn.Module):
    """Applies the multiple parametric exponential linear unit with learnable `alpha` and `beta`.

    f(y) = y for y > 0 and alpha (e^(beta y) - 1) otherwise (Li et al., arXiv 1606.00305).

    A beta that an optimizer pushes below `MIN_BETA` (1e-6) is treated as `MIN_BETA`. The parameter
    itself isn't changed. Its gradient passes if a gradient step would raise beta, and is zero if
    the step would lower beta further.

    Args:
        num_parameters: 1 to share alpha and beta, or the number of channels.
        alpha: initial value, either a number or one for each parameter (a sequence or tensor).
        beta: like alpha, positive.
        dim: channel dimension; -1 for tokens of shape [batch, length, channels].
        inplace: overwrite the input. This saves the output's memory, but not the one tensor kept
            for backward, which is the output while every alpha is positive (docs/semantics.md).
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shape:
        - Input: any, with `num_parameters` channels in dimension `dim` unless num_parameters is 1.
        - Output: same shape as the input.

    Attributes:
        alpha: learnable parameter of shape [num_parameters].
        beta: learnable parameter of shape [num_parameters].

    Example:
        >>> activation = MPELU(64, alpha=0.25)
        >>> activation(torch.randn(8, 64, 32, 32)).shape
        torch.Size([8, 64, 32, 32])
        >>> MPELU(512, dim=-1)(torch.randn(8, 100, 512)).shape
        torch.Size([8, 100, 512])
    """

    def __init__(
        self,
        num_parameters: SupportsIndex = 1,
        alpha: Initial = 1.0,
        beta: Initial = 1.0,
        *,
        dim: int = 1,
        inplace: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters = _count(num_parameters)
        self.dim = dim
        self.inplace = inplace
        self.initial_alpha = _initial("alpha", alpha, self.num_parameters)
        self.initial_beta = _initial("beta", beta, self.num_parameters)
        self.alpha = nn.Parameter(torch.empty(self.num_parameters, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.empty(self.num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def relu(cls, num_parameters: int = 1, **kwargs: Any) -> MPELU:
        """Creates an MPELU that starts as ReLU, exactly: alpha is 0."""
        return cls(num_parameters, alpha=0.0, beta=1.0, **kwargs)

    @classmethod
    def elu(cls, num_parameters: int = 1, alpha: float = 1.0, **kwargs: Any) -> MPELU:
        """Creates an MPELU that starts as ELU, exactly: beta is 1."""
        return cls(num_parameters, alpha=alpha, beta=1.0, **kwargs)

    @classmethod
    def prelu(
        cls, num_parameters: int = 1, slope: float = 0.25, beta: float = 0.01, **kwargs: Any
    ) -> MPELU:
        """Creates an MPELU that starts close to PReLU or leaky ReLU: alpha = slope / beta.

        The error is less than slope beta y^2 / 2: with the defaults, 0.00125 at y = -1 and 0.031
        at y = -5. The paper uses alpha 25.6302, which is exact at y = -5 and off by at most 0.0078
        between y = -5 and 0.
        """
        return cls(num_parameters, alpha=slope / beta, beta=beta, **kwargs)

    @classmethod
    def identity(cls, num_parameters: int = 1, **kwargs: Any) -> MPELU:
        """Creates an MPELU that starts close to the identity: the paper's alpha 98 and beta 0.01.

        The error is at most 0.02 |y| + 0.0049 y^2: 0.025 at y = -1 and 0.22 at y = -5.
        """
        return cls(num_parameters, alpha=98.0, beta=0.01, **kwargs)

    def reset_parameters(self) -> None:
        """Resets alpha and beta to their initial values."""
        starts = ((self.alpha, self.initial_alpha), (self.beta, self.initial_beta))
        for parameter, initial in starts:
            if len(initial) == 1:
                nn.init.constant_(parameter, initial[0])
            else:
                with torch.no_grad():
                    parameter.copy_(torch.tensor(initial, dtype=torch.float64, device="cpu"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Modules that were pickled before `dim` was an option lack it.
        super().__setstate__({"dim": 1, **state})  # type: ignore[no-untyped-call]

    def forward(self, input: Tensor) -> Tensor:
        # The parameters are usually here; `self.alpha` would take half a microsecond.
        alpha, beta = self._parameters.get("alpha"), self._parameters.get("beta")
        if alpha is None or beta is None:  # parametrized, or held by a wrapper
            alpha, beta = self.alpha, self.beta
        return mpelu(input, alpha, beta, self.inplace, self.dim)

    def __prepare_scriptable__(self) -> nn.Module:
        return _Scriptable(self)

    def extra_repr(self) -> str:
        count = "?" if is_lazy(self.alpha) else self.num_parameters
        parts = [f"num_parameters={count}"]
        for name in ("alpha", "beta"):
            if values := _range(getattr(self, name), getattr(self, f"initial_{name}")):
                parts.append(f"{name}={values}")
        parts += [f"dim={self.dim}"] * (self.dim != 1) + ["inplace=True"] * self.inplace
        return ", ".join(parts)


class _Scriptable(nn.Module):
    """Replaces an MPELU when torch.jit.script compiles it."""

    def __init__(self, module: MPELU) -> None:
        super().__init__()
        self.alpha, self.beta, self.dim = module.alpha, module.beta, module.dim
        self.inplace = module.inplace

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:  # from a copy, which backward may need
            return input.copy_(eager.scripted(input.clone(), self.alpha, self.beta, self.dim))
        return eager.scripted(input, self.alpha, self.beta, self.dim)


class LazyMPELU(LazyModuleMixin, MPELU):
    """An MPELU that takes its number of channels from the first input.

    Use it where activations are built without knowing the number of channels, such as by
    `act_layer=` and `activation_layer=` arguments. Like torch's other lazy modules, it becomes an
    `MPELU` at the first input (or the first one after loading a state_dict); run a batch through
    the network before creating the optimizer.

    Args:
        alpha: initial value, a number.
        beta: like alpha, positive.
        dim: channel dimension. Default: 1, but 3-dimensional input is then refused, since it may
            be [batch, channels, length] or [batch, length, channels].
        inplace: overwrite the input.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Example:
        >>> activation = LazyMPELU()
        >>> activation(torch.randn(8, 64, 32, 32)).shape
        torch.Size([8, 64, 32, 32])
        >>> activation
        MPELU(num_parameters=64, alpha=1, beta=1)
    """

    cls_to_become = MPELU

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        dim: int | None = None,
        inplace: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)
        LazyModuleMixin.__init__(self)
        self.num_parameters = 0
        self.dim = 1 if dim is None else dim
        self.dim_is_given = dim is not None
        self.inplace = inplace
        self.initial_alpha = _initial("alpha", alpha, 1)
        self.initial_beta = _initial("beta", beta, 1)
        self.alpha = _unknown(device, dtype)
        self.beta = _unknown(device, dtype)

    def initialize_parameters(self, input: Tensor) -> None:
        """Creates the parameters to fit the first input."""
        if self.has_uninitialized_params():
            channels = self._channels(input)
            with torch.no_grad():
                for parameter in (self.alpha, self.beta):
                    parameter.materialize((channels,))  # type: ignore[attr-defined]
            self.reset_parameters()
        self.num_parameters = self.alpha.numel()

    def _channels(self, input: Tensor) -> int:
        if input.dim() == 3 and not self.dim_is_given:
            raise ValueError(
                f"LazyMPELU: input {list(input.shape)} may be [batch, channels, length] or [batch, "
                "length, channels]; pass dim=1 or dim=-1"
            )
        if not -input.dim() <= self.dim < input.dim():
            raise ValueError(
                f"LazyMPELU: expected input with channels in dimension {self.dim}, got "
                f"{list(input.shape)}"
            )
        return input.size(self.dim)

    def reset_parameters(self) -> None:
        """Resets alpha and beta to their initial values, unless they don't exist yet."""
        if not self.has_uninitialized_params():
            super().reset_parameters()


def _unknown(device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    return UninitializedParameter(device=device, dtype=dtype)  # type: ignore[call-arg, return-value]


def _count(value: SupportsIndex) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"MPELU: expected num_parameters >= 1, got {value!r}")
    return count


def _initial(name: str, value: Initial, count: int) -> list[float]:
    """Returns the initial value as one number for all parameters or one for each."""
    try:
        if isinstance(value, (int, float)):
            numbers = [float(value)]  # no tensors, to build 1001 layers quickly
        else:
            numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu").reshape(-1).tolist()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(
            f"MPELU: expected {name} to be a number or a sequence of numbers, got {value!r}"
        ) from None
    if len(numbers) not in (1, count):
        raise ValueError(
            f"MPELU: expected {name} to be a number or {count} values (num_parameters), "
            f"got {len(numbers)}"
        )
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"MPELU: expected finite {name}, got {value}")
    if name == "beta" and min(numbers) < MIN_BETA:
        raise ValueError(f"MPELU: expected beta >= {MIN_BETA}, got {min(numbers):g}")
    return numbers


def _range(parameter: Tensor, initial: list[float]) -> str:
    """Formats the range of the values, or the initial value if lazy; empty without values."""
    if is_lazy(parameter):
        return f"{initial[0]:.4g}"
    if type(parameter) is not nn.Parameter or parameter.is_meta or not parameter.numel():
        return ""
    low, high = (f"{bound.item():.4g}" for bound in parameter.detach().aminmax())
    return low if low == high else f"{low}..{high}"
