"""Mean, variance, saturation and dead channels, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mpelu.lab.inspecting.accumulators import ChannelRange, RunningMoments, chunks, per_channel
from mpelu.lab.inspecting.hooks import (
    Batches,
    ForwardHooks,
    checked_batches,
    checked_model,
    preserved_state,
)
from mpelu.lab.inspecting.layers import InspectedLayer, find_layers, saturation_threshold

SATURATED_SLOPE = 0.01
"""An activation is saturated where its absolute slope is below this; above zero it is 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStatistics:
    """Statistics of a layer's outputs, over all batches and positions.

    The shares are None for layers that aren't activations.
    """

    name: str
    """Path of the module in the model."""
    call: int
    """1 for the first call of the module in a forward pass, 2 for the second, and so on."""
    kind: str
    """conv, linear, norm, activation, pool, dropout, block or other."""
    type: str
    """Class name of the module."""
    count: int
    """Number of values."""
    mean: float
    variance: float
    """Population variance."""
    linear_share: float | None
    """Share of the activation's inputs above zero."""
    saturated_share: float | None
    """Share of its inputs at which the absolute slope is below 0.01. For the ReLU and ELU families
    only inputs that aren't positive count."""
    dead_share: float | None
    """Share of channels (dimension 1) whose output never changes. None if there is only one value
    per channel."""
    never_positive_share: float | None
    """Share of channels whose output is never above zero."""


def activation_statistics(
    model: nn.Module, batches: Batches, *, layers: Iterable[str] | None = None
) -> list[LayerStatistics]:
    """Statistics of each layer's outputs, exact over all batches.

    The model runs in its current mode and is left as it was, even after an error: buffers, training
    flags and torch's random state are restored, and hooks are removed. Sums are in float64 for
    every dtype. Outputs other than a tensor of real numbers are skipped.

    Args:
        model: any module, also inside DistributedDataParallel or torch.compile.
        batches: inputs of the model, each a tensor, a tuple of positional arguments or a dict of
            keyword arguments; or a single tensor.
        layers: names of modules. By default all modules without submodules, except calls that
            return the output of another layer unchanged, such as torch.nn.Identity on a shortcut.

    Returns:
        One row per layer and call, in the order of the forward pass.

    Raises:
        TypeError: if the model isn't a module.
        ValueError: for a model without memory, bad batches or unknown layers.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 256), nn.ELU(), nn.Linear(256, 10))
        >>> rows = activation_statistics(model, torch.randn(512, 64))
        >>> [(row.name, row.kind) for row in rows]
        [('0', 'linear'), ('1', 'activation'), ('2', 'linear')]
    """
    model = checked_model("activation_statistics", model)
    records: dict[tuple[str, int], _StatisticsRecord] = {}

    def record(layer: InspectedLayer, call: int) -> _StatisticsRecord:
        return records.setdefault((layer.name, call), _StatisticsRecord(layer, call))

    def before(layer: InspectedLayer, call: int, inputs: Tensor) -> None:
        entry = record(layer, call)
        if layer.kind == "activation":
            entry.add_input(inputs)

    def after(layer: InspectedLayer, call: int, output: Tensor) -> None:
        record(layer, call).add_output(output)

    hooks = ForwardHooks(model, before, after, repeats=layers is not None)
    chosen = find_layers(model, layers)
    with torch.no_grad(), preserved_state(model), hooks.attached(chosen):
        for batch in checked_batches("activation_statistics", batches):
            hooks.run(batch)
    return [entry.result() for entry in records.values() if entry.output.count]


@dataclass(slots=True)
class _StatisticsRecord:
    layer: InspectedLayer
    call: int
    output: RunningMoments = field(default_factory=RunningMoments)
    channels: ChannelRange = field(default_factory=ChannelRange)
    inputs: int = 0
    linear: int = 0
    saturated: int = 0

    def add_input(self, values: Tensor) -> None:
        for part in chunks(values):
            self.inputs += part.numel()
            self.linear += int(torch.count_nonzero(part > 0))
            is_saturated = _is_saturated(self.layer, part, values.dtype)
            self.saturated += int(torch.count_nonzero(is_saturated))

    def add_output(self, values: Tensor) -> None:
        for part in chunks(values):
            self.output.add(part)
            if self.layer.kind == "activation":
                self.channels.add(part)

    def result(self) -> LayerStatistics:
        low, high = self.channels.low, self.channels.high
        dead = never_positive = None
        if low is not None and high is not None:
            never_positive = (high <= 0).double().mean().item()
            if self.channels.values_per_channel > 1:
                dead = (low == high).double().mean().item()
        return LayerStatistics(
            name=self.layer.name,
            call=self.call,
            kind=self.layer.kind,
            type=type(self.layer.module).__name__,
            count=self.output.count,
            mean=self.output.mean,
            variance=self.output.variance,
            linear_share=self.linear / self.inputs if self.inputs else None,
            saturated_share=(
                self.saturated / self.inputs if self.inputs and self.layer.activation else None
            ),
            dead_share=dead,
            never_positive_share=never_positive,
        )


def _is_saturated(layer: InspectedLayer, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    if layer.activation is None:
        return torch.zeros((), dtype=torch.bool)
    threshold = saturation_threshold(layer.activation, SATURATED_SLOPE)
    if threshold is not None:
        return (inputs <= 0) & (inputs < per_channel(threshold, inputs))
    assert layer.probe is not None
    with torch.enable_grad():
        leaf = inputs.to(dtype).requires_grad_()
        # A copy, because the probe may work in place.
        (slope,) = torch.autograd.grad(layer.probe(leaf.clone()).sum(), leaf)
    return slope.abs() < SATURATED_SLOPE
