"""Mean and variance of what flows between the calls of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mpelu.init.activations import LINEAR, Activation, gaussian_moments
from mpelu.init.channels import Value, as_value, average, fit, size_of
from mpelu.init.graph import Call


@dataclass(frozen=True)
class Source:
    """Where a signal comes from: an activation, an input, or something not understood."""

    name: str
    activation: Activation
    doubt: str = ""
    """What was assumed for want of knowledge."""


@dataclass(frozen=True)
class Signal:
    """Moments of a tensor."""

    mean: Value
    variance: Value
    factor: Value
    """What a first-order rule takes for the second moment."""
    sources: tuple[Source, ...]
    channels: int | None = None
    before: tuple[Activation, Value, Value] | None = None
    """For an activation's output: the activation, mean and variance it came from."""
    layer: int | None = None
    """Index of the call of the layer whose output this is, up to operations that keep it."""

    @property
    def second(self) -> Value:
        return self.variance + self.mean**2

    @property
    def overall_variance(self) -> float:
        """Over all channels together."""
        return average(self.second) - average(self.mean) ** 2


Factor = Callable[[Activation], Value]


def input_signal(call: Call) -> Signal:
    """Moments of an example input by channel; a standard normal variable if there is none."""
    sources = (Source("input", LINEAR),)
    if not call.args or not call.args[0].is_floating_point():
        return Signal(0.0, 1.0, 1.0, sources)
    values = call.args[0].detach().to("cpu", torch.float64)
    if values.dim() < 2:
        return Signal(values.mean().item(), values.var(correction=0).item(), 1.0, sources)
    by_channel = values.transpose(0, 1).flatten(1)
    mean, variance = by_channel.mean(1), by_channel.var(1, correction=0)
    return Signal(mean, variance, 1.0, sources, values.size(1))


def constant_signal(value: float | Tensor) -> Signal:
    """A number, one for each channel, or a tensor of any shape taken by its moments."""
    if isinstance(value, Tensor):
        values = value.detach().to("cpu", torch.float64)
        if sum(size > 1 for size in values.shape) > 1:
            mean, variance = values.mean().item(), values.var(correction=0).item()
            return Signal(mean, variance, variance + mean**2, ())
        number = as_value(values)
        channels = values.numel() if values.numel() > 1 else None
        return Signal(number, 0.0, number**2, (), channels)
    return Signal(float(value), 0.0, float(value) ** 2, ())


def unknown_signal(call: Call) -> Signal:
    """Unit variance, for want of anything better."""
    doubt = f"fed by {call.name}, which is not understood; taken as of unit variance"
    return Signal(0.0, 1.0, 1.0, (Source(call.name, LINEAR, doubt),))


def mixed(signal: Signal) -> Signal:
    """The signal with its channels in an unknown order."""
    mean = average(signal.mean)
    factor = average(signal.factor)
    return Signal(mean, signal.overall_variance, factor, signal.sources)


def activated(signal: Signal, name: str, activation: Activation, factor: Factor) -> Signal:
    """The signal after an activation."""
    if activation is LINEAR:
        return signal
    mean, variance = signal.mean, signal.variance
    if activation.channels > 1:
        mean, variance = fit(mean, activation.channels), fit(variance, activation.channels)
    first, variance_after = gaussian_moments(activation, mean, variance)
    return Signal(
        first,
        variance_after,
        factor(activation),
        (Source(name, activation),),
        signal.channels,
        before=(activation, mean, variance),
    )


def _merged(signals: Sequence[Signal]) -> tuple[Source, ...]:
    # More than a few names help nobody, and long chains of additions would collect thousands.
    sources = {source.name: source for signal in signals for source in signal.sources}
    return tuple(sources.values())[:4]


def _of_one_size(signals: Sequence[Signal]) -> list[Signal]:
    sizes = {
        size_of(value)
        for signal in signals
        for value in (signal.mean, signal.variance, signal.factor)
    }
    return [*signals] if len(sizes - {1}) < 2 else [mixed(signal) for signal in signals]


def added(one: Signal, other: Signal, sign: int = 1) -> Signal:
    """The sum or difference of independent signals. The factor is the mean of theirs."""
    one, other = _of_one_size([one, other])
    factors = [signal.factor for signal in (one, other) if signal.sources]
    return Signal(
        one.mean + sign * other.mean,
        one.variance + other.variance,
        sum(factors, start=0.0) / max(1, len(factors)),
        _merged([one, other]),
        one.channels or other.channels,
    )


def multiplied(one: Signal, other: Signal) -> Signal:
    """The product of independent signals."""
    one, other = _of_one_size([one, other])
    mean = one.mean * other.mean
    return Signal(
        mean,
        one.second * other.second - mean**2,
        one.factor * other.factor,
        _merged([one, other]),
        one.channels or other.channels,
    )


def concatenated(signals: Sequence[Signal]) -> Signal:
    """Along the channels where their numbers are known, else the mean over all."""
    sources = _merged(signals)
    known = [signal.channels for signal in signals if signal.channels is not None]
    if len(known) < len(signals):
        count = len(signals)
        mean = sum(average(signal.mean) for signal in signals) / count
        second = sum(average(signal.second) for signal in signals) / count
        factor = sum(average(signal.factor) for signal in signals) / count
        return Signal(mean, second - mean**2, factor, sources)
    means, variances, factors = (
        torch.cat([fit(value, size) for value, size in zip(values, known, strict=True)])
        for values in (
            [signal.mean for signal in signals],
            [signal.variance for signal in signals],
            [signal.factor for signal in signals],
        )
    )
    return Signal(means, variances, factors, sources, sum(known))


def pooled(signal: Signal, kind: str, count: int) -> Signal:
    """After "avg" or "max" over `count` values, taken as independent of each other."""
    if count == 1:
        return signal
    if kind == "avg":
        return replace(signal, variance=signal.variance / count, before=None, layer=None)
    activation, mean, variance = signal.before or (LINEAR, signal.mean, signal.variance)
    first, variance_after = gaussian_moments(activation, mean, variance, maximum_of=count)
    return replace(signal, mean=first, variance=variance_after, before=None, layer=None)
