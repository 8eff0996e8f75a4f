"""MPELU as a module, a sibling of torch.nn.PReLU."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from mpelu.functional import is_transformed, mpelu

MIN_BETA = 1e-6
"""Where beta is held when an optimizer would push it lower. f is then linear, of slope 1e-6 alpha,
to 1 part in 10^4 for y down to -200."""


def _initial(name: str, value: float | Sequence[float] | Tensor, count: int) -> list[float]:
    """The value as one number for all, or as one for each parameter."""
    if isinstance(value, (int, float)):
        numbers = [float(value)]  # no tensors: this is what networks of 1001 layers do
    else:
        numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu").reshape(-1).tolist()
    if len(numbers) not in (1, count):
        raise ValueError(
            f"MPELU: expected {name} as a number or {count} values (num_parameters), "
            f"got {len(numbers)}"
        )
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"MPELU: expected finite {name}, got {value}")
    if name == "beta" and min(numbers) < MIN_BETA:
        raise ValueError(f"MPELU: expected beta >= {MIN_BETA}, got {min(numbers):g}")
    return numbers


class MPELU(nn.Module):
    """Multiple parametric exponential linear unit with learnable `alpha` and `beta`.

    f(y) = y for y > 0 and alpha (e^(beta y) - 1) otherwise (Li et al., arXiv 1606.00305).

    beta stays positive under any optimizer: after its step a value below `MIN_BETA` is put back to
    it, in the parameter itself. The gradient is whole there and can carry it away again. A beta
    changed in other ways is put back before the module next uses it.

    Args:
        num_parameters: 1 to share alpha and beta, or the number of channels (dimension 1).
        alpha: initial value, a number or one for each parameter (a sequence or tensor).
        beta: as alpha; positive.
        inplace: overwrite the input. Worth it where memory is short; saves none in backward, since
            the output alone is kept anyway.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        - Input: any, with channels in dimension 1 unless num_parameters is 1.
        - Output: as the input.

    Attributes:
        alpha: learnable, shape [num_parameters].
        beta: learnable, shape [num_parameters].

    Example:
        >>> activation = MPELU(64, alpha=0.25)
        >>> activation(torch.randn(8, 64, 32, 32)).shape
        torch.Size([8, 64, 32, 32])
    """

    alpha: nn.Parameter
    beta: nn.Parameter

    def __init__(
        self,
        num_parameters: int = 1,
        alpha: float | Sequence[float] | Tensor = 1.0,
        beta: float | Sequence[float] | Tensor = 1.0,
        *,
        inplace: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(num_parameters, int) or num_parameters < 1:
            raise ValueError(f"MPELU: expected num_parameters >= 1, got {num_parameters!r}")
        self.num_parameters = num_parameters
        self.inplace = inplace
        self.initial_alpha = _initial("alpha", alpha, num_parameters)
        self.initial_beta = _initial("beta", beta, num_parameters)
        self.alpha = nn.Parameter(torch.empty(num_parameters, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()
        _live.add(self)

    @classmethod
    def relu(cls, num_parameters: int = 1, **kwargs: Any) -> MPELU:
        """Starts as ReLU, exactly: alpha 0."""
        return cls(num_parameters, alpha=0.0, beta=1.0, **kwargs)

    @classmethod
    def elu(cls, num_parameters: int = 1, alpha: float = 1.0, **kwargs: Any) -> MPELU:
        """Starts as ELU, exactly: beta 1."""
        return cls(num_parameters, alpha=alpha, beta=1.0, **kwargs)

    @classmethod
    def prelu(
        cls, num_parameters: int = 1, slope: float = 0.25, beta: float = 0.01, **kwargs: Any
    ) -> MPELU:
        """Starts close to PReLU or leaky ReLU: alpha = slope / beta.

        Off by less than slope beta y^2 / 2: with the defaults 0.00125 at y = -1 and 0.031 at
        y = -5. The paper takes alpha 25.6302, which is exact at y = -5 and off by 0.0078 at most
        between there and zero.
        """
        return cls(num_parameters, alpha=slope / beta, beta=beta, **kwargs)

    @classmethod
    def identity(cls, num_parameters: int = 1, **kwargs: Any) -> MPELU:
        """Starts close to the identity, with the paper's alpha 98 and beta 0.01.

        Off by at most 0.02 |y| + 0.0049 y^2: 0.025 at y = -1 and 0.22 at y = -5.
        """
        return cls(num_parameters, alpha=98.0, beta=0.01, **kwargs)

    def reset_parameters(self) -> None:
        """Back to the initial alpha and beta."""
        starts = ((self.alpha, self.initial_alpha), (self.beta, self.initial_beta))
        for parameter, initial in starts:
            if len(initial) == 1:
                nn.init.constant_(parameter, initial[0])
            else:
                with torch.no_grad():
                    parameter.copy_(torch.tensor(initial, dtype=torch.float64, device="cpu"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _live.add(self)  # copied or unpickled

    def forward(self, input: Tensor) -> Tensor:
        beta: Tensor = self.beta
        if type(beta) is nn.Parameter and beta.device.type == "cpu" and not is_transformed():
            if beta.data.min() < MIN_BETA:
                # Changed by hand. `.data`: the version counter must stay, or a module used twice
                # in a graph couldn't go backward; the second time nothing changes.
                beta.data.clamp_(min=MIN_BETA)
        else:
            # The bound without a change in place: the value is held, the gradient goes through.
            beta = torch.where(beta > MIN_BETA, beta, MIN_BETA + (beta - beta.detach()))
        return mpelu(input, self.alpha, beta, inplace=self.inplace)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}" + (", inplace=True" if self.inplace else "")


_live: weakref.WeakSet[MPELU] = weakref.WeakSet()


def _hold_beta(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """After each step of any torch optimizer: no beta of its parameters below the bound."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    betas: list[Tensor] = [m.beta for m in list(_live) if id(m.beta) in stepped]
    if betas:
        with torch.no_grad():
            torch._foreach_clamp_min_(betas, MIN_BETA)


register_optimizer_step_post_hook(_hold_beta)
