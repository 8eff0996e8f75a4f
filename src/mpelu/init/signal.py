"""Mean and variance of what flows between the calls of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mpelu.init.activations import LINEAR, Activation, gaussian_moments
from mpelu.init.graph import Call

ONE = torch.ones(1, dtype=torch.float64)
ZERO = torch.zeros(1, dtype=torch.float64)


@dataclass(frozen=True)
class Source:
    """Where a signal comes from: an activation, an input, or something not understood."""

    name: str
    activation: Activation
    is_known: bool = True


@dataclass(frozen=True)
class Signal:
    """Mean and variance of a tensor, float64 of shape [1] or [channels]."""

    mean: Tensor
    variance: Tensor
    factor: Tensor
    """What a first-order rule takes for the second moment, shape [1] or [channels]."""
    sources: tuple[Source, ...]
    channels: int | None = None
    before: tuple[Activation, Tensor, Tensor] | None = None
    """For an activation's output: the activation, mean and variance it came from."""
    layer: int | None = None
    """Index of the call of the layer whose output this is, up to operations that keep it."""

    @property
    def second(self) -> Tensor:
        return self.variance + self.mean**2


Factor = Callable[[Activation], Tensor]


def input_signal(call: Call) -> Signal:
    """Moments of an example input by channel; a standard normal variable if there is none."""
    source = (Source("input", LINEAR),)
    if not call.args or not call.args[0].is_floating_point():
        return Signal(ZERO, ONE, ONE, source)
    return of_values(call.args[0], source)


def of_values(tensor: Tensor, source: tuple[Source, ...]) -> Signal:
    values = tensor.detach().to("cpu", torch.float64)
    if values.dim() < 2:
        mean, variance, channels = values.mean().reshape(1), values.var(correction=0), None
    else:
        channels = values.size(1)
        by_channel = values.transpose(0, 1).flatten(1)
        mean, variance = by_channel.mean(1), by_channel.var(1, correction=0)
    return Signal(mean, variance.reshape(-1), ONE, source, channels)


def unknown_signal(call: Call) -> Signal:
    """Unit variance, for want of anything better."""
    return Signal(ZERO, ONE, ONE, (Source(call.name, LINEAR, is_known=False),))


def fit(values: Tensor, size: int) -> Tensor:
    """One value for each of `size` channels; flattened maps repeat theirs, else the mean."""
    if values.numel() in (1, size):
        return values.expand(size)
    if size % values.numel() == 0:
        return values.repeat_interleave(size // values.numel())
    return values.mean().expand(size)


def mixed(signal: Signal) -> Signal:
    """The signal with its channels in an unknown order."""
    mean = signal.mean.mean()
    return replace(
        signal,
        mean=mean.reshape(1),
        variance=(signal.second.mean() - mean**2).reshape(1),
        factor=signal.factor.mean().reshape(1),
        channels=None,
        before=None,
        layer=None,
    )


def merged(signals: Sequence[Signal]) -> tuple[Source, ...]:
    # More than a few names help nobody, and long chains of additions would collect thousands.
    sources = {source.name: source for signal in signals for source in signal.sources}
    return tuple(sources.values())[:4]


def activated(signal: Signal, name: str, activation: Activation, factor: Factor) -> Signal:
    """The signal after an activation."""
    if activation is LINEAR:
        return signal
    mean, variance = signal.mean, signal.variance
    if activation.channels > 1:
        mean, variance = fit(mean, activation.channels), fit(variance, activation.channels)
    first, second = gaussian_moments(activation, mean, variance)
    return Signal(
        first,
        (second - first**2).clamp(min=0),
        factor(activation),
        (Source(name, activation),),
        signal.channels,
        before=(activation, mean, variance),
    )


def added(signals: Sequence[Signal], signs: Sequence[int]) -> Signal:
    """The sum of independent signals. The factor is the mean of theirs."""
    signals = same_size(signals)
    return Signal(
        torch.stack(
            torch.broadcast_tensors(
                *(sign * signal.mean for sign, signal in zip(signs, signals, strict=True))
            )
        ).sum(0),
        torch.stack(torch.broadcast_tensors(*(signal.variance for signal in signals))).sum(0),
        torch.stack(torch.broadcast_tensors(*(signal.factor for signal in signals))).mean(0),
        merged(signals),
        next((signal.channels for signal in signals if signal.channels is not None), None),
    )


def same_size(signals: Sequence[Signal]) -> list[Signal]:
    sizes = {
        values.numel()
        for signal in signals
        for values in (signal.mean, signal.variance, signal.factor)
    }
    return [*signals] if len(sizes - {1}) < 2 else [mixed(signal) for signal in signals]


def multiplied(one: Signal, other: Signal) -> Signal:
    one, other = same_size([one, other])
    mean = one.mean * other.mean
    return Signal(
        mean,
        one.second * other.second - mean**2,
        one.factor * other.factor,
        merged([one, other]),
        one.channels,
    )


def concatenated(signals: Sequence[Signal]) -> Signal:
    """Along the channels where their numbers are known, else the mean over all."""
    sizes = [signal.channels for signal in signals]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        whole = [mixed(signal) for signal in signals]
        summed = added(whole, [1] * len(whole))
        second = torch.stack([signal.second for signal in whole]).mean(0)
        mean = summed.mean / len(whole)
        return replace(summed, mean=mean, variance=second - mean**2)
    pairs = list(zip(signals, known, strict=True))
    return Signal(
        torch.cat([fit(signal.mean, size) for signal, size in pairs]),
        torch.cat([fit(signal.variance, size) for signal, size in pairs]),
        torch.cat([fit(signal.factor, size) for signal, size in pairs]),
        merged(signals),
        sum(known),
    )


def pooled(signal: Signal, kind: str, count: int) -> Signal:
    """After pooling over `count` values, taken as independent of each other."""
    if count == 1:
        return signal
    if kind == "avg":
        return replace(signal, variance=signal.variance / count, before=None, layer=None)
    activation, mean, variance = signal.before or (LINEAR, signal.mean, signal.variance)
    first, second = gaussian_moments(activation, mean, variance, maximum_of=count)
    return replace(
        signal, mean=first, variance=(second - first**2).clamp(min=0), before=None, layer=None
    )
