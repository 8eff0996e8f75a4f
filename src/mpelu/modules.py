"""MPELU as a module, used like torch.nn.PReLU."""

from __future__ import annotations

import functools
import math
import operator
import warnings
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
STEEP = 3.0
"""Initial alpha above which a warning names slope and rate."""


class MPELU(nn.Module):
    """Applies the multiple parametric exponential linear unit with two learnable parameters.

    f(y) = y for y > 0 and alpha (e^(beta y) - 1) otherwise (Li et al., arXiv 1606.00305).

    The parameters are the paper's `alpha` and `beta`, or `slope` and `rate` if one of these is
    given: the slope at zero, alpha beta, and the rate, beta, with
    f(y) = slope (e^(rate y) - 1) / rate for y <= 0. Both describe the same functions. In slope and
    rate those close to PReLU and the identity can be trained, and a rate of 0 is PReLU exactly
    (docs/semantics.md).

    A beta that an optimizer pushes below `MIN_BETA` (1e-6) is treated as `MIN_BETA`, a rate below 0
    as 0. The parameter itself isn't changed. Its gradient passes if a gradient step would raise it,
    and is zero if the step would lower it further.

    Args:
        num_parameters: 1 to share the parameters, or the number of channels.
        alpha: initial value, either a number or one for each parameter (a sequence or tensor).
            Default: 1.
        beta: like alpha, positive. Default: 1.
        slope: initial value in place of alpha and beta, like alpha. Default: 1.
        rate: like slope, not negative. Default: 1.
        dim: channel dimension; -1 for tokens of shape [batch, length, channels].
        inplace: overwrite the input. This saves the output's memory, but not what is kept for
            backward, which is the output unless a slope is zero (docs/semantics.md).
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shape:
        - Input: any, with `num_parameters` channels in dimension `dim` unless num_parameters is 1.
        - Output: same shape as the input.

    Attributes:
        coordinates: "paper" or "slope"; state_dict has the parameters of these coordinates.
        alpha: learnable parameter of shape [num_parameters], or calculated from slope and rate.
        beta: like alpha; calculated, it is at least `MIN_BETA`.
        slope: learnable parameter of shape [num_parameters], or calculated from alpha and beta.
        rate: like slope; calculated, it is at least `MIN_BETA`.

    Example:
        >>> activation = MPELU(64, alpha=0.25)
        >>> activation(torch.randn(8, 64, 32, 32)).shape
        torch.Size([8, 64, 32, 32])
        >>> MPELU(512, dim=-1)(torch.randn(8, 100, 512)).shape
        torch.Size([8, 100, 512])
        >>> MPELU(64, slope=0.25, rate=0.0)
        MPELU(num_parameters=64, slope=0.25, rate=0)
    """

    alpha: Tensor
    beta: Tensor
    slope: Tensor
    rate: Tensor

    def __init__(
        self,
        num_parameters: SupportsIndex = 1,
        alpha: Initial | None = None,
        beta: Initial | None = None,
        *,
        slope: Initial | None = None,
        rate: Initial | None = None,
        dim: int = 1,
        inplace: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters = _count(num_parameters)
        self.dim = dim
        self.inplace = inplace
        self._start(self.num_parameters, alpha, beta, slope, rate)
        for name in self._names:
            values = torch.empty(self.num_parameters, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(values))
        self.reset_parameters()

    def _start(self, count: int, *values: Initial | None) -> None:
        """Sets the coordinates, and the initial values by the parameters' names."""
        given = [value is not None for value in values]
        if any(given[:2]) and any(given[2:]):
            raise ValueError("MPELU: expected either alpha and beta or slope and rate, got both")
        self.coordinates = "slope" if any(given[2:]) else "paper"
        for name, value in zip(self._names, values[2:] if any(given[2:]) else values, strict=False):
            setattr(self, f"initial_{name}", _initial(name, 1.0 if value is None else value, count))
        if self.coordinates == "paper" and max(self.initial_alpha) > STEEP:
            _warn_of_steep_alpha()

    @property
    def _names(self) -> tuple[str, str]:
        return eager.names(self.coordinates == "slope")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # "coordinates" is missing while a module is built or unpickled
            if "coordinates" not in self.__dict__ or name not in eager.PAPER + eager.SLOPE:
                raise
            first, second = self._names
            if name in (first, second):
                raise
            return _converted(getattr(self, first), getattr(self, second), name)

    @classmethod
    def relu(cls, num_parameters: int = 1, **kwargs: Any) -> MPELU:
        """Creates an MPELU that starts as ReLU, exactly: alpha is 0."""
        return cls(num_parameters, alpha=0.0, beta=1.0, **kwargs)

    @classmethod
    def elu(cls, num_parameters: int = 1, alpha: float = 1.0, **kwargs: Any) -> MPELU:
        """Creates an MPELU that starts as ELU, exactly: beta is 1."""
        return cls(num_parameters, alpha=alpha, beta=1.0, **kwargs)

    @classmethod
    def prelu(cls, num_parameters: int = 1, slope: float = 0.25, **kwargs: Any) -> MPELU:
        """Creates an MPELU that starts as PReLU, exactly: its parameters are slope, and rate 0.

        The paper starts at alpha 25.6302 and beta 0.01, which differs from slope 0.25 by at most
        0.0078 between y = -5 and 0, but with these parameters few networks learn.
        """
        return cls(num_parameters, slope=slope, rate=0.0, **kwargs)

    @classmethod
    def leaky_relu(
        cls, num_parameters: int = 1, negative_slope: float = 0.01, **kwargs: Any
    ) -> MPELU:
        """Creates an MPELU that starts as leaky ReLU, exactly: `prelu` with another slope."""
        return cls.prelu(num_parameters, negative_slope, **kwargs)

    @classmethod
    def identity(cls, num_parameters: int = 1, **kwargs: Any) -> MPELU:
        """Creates an MPELU that starts as the identity, exactly: slope is 1 and rate 0.

        The paper starts at alpha 98 and beta 0.01, which is off by 0.025 at y = -1 and 0.22 at
        y = -5, and can't be trained at the usual learning rates.
        """
        return cls.prelu(num_parameters, 1.0, **kwargs)

    def reset_parameters(self) -> None:
        """Resets the parameters to their initial values."""
        for name in self._names:
            parameter, initial = getattr(self, name), getattr(self, f"initial_{name}")
            if len(initial) == 1:
                nn.init.constant_(parameter, initial[0])
            else:
                with torch.no_grad():
                    parameter.copy_(torch.tensor(initial, dtype=torch.float64, device="cpu"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Modules that were pickled before `dim` and `coordinates` were options lack them.
        super().__setstate__({"dim": 1, "coordinates": "paper", **state})  # type: ignore[no-untyped-call]

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Loads parameters in either coordinates; the other ones are converted."""
        own = self._names
        others = eager.PAPER if self.coordinates == "slope" else eager.SLOPE
        if all(prefix + name in state_dict for name in others):
            first, second = (state_dict.pop(prefix + name) for name in others)
            if self.coordinates == "paper" and bool((second < MIN_BETA).any()):
                error_msgs.append(
                    f"{prefix}rate is below {MIN_BETA:g}, which alpha and beta can't express: "
                    "build the MPELU with slope= and rate="
                )
                return
            for name in own:
                state_dict[prefix + name] = _converted(first, second, name)
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def forward(self, input: Tensor) -> Tensor:
        # The parameters are usually here; `self.alpha` would take half a microsecond.
        held: dict[str, Any] = self._parameters
        if self.coordinates == "paper":
            alpha, beta = held.get("alpha"), held.get("beta")
            if alpha is None or beta is None:  # parametrized, or held by a wrapper
                alpha, beta = self.alpha, self.beta
            return mpelu(input, alpha, beta, self.inplace, self.dim)
        slope, rate = held.get("slope"), held.get("rate")
        if slope is None or rate is None:
            slope, rate = self.slope, self.rate
        return mpelu(input, None, None, self.inplace, self.dim, slope=slope, rate=rate)

    def __prepare_scriptable__(self) -> nn.Module:
        return _Scriptable(self) if self.coordinates == "paper" else _ScriptableSlope(self)

    def extra_repr(self) -> str:
        first, second = self._names
        count = "?" if is_lazy(getattr(self, first)) else self.num_parameters
        parts = [f"num_parameters={count}"]
        for name in (first, second):
            if values := _range(getattr(self, name), getattr(self, f"initial_{name}")):
                parts.append(f"{name}={values}")
        parts += [f"dim={self.dim}"] * (self.dim != 1) + ["inplace=True"] * self.inplace
        return ", ".join(parts)


def _converted(first: Tensor, second: Tensor, name: str) -> Tensor:
    """Returns a parameter from those of the other coordinates, rounded once."""
    bounded = second.clamp(min=MIN_BETA)
    if name in ("beta", "rate"):
        return bounded
    wide, by = first.double(), bounded.double()
    return (wide / by if name == "alpha" else wide * by).to(first.dtype)


@functools.cache
def _warn_of_steep_alpha() -> None:
    """Warns, once."""
    warnings.warn(
        f"MPELU: an initial alpha above {STEEP:g} is hard to train, since a step of beta moves the "
        "slope at zero by alpha times as much; MPELU(slope=..., rate=...) trains the same function",
        stacklevel=4,
    )


class _Scriptable(nn.Module):
    """Replaces an MPELU when torch.jit.script compiles it."""

    def __init__(self, module: MPELU) -> None:
        super().__init__()
        self.alpha, self.beta, self.dim = module.alpha, module.beta, module.dim
        self.inplace = module.inplace

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:  # from a copy, which backward may need
            return input.copy_(
                eager.scripted(input.clone(), self.alpha, self.beta, self.dim, False)
            )
        return eager.scripted(input, self.alpha, self.beta, self.dim, False)


class _ScriptableSlope(nn.Module):
    """The same for slope and rate: a scripted module's parameters have fixed names."""

    def __init__(self, module: MPELU) -> None:
        super().__init__()
        self.slope, self.rate, self.dim = module.slope, module.rate, module.dim
        self.inplace = module.inplace

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:
            return input.copy_(eager.scripted(input.clone(), self.slope, self.rate, self.dim, True))
        return eager.scripted(input, self.slope, self.rate, self.dim, True)


class LazyMPELU(LazyModuleMixin, MPELU):
    """An MPELU that takes its number of channels from the first input.

    Use it where activations are built without knowing the number of channels, such as by
    `act_layer=` and `activation_layer=` arguments. Like torch's other lazy modules, it becomes an
    `MPELU` at the first input (or the first one after loading a state_dict); run a batch through
    the network before creating the optimizer.

    Args:
        alpha: initial value, a number. Default: 1.
        beta: like alpha, positive. Default: 1.
        slope: initial value in place of alpha and beta. Default: 1.
        rate: like slope, not negative. Default: 1.
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
        alpha: float | None = None,
        beta: float | None = None,
        slope: float | None = None,
        rate: float | None = None,
        dim: int | None = None,
        inplace: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        values = {"alpha": alpha, "beta": beta, "slope": slope, "rate": rate}
        super().__init__(**values, dim=1 if dim is None else dim, inplace=inplace)
        self.num_parameters = 0
        self.dim_is_given = dim is not None
        for name in self._names:
            self.register_parameter(name, _unknown(device, dtype))

    def initialize_parameters(self, input: Tensor) -> None:
        """Creates the parameters to fit the first input."""
        if self.has_uninitialized_params():
            channels = self._channels(input)
            with torch.no_grad():
                for name in self._names:
                    getattr(self, name).materialize((channels,))
            self.reset_parameters()
        self.num_parameters = getattr(self, self._names[0]).numel()

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
        """Resets the parameters to their initial values, unless they don't exist yet."""
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
    least = {"beta": MIN_BETA, "rate": 0.0}.get(name)
    if least is not None and min(numbers) < least:
        raise ValueError(f"MPELU: expected {name} >= {least:g}, got {min(numbers):g}")
    return numbers


def _range(parameter: Tensor, initial: list[float]) -> str:
    """Formats the range of the values, or the initial value if lazy; empty without values."""
    if is_lazy(parameter):
        return f"{initial[0]:.4g}"
    if type(parameter) is not nn.Parameter or parameter.is_meta or not parameter.numel():
        return ""
    low, high = (f"{bound.item():.4g}" for bound in parameter.detach().aminmax())
    return low if low == high else f"{low}..{high}"
