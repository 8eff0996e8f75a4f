"""The standard deviation of every weight of a model, before any is changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mpelu.init.activations import LINEAR, msra_factor, taylor_factor
from mpelu.init.channels import Value, as_value, average, fit
from mpelu.init.graph import Call, collector_paused
from mpelu.init.layers import Layer, layer_of
from mpelu.init.padding import Profile, after_layer, flat, resized
from mpelu.init.propagate import propagate
from mpelu.init.rules import GAUSSIAN_STD, fan_of
from mpelu.init.signal import Signal, Source, input_signal

TARGET = 1.0
"""Variance of every pre-activation, by the rules that can choose it."""


@dataclass
class Plan:
    """What to do with one weight."""

    name: str
    layer: Layer
    is_trained: bool
    sources: tuple[Source, ...]
    fan: float | None
    std: Value
    """A number, or one for each group of the layer."""
    predicted: float


def _by_group(layer: Layer, value: Value) -> Value:
    """Mean over the input channels of each group, a number where the groups are alike."""
    if isinstance(value, Tensor):
        value = as_value(fit(value, layer.channels).reshape(layer.groups, -1).mean(1))
    # A constant zero, such as an all-zero example input, says nothing about scale.
    return torch.where(value > 0, value, 1.0) if isinstance(value, Tensor) else value or 1.0


def _std(
    layer: Layer, signal: Signal, reached: float, method: str, mode: str
) -> tuple[float | None, Value]:
    """n of the rule and the standard deviation, of each group where they differ.

    Args:
        layer: whose weight it is for.
        signal: into the layer.
        reached: share of the layer's inputs that are not padding.
        method: as for `initialize_`.
        mode: as for `initialize_`.
    """
    if method == "lsuv":  # done already
        return None, layer.weight.detach().double().std(correction=0).item()
    if method == "gaussian":
        return None, GAUSSIAN_STD
    if method == "xavier":
        fan = fan_of("average", *layer.fans)
        return fan, fan**-0.5
    fan = fan_of(mode, *layer.fans)
    if method == "exact":
        return fan, (TARGET / (fan * reached * _by_group(layer, signal.second))) ** 0.5
    return fan, (TARGET / (fan * _by_group(layer, signal.factor))) ** 0.5


def _bias(layer: Layer) -> Value:
    if layer.bias is None or layer.bias.requires_grad:
        return 0.0
    return as_value(layer.bias)


def _after_random(layer: Layer, signal: Signal, reached: float, std: Value) -> tuple[Value, Value]:
    """Mean and variance of the output over random weights and data."""
    variance = std**2 * layer.fans[0] * reached * _by_group(layer, signal.second)
    if isinstance(variance, Tensor):
        variance = variance.repeat_interleave(layer.out_channels // layer.groups)
    return _bias(layer), variance


def _after_fixed(layer: Layer, signal: Signal) -> tuple[Value, Value]:
    """Mean and variance of the output over data alone, inputs taken as independent."""
    shape = layer.weight.shape
    weight = layer.weight.detach().to("cpu", torch.float64)
    weight = weight.reshape(layer.groups, -1, shape[1], math.prod(shape[2:]))
    if layer.transposed:
        weight = weight.transpose(1, 2) / math.sqrt(math.prod(layer.stride))
    mean, variance = (
        fit(value, layer.channels).reshape(layer.groups, 1, -1, 1)
        for value in (signal.mean, signal.variance)
    )
    out_mean = (weight * mean).sum((2, 3)).flatten()
    return out_mean + _bias(layer), (weight**2 * variance).sum((2, 3)).flatten()


def _is_sum(call: Call) -> bool:
    is_function = not isinstance(call.target, nn.Module)
    return is_function and call.name in ("add", "sub") and len(call.fed_by) > 1


def _share_sum(call: Call, signals: list[Signal], plans: dict[int, Plan], additions: int) -> None:
    """Scales the layers that end in an addition so that the sum has the target variance.

    What the other addends leave of the target goes to these layers in equal parts. Identity
    shortcuts leave nothing: then each addition may add 1 / additions of the target, and no chain of
    them ends above twice the target.
    """
    fed = call.fed_by
    free = [index for index in fed if signals[index].layer is not None]
    if not free:
        return
    taken = sum(average(signals[index].variance) for index in fed if index not in free)
    share = max(TARGET - taken, TARGET / additions) / len(free) / TARGET
    for index in free:
        plan = plans[signals[index].layer]  # type: ignore[index]
        plan.std = plan.std * math.sqrt(share)
        plan.predicted *= share
        signals[index] = replace(signals[index], variance=signals[index].variance * share)


@torch.no_grad()
@collector_paused()
def make_plan(
    calls: Sequence[Call], parameters: Mapping[str, Tensor], method: str, mode: str
) -> list[Plan]:
    """One plan for each weight the calls use, in order.

    Args:
        calls: of the model.
        parameters: of the model, by path.
        method: as for `initialize_`.
        mode: as for `initialize_`.
    """
    factor = msra_factor if method == "msra" else taylor_factor
    names = {id(parameter): name for name, parameter in parameters.items()}
    layers = [layer_of(call) for call in calls]
    uses = Counter(id(layer.weight) for layer in layers if layer is not None)
    consumers = Counter(index for call in calls for index in call.fed_by)
    additions = sum(map(_is_sum, calls))
    shapes = [call.shape for call in calls]
    signals: list[Signal] = []
    profiles: list[Profile] = []
    plans: dict[int, Plan] = {}
    planned: dict[int, Plan] = {}

    for index, (call, layer) in enumerate(zip(calls, layers, strict=True)):
        if layer is not None:
            fed = call.fed_by[0]
            signal = signals[fed]
            profile, reached = after_layer(layer, profiles[fed], call.shape)
            weight = id(layer.weight)
            name = names.get(weight)
            is_trained = name is not None and layer.weight.requires_grad
            if name is not None and weight not in planned:
                fan, std = _std(layer, signal, reached, method, mode)
                planned[weight] = plans[index] = Plan(
                    name, layer, is_trained, signal.sources, fan, std, 0.0
                )
            if is_trained:
                mean, variance = _after_random(layer, signal, reached, planned[weight].std)
            else:
                mean, variance = _after_fixed(layer, signal)
            is_free = method == "exact" and is_trained and uses[weight] == 1
            signal = Signal(
                mean,
                variance,
                1.0,
                (Source("linear", LINEAR),),
                layer.out_channels,
                layer=index if is_free else None,
            )
            if index in plans:
                plans[index].predicted = signal.overall_variance
        elif call.target is None:
            signal, profile = input_signal(call), flat(call.shape)
        else:
            profile = resized(profiles[call.fed_by[0]] if call.fed_by else (), call.shape)
            if _is_sum(call):
                _share_sum(call, signals, plans, additions)
            signal = propagate(call, signals, shapes, factor)
        if signal.layer is not None and consumers[index] > 1:
            signal = replace(signal, layer=None)
        signals.append(signal)
        profiles.append(profile)
    return list(plans.values())
