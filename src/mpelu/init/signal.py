"""Mean and variance of what flows between the calls of a model, and how they combine.

A number that is the same for all channels is a plain float. Most are, and walking through a deep
network is several times as fast as with one-element tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mpelu.elementwise import (
    LINEAR,
    ElementwiseFunction,
    Value,
    as_value,
    average,
    fit,
    size_of,
)
from mpelu.graph import Call

NEGLIGIBLE = 30.0
"""Factor between second moments beyond which first-order rules ignore the smaller addend."""
UNSTABLE = 3.0
"""Growth of a relative error in the variance beyond which a prediction is doubtful."""


@dataclass(frozen=True)
class Note:
    """What was assumed about a weight, or why it was left unchanged."""

    text: str
    group: str = ""
    """Text for all notes of the kind in a summary, if their own texts differ."""
    lasts: bool = False
    """Whether it still holds if a measurement on one batch agrees with the prediction."""


UNSTABLE_NOTE = Note(
    "a small error in the variance grows more than threefold on the way", lasts=True
)


@dataclass(frozen=True)
class Source:
    """Where a signal comes from: an activation, an input, or an operation without a rule."""

    name: str
    activation: ElementwiseFunction
    is_operation: bool = False
    """Whether it is a step of a computation, neither an activation nor a layer."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Moments of a tensor; the defaults describe a standard normal variable."""

    mean: Value = 0.0
    variance: Value = 1.0
    first_order: Value = 1.0
    """Second moment according to a first-order rule."""
    sources: tuple[Source, ...] = ()
    channels: int | None = None
    before: tuple[ElementwiseFunction, Value, Value] | None = None
    """Activation whose output this is, if any, with the mean and variance of its input."""
    layer: int | None = None
    """Index of the call to the layer whose output this is, apart from operations that keep it."""
    doubts: tuple[Note, ...] = ()
    """Assumptions made since the last norm."""
    growth: float = 1.0
    """Factor by which a relative error in the variance has grown since the last norm; negative for
    an inverse, which a hand-written norm multiplies by, so that the two cancel."""

    @property
    def second(self) -> Value:
        return self.variance + self.mean * self.mean  # a power of a float may overflow

    @property
    def slope_before(self) -> float:
        """E[f'^2] of the activation `before`, averaged over channels; 1 without one."""
        if self.before is None:
            return 1.0
        activation, mean, variance = self.before
        if not isinstance(variance, Tensor):
            variance = round(variance, 9) or variance  # layers of one shape share a calculation
        return average(activation.squared_slope(mean, variance))

    @property
    def overall_variance(self) -> float:
        """Variance over all channels together."""
        return average(self.second) - average(self.mean) ** 2


FirstOrder = Callable[[ElementwiseFunction], Value]


def input_signal(call: Call) -> Signal:
    """Returns the moments of an example input by channel; without one, standard normal moments."""
    sources = (Source("input", LINEAR),)
    values = call.args[0] if call.args else None
    if not isinstance(values, Tensor) or not values.is_floating_point() or not _has_values(values):
        return Signal(sources=sources)
    values = values.detach().to("cpu", torch.float64)
    if values.dim() < 2:
        mean, variance = values.mean().item(), values.var(correction=0).item()
        return Signal(mean=mean, variance=variance, sources=sources)
    by_channel = values.transpose(0, 1).flatten(1)
    return Signal(
        mean=by_channel.mean(1),
        variance=by_channel.var(1, correction=0),
        sources=sources,
        channels=values.size(1),
    )


def constant_signal(value: float | Tensor) -> Signal:
    """Represents a number, one number per channel, or the moments of a tensor of any shape."""
    if isinstance(value, Tensor):
        if not _has_values(value) or value.numel() == 0 or value.is_complex():
            return Signal()
        values = value.detach().to("cpu", torch.float64)
        values = torch.where(values.isfinite(), values, 0.0)  # masks have infinities
        if sum(size > 1 for size in values.shape) > 1:
            mean, variance = values.mean().item(), values.var(correction=0).item()
            return Signal(mean=mean, variance=variance, first_order=variance + mean**2)
        number = as_value(values)
        channels = values.numel() if values.numel() > 1 else None
        return Signal(mean=number, variance=0.0, first_order=number**2, channels=channels)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # part of a shape under construction
        return Signal()
    return Signal(mean=number, variance=0.0, first_order=number**2)


def unknown_signal(call: Call, inputs: Sequence[Signal] = ()) -> Signal:
    """Assumes unit variance, for want of anything better."""
    doubt = Note(
        f"fed by {call.name}, which has no rule; unit variance was assumed",
        "fed by operations without a rule; unit variance was assumed",
    )
    doubts = _all_doubts([*inputs, Signal(doubts=(doubt,))])
    return Signal(sources=(Source(call.name, LINEAR, is_operation=True),), doubts=doubts)


def doubted(signal: Signal, doubt: Note) -> Signal:
    """Adds a note for every weight that the signal feeds before the next norm."""
    return signal if doubt in signal.doubts else replace(signal, doubts=(*signal.doubts, doubt)[:4])


def mixed(signal: Signal) -> Signal:
    """Returns the signal with its channels in an unknown order."""
    if not isinstance(signal.variance, Tensor) and not isinstance(signal.mean, Tensor):
        return replace(signal, channels=None, before=None, layer=None)
    return Signal(
        mean=average(signal.mean),
        variance=signal.overall_variance,
        first_order=average(signal.first_order),
        sources=signal.sources,
        doubts=signal.doubts,
        growth=signal.growth,
    )


def activated(
    signal: Signal, name: str, activation: ElementwiseFunction, first_order: FirstOrder
) -> Signal:
    """Returns the signal after an activation."""
    if activation is LINEAR:
        return signal
    if activation.affine is not None:
        scale, shift = (
            Signal(mean=value, variance=0.0, first_order=value**2) for value in activation.affine
        )
        return added(multiplied(signal, scale), shift)
    mean, variance = signal.mean, signal.variance
    if activation.channels > 1:
        mean, variance = fit(mean, activation.channels), fit(variance, activation.channels)
    first, variance_after = _spread(activation, mean, variance)
    growth = signal.growth * activation.sensitivity(average(variance))
    by_rule = first_order(activation)
    after = Signal(
        mean=first,
        variance=variance_after,
        first_order=by_rule if math.isfinite(average(by_rule)) else variance_after + first * first,
        sources=(Source(name, activation),),
        channels=signal.channels,
        before=(activation, mean, variance),
        doubts=signal.doubts,
        growth=max(1.0, growth),
    )
    if growth > UNSTABLE:
        return doubted(after, UNSTABLE_NOTE)
    return after


def _spread(
    activation: ElementwiseFunction, mean: Value, variance: Value, maximum_of: int = 1
) -> tuple[Value, Value]:
    """Returns the mean and variance after an activation."""
    first, second = activation.moments(mean, variance, maximum_of=maximum_of)
    spread = second - first * first
    return first, spread.clamp(min=0) if isinstance(spread, Tensor) else max(0.0, spread)


def added(one: Signal, other: Signal, sign: int = 1) -> Signal:
    """Returns the sum or difference of independent signals.

    Its first-order moment is the mean of theirs, or the larger addend's if the other contributes
    next to nothing, as with a small learned scale.
    """
    one, other = _of_one_size([one, other])
    second, other_second = average(one.second), average(other.second)
    if not one.sources or not other.sources:
        moment = other.first_order if not one.sources else one.first_order
    elif max(second, other_second) > NEGLIGIBLE * min(second, other_second):
        moment = one.first_order if second > other_second else other.first_order
    else:
        moment = (one.first_order + other.first_order) / 2
    return Signal(
        mean=one.mean + sign * other.mean,
        variance=one.variance + other.variance,
        first_order=moment,
        sources=_merged([one, other]),
        channels=one.channels or other.channels,
        doubts=_all_doubts([one, other]),
        growth=max(one.growth, other.growth),
    )


def multiplied(one: Signal, other: Signal) -> Signal:
    """Returns the product of independent signals."""
    one, other = _of_one_size([one, other])
    mean = one.mean * other.mean
    # If both depend on the input, relative errors in their variances add up.
    growths = one.growth, other.growth
    both_depend = bool(one.sources and other.sources)
    return Signal(
        mean=mean,
        variance=one.second * other.second - mean**2,
        first_order=one.first_order * other.first_order,
        sources=_merged([one, other]),
        channels=one.channels or other.channels,
        doubts=_all_doubts([one, other]),
        growth=max(1.0, sum(growths)) if both_depend else max(growths),
    )


def contracted(one: Signal, other: Signal, count: int) -> Signal:
    """Sums `count` products of independent signals, as in the entries of a matrix product."""
    product = multiplied(mixed(one), mixed(other))
    return replace(product, mean=count * product.mean, variance=count * product.variance)


def concatenated(signals: Sequence[Signal], along_channels: bool) -> Signal:
    """Concatenates along the channels if their numbers are known; otherwise averages moments."""
    joined = Signal(
        sources=_merged(signals),
        doubts=_all_doubts(signals),
        growth=max(signal.growth for signal in signals),
    )
    known = [signal.channels for signal in signals if signal.channels is not None]
    if len(known) < len(signals) or not along_channels:
        count = len(signals)
        mean = sum(average(signal.mean) for signal in signals) / count
        second = sum(average(signal.second) for signal in signals) / count
        moment = sum(average(signal.first_order) for signal in signals) / count
        return replace(joined, mean=mean, variance=second - mean**2, first_order=moment)
    means, variances, moments = (
        torch.cat([fit(value, size) for value, size in zip(values, known, strict=True)])
        for values in (
            [signal.mean for signal in signals],
            [signal.variance for signal in signals],
            [signal.first_order for signal in signals],
        )
    )
    return replace(joined, mean=means, variance=variances, first_order=moments, channels=sum(known))


def pooled(signal: Signal, kind: str, count: int) -> Signal:
    """Returns the signal after "avg" or "max" over `count` values, assumed to be independent."""
    if count == 1:
        return signal
    if kind == "avg":
        return replace(signal, variance=signal.variance / count, before=None, layer=None)
    activation, mean, variance = signal.before or (LINEAR, signal.mean, signal.variance)
    first, variance_after = _spread(activation, mean, variance, maximum_of=count)
    return replace(signal, mean=first, variance=variance_after, before=None, layer=None)


def _merged(signals: Sequence[Signal]) -> tuple[Source, ...]:
    # A few names are enough; long chains of additions would collect thousands.
    sources = {source.name: source for signal in signals for source in signal.sources}
    return tuple(sources.values())[:4]


def _all_doubts(signals: Sequence[Signal]) -> tuple[Note, ...]:
    if not any(signal.doubts for signal in signals):
        return ()
    return tuple(dict.fromkeys(doubt for signal in signals for doubt in signal.doubts))[:4]


def _of_one_size(signals: Sequence[Signal]) -> list[Signal]:
    sizes = {
        size_of(value)
        for signal in signals
        for value in (signal.mean, signal.variance, signal.first_order)
    }
    return [*signals] if len(sizes - {1}) < 2 else [mixed(signal) for signal in signals]


def _has_values(tensor: Tensor) -> bool:
    """Returns whether a tensor can be read: it isn't on the meta device, fake or inside vmap."""
    return not (
        tensor.is_meta
        or isinstance(tensor, torch._subclasses.FakeTensor)
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or tensor.layout != torch.strided
    )
