"""The type of an elementwise function: its values, slopes, moments and kinks.

Everything that reads activations reads this type: initialization, depth, conversion, diagnosis and
the lab. `mpelu.activations.describe` finds the function of a module.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mpelu.gaussian import (
    leaky_moments,
    moments,
    plain_tensors,
    quadrature_moments,
    squared_slope,
    to_float64,
)

Value = float | Tensor
"""A number that holds for all channels, or a float64 tensor of shape [channels].

Most values agree across channels, and plain numbers make walking through a deep network several
times as fast as tensors with one element do."""

LIKELY_KINKS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0)
"""Points at which the activations of torch.nn aren't smooth, assumed for functions that are known
only by running them."""
_AT_ZERO = 1e-12
"""Distance from zero at which the slopes below and above it are evaluated, in float64."""
_STEP = 1e-5
"""Half the step of finite differences, used for functions without an autograd graph."""


def as_value(value: float | Tensor) -> Value:
    """Returns a plain number where all channels agree, as they do in a new activation."""
    if not isinstance(value, Tensor):
        return float(value)
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value  # sharded
    numbers: list[float] = whole.detach().reshape(-1).tolist()
    if numbers.count(numbers[0]) == len(numbers):
        return numbers[0]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def average(value: Value) -> float:
    """Returns the mean over the channels."""
    return value.mean().item() if isinstance(value, Tensor) else value


def size_of(value: Value) -> int:
    """Returns the number of channels the value distinguishes."""
    return value.numel() if isinstance(value, Tensor) else 1


def fit(value: Value, size: int) -> Tensor:
    """Expands to `size` channels: flattened maps repeat theirs, other sizes take the mean."""
    if not isinstance(value, Tensor):
        return torch.full((size,), value, dtype=torch.float64, device="cpu")
    if value.numel() == size:
        return value
    if size % value.numel() == 0:
        return value.repeat_interleave(size // value.numel())
    return value.mean().expand(size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementwiseFunction:
    """A function that is applied to each number, with shared parameters or some per channel.

    Two families have closed forms. In the exponential family `alpha`, `beta` and `scale` are set:
    scale y for y > 0, and scale alpha (e^(beta y) - 1) otherwise. In the leaky family `slope` is
    set: y for y > 0, and slope y otherwise. Any other function is integrated numerically.
    """

    name: str
    """Name shown in reports."""
    apply: Callable[[Tensor], Tensor]
    """Maps float64 [points, channels] to the same shape."""
    channels: int = 1
    """Number of channels it has parameters for; 1 if it treats all channels alike."""
    alpha: Value | None = None
    beta: Value | None = None
    scale: Value = 1.0
    slope: Value | None = None
    kinks: tuple[float | Tensor, ...] = (0.0,)
    """Points where it isn't smooth or bends sharply: numbers, or tensors of shape [channels]."""
    affine: tuple[Value, Value] | None = None
    """Scale and shift, if the function does nothing else."""
    key: Hashable = None
    """Key that is the same for equal functions; None if equality can't be determined."""

    @property
    def has_closed_form(self) -> bool:
        """Whether the function belongs to one of the two families."""
        return self.slope is not None or self.alpha is not None

    def at_zero(self) -> tuple[Value, Value, Value]:
        """Returns f(0) and the slopes just below and just above zero."""
        if self.slope is not None:
            return 0.0, self.slope, 1.0
        if self.alpha is not None and self.beta is not None:
            return 0.0, self.scale * self.alpha * self.beta, self.scale
        points = torch.tensor([[0.0], [-_AT_ZERO], [_AT_ZERO]], dtype=torch.float64, device="cpu")
        points = points.repeat(1, self.channels)
        with torch.no_grad():
            value = self.apply(points)[0]
        below, above = self.derivative(points)[1:]
        return as_value(value), as_value(below), as_value(above)

    def moments(
        self, mean: Value = 0.0, variance: Value = 1.0, *, maximum_of: int = 1
    ) -> tuple[Value, Value]:
        """Returns E[f(y)] and E[f(y)^2] for y ~ N(mean, variance), per channel if channels differ.

        Uses a closed form for the leaky family, and for the exponential family if the mean is 0;
        otherwise uses quadrature.

        Args:
            mean: mean of y.
            variance: variance of y.
            maximum_of: number of independent y, of which f is applied to the largest.
        """
        if maximum_of == 1 and self.slope is not None:
            found = leaky_moments(self.slope, mean, variance)
            return as_value(found[0]), as_value(found[1])
        is_centered = not isinstance(mean, Tensor) and mean == 0
        if maximum_of == 1 and self.alpha is not None and self.beta is not None and is_centered:
            first, second = self._exponential_moments(self.alpha, self.beta, variance)
            return self.scale * first, self.scale**2 * second
        if self.channels > 1:
            mean, variance = fit(mean, self.channels), fit(variance, self.channels)

        @torch.no_grad()
        def integrate() -> tuple[Value, Value]:
            found = quadrature_moments(self.apply, mean, variance, self.kinks, maximum_of)
            return as_value(found[0]), as_value(found[1])

        if isinstance(mean, Tensor) or isinstance(variance, Tensor):
            return integrate()
        return remembered(("moments", self.key), (mean, variance, maximum_of), integrate)

    def _exponential_moments(
        self, alpha: Value, beta: Value, variance: Value
    ) -> tuple[Value, Value]:
        def calculate() -> tuple[Value, Value]:
            first, second = moments(alpha, beta, variance)
            return as_value(first), as_value(second)

        if isinstance(variance, Tensor):
            return calculate()
        # A deep network asks for the same moments hundreds of times.
        return remembered(("moments", self.key), (variance,), calculate)

    def squared_slope(self, mean: Value = 0.0, variance: Value = 1.0) -> Value:
        """Returns E[f'(y)^2] for y ~ N(mean, variance), per channel if channels differ.

        This is the factor by which a layer of weights with variance 1/n scales the gradient. Both
        families have a closed form.
        """
        if isinstance(mean, Tensor) or isinstance(variance, Tensor):
            return self._squared_slope(mean, variance)
        return remembered(
            ("slope", self.key), (mean, variance), lambda: self._squared_slope(mean, variance)
        )

    def _squared_slope(self, mean: Value, variance: Value) -> Value:
        if self.slope is not None:
            center = to_float64(mean)
            sigma = to_float64(variance).sqrt().clamp(min=torch.finfo(torch.float64).tiny)
            above = torch.special.ndtr(center / sigma)
            return as_value(above + to_float64(self.slope) ** 2 * (1 - above))
        if self.alpha is not None and self.beta is not None:
            found = squared_slope(self.alpha, self.beta, mean, variance)
            return as_value(to_float64(self.scale) ** 2 * found)
        if self.channels > 1:
            mean, variance = fit(mean, self.channels), fit(variance, self.channels)
        return as_value(quadrature_moments(self.derivative, mean, variance, self.kinks)[1])

    def sensitivity(self, variance: float) -> float:
        """Returns d log E[f^2] / d log Var(y), the growth of a relative error in the variance.

        It is 1 for ReLU, below 1 for ELU, and above 1 for GELU and SiLU. In the two families the
        tangents bound |f|, so the sensitivity is at most 1 and is taken as 1.
        """
        if self.has_closed_form or not 0 < variance < math.inf:
            return 1.0
        near = round(variance, 6) or variance

        def calculate() -> float:
            step = 1.01
            before, after = (average(self.moments(0.0, at)[1]) for at in (near, near * step))
            if not before > 0 or not after > 0:
                return 1.0
            return math.log(after / before) / math.log(step)

        return remembered(("sensitivity", self.key), (near,), calculate)

    def derivative(self, points: Tensor) -> Tensor:
        """Returns f' at float64 [points, channels]; at a kink, one of the slopes on either side.

        Uses autograd, or finite differences where the function has no graph, one of its operations
        has no derivative, or autograd returns no finite number.
        """
        found = None
        # Tensors created in inference mode can't have gradients.
        with torch.inference_mode(False), torch.enable_grad():
            own = points.detach().clone().requires_grad_()
            with contextlib.suppress(RuntimeError):
                values = self.apply(own)
                if values.requires_grad:
                    (found,) = torch.autograd.grad(values.sum(), own, allow_unused=True)
        if found is not None and found.sum().isfinite():
            return found
        with torch.no_grad():
            rise = (self.apply(points + _STEP) - self.apply(points - _STEP)) / (2 * _STEP)
        return rise if found is None else torch.where(found.isfinite(), found, rise)


def exponential(
    alpha: float | Tensor, beta: float | Tensor, scale: float | Tensor = 1.0, name: str = "MPELU"
) -> ElementwiseFunction:
    """Returns the function scale y for y > 0, scale alpha (e^(beta y) - 1) otherwise.

    Example:
        >>> mean, second = exponential(1.0, 1.0).moments()
        >>> round(mean, 4), round(second, 4)
        (0.1605, 0.6449)
    """
    alphas, betas, scales = as_value(alpha), as_value(beta), as_value(scale)

    def apply(y: Tensor) -> Tensor:
        return scales * torch.where(y > 0, y, alphas * torch.expm1(betas * y.clamp(max=0)))

    values = (alphas, betas, scales)
    is_shared = not any(isinstance(each, Tensor) for each in values)
    return ElementwiseFunction(
        name=name,
        apply=apply,
        channels=1 if is_shared else max(map(size_of, values)),
        alpha=alphas,
        beta=betas,
        scale=scales,
        key=("exponential", *values) if is_shared else None,
    )


def leaky(slope: float | Tensor, name: str = "leaky ReLU") -> ElementwiseFunction:
    """Returns the function y for y > 0, slope y otherwise.

    Example:
        >>> [round(moment, 4) for moment in leaky(0.0).moments()]
        [0.3989, 0.5]
    """
    slopes = as_value(slope)
    return ElementwiseFunction(
        name=name,
        apply=lambda y: torch.where(y > 0, y, slopes * y),
        channels=size_of(slopes),
        slope=slopes,
        key=None if isinstance(slopes, Tensor) else ("leaky", slopes),
    )


LINEAR = leaky(1.0, "linear")


def probed(
    name: str, apply: Callable[[Tensor], Tensor], channels: int = 1, key: Hashable = None
) -> ElementwiseFunction:
    """Returns the description of a function that is known only by running it.

    Args:
        name: name shown in reports.
        apply: maps float64 [points, channels] to the same shape.
        channels: number of channels it has parameters for.
        key: everything its owner knows to determine its values.
    """
    points = torch.linspace(-8, 8, 257, dtype=torch.float64, device="cpu")
    points = points.unsqueeze(1).expand(-1, channels)
    with torch.no_grad():
        values = apply(points)
    slope, shift = values[-1] - values[-17], values[128]  # over a distance of one, and at zero
    is_affine = torch.allclose(values, slope * points + shift, rtol=1e-6, atol=0)
    return ElementwiseFunction(
        name=name,
        apply=apply,
        channels=channels,
        kinks=LIKELY_KINKS,
        affine=(as_value(slope), as_value(shift)) if is_affine else None,
        # Includes the values, since a function may depend on state outside its module.
        key=None if key is None else (key, key_of_value(values)),
    )


Result = TypeVar("Result")
_MOST = 4096
_remembered: dict[Hashable, Any] = {}


def remembered(
    what: tuple[str, Hashable], arguments: tuple[Hashable, ...], calculate: Callable[[], Result]
) -> Result:
    """Returns the cached result for a function and arguments; calculates anew without a key.

    The cache holds only values, so that it keeps no model alive, and drops its oldest entries. Its
    contents don't depend on the first caller's mode, such as inference mode.

    Args:
        what: name of the calculation, and key of the function.
        arguments: everything else that determines the result.
        calculate: function that calculates the result if it isn't cached.
    """
    if what[1] is None:
        with plain_tensors():
            return calculate()
    place = (what, arguments)
    if place not in _remembered:
        with plain_tensors():
            found = calculate()
        while len(_remembered) >= _MOST:
            _remembered.pop(next(iter(_remembered)), None)
        _remembered[place] = found
    held: Result = _remembered[place]
    return held


def key_of_module(module: nn.Module) -> Hashable | None:
    """Returns a key that modules of one class with equal parameters, buffers and attributes share.

    Returns None if an attribute can't be compared by value. Keeps neither module nor class alive.
    """
    own = {name: value for name, value in vars(module).items() if name not in _BOOKKEEPING}
    key = key_of_value(own)
    return None if key is None else (weakref.ref(type(module)), key)


_BOOKKEEPING = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
"""Attributes of every module that don't affect what it computes: hooks and the mode."""


def key_of_value(value: Any) -> Hashable | None:
    """Returns a key that equal values of one type share; None if only identity can be compared."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes, torch.dtype, torch.device, torch.Size):
        return kind, value
    if kind is types.BuiltinFunctionType:
        is_bound = not isinstance(value.__self__, (type(None), type, types.ModuleType))
        return None if is_bound else (kind, value)
    if kind in (float, complex):
        return kind, repr(value)  # tells 0.0 from -0.0; NaNs are equal
    if kind in (nn.Parameter, Tensor):
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        if value.layout != torch.strided or value.is_meta or is_wrapped:
            return None
        held = value.detach().clone().cpu().resolve_conj().resolve_neg().contiguous()
        content = ctypes.string_at(held.data_ptr(), held.nbytes) if held.nbytes else b""
        return kind, value.dtype, value.shape, hashlib.sha256(content).digest()
    if kind in (tuple, list):
        items = tuple(map(key_of_value, value))
    elif kind in (dict, OrderedDict):
        items = tuple(map(key_of_value, (*value.keys(), *value.values())))
    elif kind in (set, frozenset):
        found = frozenset(map(key_of_value, value))
        return None if None in found else (kind, found)
    else:
        return None
    return None if None in items else (kind, items)
