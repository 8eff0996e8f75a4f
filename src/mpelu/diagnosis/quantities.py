"""Defines what is measured: signal, gradient, and dead, saturated and linear units.

`mpelu.diagnose` and the lab's inspection share these definitions. The signal is the variance of
each value between samples, averaged over values. The gradient at an output is the mean square of
its elements. A unit is a channel of an activation, and is

- dead if it has the same output and slope zero for every input,
- saturated if the absolute slope is below `FLAT_SLOPE` at half of its inputs or more, and the
  activation isn't flat on one side, as ReLU is,
- linear if a line leaves less than `LINEAR_REST` of the variance of its outputs.

A dead unit is neither saturated nor linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.activations import TABLE, describe, find_activation
from mpelu.elementwise import LINEAR
from mpelu.graph import (
    Call,
    Channels,
    Inputs,
    elementwise_function,
    find_channels,
    isolated,
    record,
    substitute,
    tensors_in,
)

FLAT_SLOPE = 0.01
"""An input is saturated where the absolute slope is below this."""
LINEAR_REST = 1e-3
"""A unit is linear where a line leaves less than this share of its outputs' variance."""
_FLAT_SHARE = 0.4
"""An activation that is flat on this share of a standard Gaussian is one-sided."""
_MOST_POINTS = 4096
"""Number of points at which that Gaussian is sampled."""
_RANGE, _POINTS = 6.0, 64
"""A flat part of an unknown function is looked for at this many points between -6 and 6."""
_NAMES = {name.lower() for name in nn.modules.activation.__all__} | {
    name.replace("_", "") for name in TABLE
}
_LEARNED = ("prelu", "mpelu")
"""Functions that take a parameter per channel."""
_NO_ACTIVATIONS = {"identity", "softmax", "softmin", "logsoftmax", "softmax2d", "glu"}

Function = Callable[[Tensor], Tensor]


class Moments:
    """Mean, population variance and signal of one or more batches, in float64.

    Subtracts the means before squaring, which is as exact as torch.var and many times faster along
    the first dimension. Merges batches by the rule of Chan, Golub and LeVeque, which avoids
    cancellation.

    Example:
        >>> moments = Moments()
        >>> moments.add(torch.tensor([[1.0, 4.0], [3.0, 4.0]]), batch=2)
        >>> moments.mean, moments.variance, moments.signal
        (3.0, 1.5, 1.0)
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of samples."""

    @classmethod
    def of(cls, values: Tensor, batch: int) -> Moments:
        """Returns the moments of one batch."""
        moments = cls()
        moments.add(values, batch)
        return moments

    def add(self, values: Tensor, batch: int) -> None:
        """Adds a batch of samples.

        Args:
            values: tensor of real numbers.
            batch: number of samples; 1 if they can't be told apart.
        """
        samples = _by_sample(values.detach().double(), batch)
        means, count = samples.mean(0), len(samples)
        inside = (samples - means).square_().sum()
        if self.count == 0:
            self._means, self._inside = means, inside
        else:
            change, total = means - self._means, self.count + count
            self._means = self._means + change * count / total
            between = change.square().sum() * self.count * count / total
            self._inside = self._inside + (inside + between)
        self.count += count

    @property
    def mean(self) -> float:
        """Mean of all values."""
        return self._means.mean().item()

    @property
    def variance(self) -> float:
        """Population variance of all values."""
        return self._between() + self._within()

    @property
    def signal(self) -> float:
        """Variance of each value between samples, averaged over values.

        With a single sample, it is the variance of all values.
        """
        if self.count == 1:
            return self._between()
        return self._within() * (self.count / (self.count - 1))

    def _between(self) -> float:
        return (self._means - self._means.mean()).square_().mean().item()

    def _within(self) -> float:
        return (self._inside / (self.count * self._means.numel())).item()


def _by_sample(values: Tensor, batch: int) -> Tensor:
    """Reshapes to [batch, values of a sample], or [1, values] if samples can't be told apart."""
    if batch > 1 and values.size(0) % batch == 0:  # also windows or heads folded into the batch
        return values.reshape(batch, -1)
    if batch > 1 and values.dim() > 1 and values.size(1) == batch:
        return values.transpose(0, 1).reshape(batch, -1)
    return values.reshape(1, -1)


def mean_square(values: Tensor) -> float:
    """Returns the mean square in float64, the measure of the gradient at an output.

    Example:
        >>> mean_square(torch.tensor([3.0, 4.0]))
        12.5
    """
    return values.detach().double().square().mean().item()


def is_measurable(value: Tensor) -> bool:
    """Whether a tensor has real numbers that can be read."""
    return (
        value.is_floating_point()
        and value.layout == torch.strided
        and value.numel() > 0
        and value.dim() > 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)  # inside vmap
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitShares:
    """The number of an activation's units, and shares of them between 0 and 1."""

    units: int
    dead: float
    saturated: float | None
    """None for activations that are flat on one side, and for functions not known by name."""
    linear: float | None
    """None for functions not known by name."""


class UnitCounter:
    """Counts the dead, saturated and linear units of an activation over one or more batches.

    Args:
        function: elementwise function of one tensor.
        axis: dimension of the units.
        is_known: whether the function is an activation by its name. For other functions, only dead
            units are counted: a function that clips values is meant to be linear most of the time.

    Example:
        >>> counter = UnitCounter(torch.relu, axis=1)
        >>> counter.add(torch.tensor([[1.0, -1.0], [2.0, -3.0]]))
        >>> counter.shares()
        UnitShares(units=2, dead=0.5, saturated=None, linear=0.5)
    """

    def __init__(self, function: Function, axis: int, *, is_known: bool = True) -> None:
        self._function, self._axis, self._is_known = function, axis, is_known
        self._is_one_sided = False
        self.count = 0
        """Number of inputs of each unit."""

    @classmethod
    def of(cls, module: nn.Module, axis: int) -> UnitCounter:
        """Returns a counter for a copy of a module, without hooks and in evaluation mode."""
        return cls(isolated(module), axis, is_known=_is_named(module))

    def add(self, values: Tensor) -> None:
        """Adds a batch of inputs."""
        values = values.detach()
        outputs, slopes = with_slopes(self._function, values)
        results, steep = self._by_unit(outputs), self._by_unit(slopes)
        low, high, is_level = results.amin(1), results.amax(1), (steep == 0).all(1)
        if self.count == 0:
            self.low, self.high, self._is_level = low, high, is_level
        else:
            self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
            self._is_level = self._is_level & is_level
        if self._is_known:
            flat = (steep.abs() < FLAT_SLOPE).sum(1)
            x, y = self._by_unit(values).double(), results.double()
            line = _Line.through(x, y)
            if self.count == 0:
                self._is_one_sided = _is_one_sided(self._function, values, self._axis)
                self._flat, self._line = flat, line
            else:
                self._flat = self._flat + flat
                self._line = self._line.joined(line)
        self.count += results.size(1)

    def shares(self) -> UnitShares:
        """Returns the shares over all batches."""
        is_dead = self._is_level & (self.low == self.high)
        dead = is_dead.double().mean().item()
        if not self._is_known:
            return UnitShares(units=len(is_dead), dead=dead, saturated=None, linear=None)
        is_saturated = (2 * self._flat >= self.count) & ~is_dead
        is_linear = self._line.fits() & ~is_dead
        return UnitShares(
            units=len(is_dead),
            dead=dead,
            saturated=None if self._is_one_sided else is_saturated.double().mean().item(),
            linear=is_linear.double().mean().item(),
        )

    def _by_unit(self, values: Tensor) -> Tensor:
        return values.movedim(self._axis, 0).flatten(1)


@dataclass(frozen=True, slots=True)
class _Line:
    """Sums for the linear regression of y on x, for each unit."""

    count: int
    means: Tensor
    """Means of x and y."""
    products: Tensor
    """Sums of the products xx, yy and xy of their deviations."""

    @classmethod
    def through(cls, x: Tensor, y: Tensor) -> _Line:
        """Returns the sums for float64 tensors [units, values]."""
        means = torch.stack((x.mean(1), y.mean(1)))
        x, y = x - means[0, :, None], y - means[1, :, None]
        products = ((a * b).sum(1) for a, b in ((x, x), (y, y), (x, y)))
        return cls(x.size(1), means, torch.stack(tuple(products)))

    def joined(self, other: _Line) -> _Line:
        """Merges two sets of values by the rule of Chan, Golub and LeVeque."""
        total, change = self.count + other.count, other.means - self.means
        x, y = change.unbind()
        between = torch.stack((x * x, y * y, x * y)) * (self.count * other.count / total)
        means = self.means + change * (other.count / total)
        return _Line(total, means, self.products + other.products + between)

    def fits(self) -> Tensor:
        """Whether y varies, and a line leaves less than `LINEAR_REST` of its variance."""
        xx, yy, xy = self.products.unbind()
        rest = yy - xy**2 / xx.clamp(min=torch.finfo(torch.float64).tiny)
        return (yy > 0) & (rest < LINEAR_REST * yy)


def with_slopes(function: Function, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a function's outputs, and its slope at each value."""
    with torch.enable_grad():
        leaf = values.clone().requires_grad_()
        outputs = function(leaf * 1)  # a copy: the function may work in place
        (slopes,) = torch.autograd.grad(outputs.sum(), leaf)
    return outputs.detach(), slopes


def _is_one_sided(function: Function, values: Tensor, axis: int) -> bool:
    """Whether the activation is flat on one side of zero."""
    if axis > 0:  # some samples are enough
        values = values[: math.ceil(_MOST_POINTS / max(1, values[0].numel()))]
    count = values.numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    normal = torch.special.ndtri((order + 0.5) / count).reshape(values.shape)
    _, slopes = with_slopes(function, normal.to(values.device, values.dtype))
    return bool((slopes.abs() < FLAT_SLOPE).double().mean() > _FLAT_SHARE)


def units_of_call(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], channels: Sequence[Channels | None]
) -> UnitShares | None:
    """Returns the units of the activation that a call is about to apply, or None.

    An activation is known by its class or name. Any other function is one if it is elementwise and
    has a flat part, such as clamp(min=0).

    Args:
        call: recorded call.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
        channels: where the output of each call has its channels.
    """
    found = _activation(call.target, call.operation, args, kwargs)
    if found is None:
        return None
    function, values, is_known = found
    counter = UnitCounter(function, unit_axis(call, values.dim(), channels), is_known=is_known)
    counter.add(values)
    return counter.shares()


def unit_axes(model: nn.Module, inputs: Inputs) -> dict[str, int]:
    """Returns the dimension in which a module would have its units, by the module's path.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Tanh())
        >>> axes = unit_axes(model, torch.randn(2, 3, 8, 8))
        >>> axes["1"], axes["3"]
        (1, 1)
    """
    calls, _ = record(model, inputs)
    channels = find_channels(calls)
    return {
        call.name: unit_axis(call, len(call.shape), channels)
        for call in reversed(calls)
        if isinstance(call.target, nn.Module) and call.shape
    }


def unit_axis(call: Call, ndim: int, channels: Sequence[Channels | None]) -> int:
    """Returns the dimension of an activation's units.

    An activation with a parameter per channel has its units there. Others have them where the layer
    that made their input has its channels.

    Args:
        call: call of the activation.
        ndim: number of dimensions of its input.
        channels: where the output of each call has its channels.
    """
    target: Any = call.target
    if isinstance(target, nn.Module):
        own: list[Tensor] = list(target.parameters(recurse=False))
        axis = getattr(target, "dim", 1 if call.operation in _LEARNED else None)
    else:
        own = tensors_in((call.args[1:], call.kwargs)) if call.operation in _LEARNED else []
        axis = call.argument(4, "dim", 1)
    if isinstance(axis, int) and any(each.numel() > 1 for each in own):
        return axis % ndim
    made = (channels[index] for index in call.fed_by if index < len(channels))
    found = next((each for each in made if each is not None), None)
    if found is not None:
        return found.dim % ndim
    return 1 if ndim in (2, 4, 5) else ndim - 1


def _is_named(module: nn.Module) -> bool:
    """Whether a module is an activation by its class."""
    return find_activation(module) is not None or type(module).__name__.lower() in _NAMES


Found = tuple[Function, Tensor, bool]
"""An elementwise function, its input, and whether it is an activation by its name."""


def _activation(
    target: Any, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Found | None:
    """Returns the activation that a call applies to a tensor, or None."""
    values: Any = args[0] if args else next(iter(kwargs.values()), None)
    is_batch = isinstance(values, Tensor) and values.dim() > 1 and is_measurable(values)
    if isinstance(target, nn.Module):
        # The module's own forward runs no hooks, and isn't recorded.
        forward = getattr(target.forward, "__wrapped__", target.forward)
        if not _is_named(target):
            is_own = not type(target).__module__.startswith("torch.nn")
            return _clipping(forward, args, kwargs) if is_own else None
        function = describe(target)
        is_activation = function is not None and function is not LINEAR and is_batch
        return (forward, values, True) if is_activation else None
    if operation not in _NAMES:
        return _clipping(target, args, kwargs)
    if operation in _NO_ACTIVATIONS or not args or not is_batch:
        return None
    # In-place functions are harmless: `with_slopes` passes a copy of the input.
    return lambda y: target(y, *args[1:], **kwargs), values, True


def _clipping(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found | None:
    """Returns the clipping function that a call applies to its one tensor with a gradient, or None.

    The function must be elementwise, and constant on one part of the line but not on another. Other
    tensors have to hold a single value, as zeros_like(x) does in maximum(x, zeros_like(x)).
    """
    tensors = tensors_in((args, kwargs))
    learned = [each for each in tensors if each.requires_grad]
    if len(learned) != 1 or not callable(target):
        return None
    values = learned[0]
    if isinstance(values, nn.Parameter) or values.dim() < 2 or not is_measurable(values):
        return None
    numbers = {id(each): _number(each) for each in tensors if each is not values}
    if any(each is None for each in numbers.values()):
        return None

    def called(y: Tensor, *, others: dict[int, Any]) -> Tensor:
        now = substitute(
            (args, kwargs), Tensor, lambda each: y if each is values else others[id(each)]
        )
        output: Tensor = target(*now[0], **now[1])
        return output

    on_noise = partial(called, others=numbers)
    found = elementwise_function(on_noise, "", 1, values.dim())
    if found is None or found is LINEAR or not _has_flat_part(on_noise, values.dim()):
        return None
    given = {id(each): each for each in tensors}
    return partial(called, others=given), values, False


def _number(values: Tensor) -> Tensor | None:
    """Returns the single value that a tensor holds, on the CPU, or None."""
    if values.numel() == 0 or torch._C._functorch.is_functorch_wrapped_tensor(values):
        return None
    first = values.flatten()[0]
    return first.cpu() if bool((values == first).all()) else None


def _has_flat_part(function: Function, dims: int) -> bool:
    points = torch.linspace(-_RANGE, _RANGE, _POINTS, dtype=torch.float64)
    try:
        _, slopes = with_slopes(function, points.reshape(-1, *[1] * (dims - 1)))
    except RuntimeError:  # its outputs have no gradient
        return False
    return 0 < int((slopes == 0).sum()) < _POINTS
