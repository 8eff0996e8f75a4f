"""Mean, variance and the state of activations, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mpelu.init.activations import Activation
from mpelu.init.graph import unwrap
from mpelu.lab.inspecting.layers import Layer, find_layers
from mpelu.lab.inspecting.streams import Moments, Range, by_channel, chunks
from mpelu.lab.inspecting.watch import Batches, Watch, check, checked, undisturbed
from mpelu.modules import MIN_BETA

SATURATED_BELOW = 0.01
"""Slope of an activation, beside 1 on the positive side, below which an input is saturated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStatistics:
    """What came out of a layer, over all batches and positions.

    The shares are None for layers that are no activations.
    """

    name: str
    """Path of the module in the model."""
    call: int
    """1, or more where a pass calls the module again."""
    kind: str
    """conv, linear, norm, activation, pool, dropout, block or other."""
    type: str
    """Class of the module."""
    count: int
    """Values seen."""
    mean: float
    variance: float
    """Of the population: divided by the count."""
    linear_share: float | None
    """Share of the activation's inputs that are above zero."""
    saturated_share: float | None
    """Share of its inputs, not above zero, at which its slope is below 0.01 in size. Of a ReLU all
    that are not above zero. Activations of other families are counted on both sides."""
    dead_share: float | None
    """Share of channels (dimension 1) whose output is one and the same value throughout. None if
    there was a single value a channel."""
    never_positive_share: float | None
    """Share of channels whose output is nowhere above zero."""


@dataclass(slots=True)
class _Record:
    layer: Layer
    call: int
    output: Moments = field(default_factory=Moments)
    channels: Range = field(default_factory=Range)
    inputs: int = 0
    linear: int = 0
    saturated: int = 0

    def add_input(self, values: Tensor) -> None:
        for part in chunks(values):
            self.inputs += part.numel()
            self.linear += int(torch.count_nonzero(part > 0))
            self.saturated += int(torch.count_nonzero(_saturated(self.layer, part, values.dtype)))

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
            if self.channels.values_each > 1:
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


def saturated_below(activation: Activation) -> Tensor | None:
    """The input, a channel each, below which a negative one is saturated; None if not known."""
    if activation.slope is not None:
        slope = torch.as_tensor(activation.slope, dtype=torch.float64).detach()
        return torch.where(slope.abs() < SATURATED_BELOW, math.inf, -math.inf)
    if activation.alpha is None or activation.beta is None:
        return None
    alpha = torch.as_tensor(activation.alpha, dtype=torch.float64).detach()
    beta = torch.as_tensor(activation.beta, dtype=torch.float64).detach().clamp(min=MIN_BETA)
    return torch.log(SATURATED_BELOW / (alpha.abs() * beta)) / beta


def _saturated(layer: Layer, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    if layer.activation is None:
        return torch.zeros((), dtype=torch.bool)
    below = saturated_below(layer.activation)
    if below is not None:
        return (inputs <= 0) & (inputs < by_channel(below, inputs))
    assert layer.probe is not None
    with torch.enable_grad():
        leaf = inputs.to(dtype).requires_grad_()
        # A copy, since the probe may work in place.
        (slope,) = torch.autograd.grad(layer.probe(leaf.clone()).sum(), leaf)
    return slope.abs() < SATURATED_BELOW


def activation_statistics(
    model: nn.Module, batches: Batches, *, layers: Iterable[str] | None = None
) -> list[LayerStatistics]:
    """Statistics of the outputs of each layer, exact over all batches.

    The model runs in the mode it is in, and is left as it was: buffers, training flags and torch's
    random state are put back, and hooks taken off, also on an error. Sums are kept in float64
    whatever the dtype. Outputs other than a tensor of real numbers are passed over.

    Args:
        model: any module, also inside DistributedDataParallel or torch.compile.
        batches: what to call the model with, each a tensor, a tuple of positional or a dict of
            keyword arguments; or one tensor.
        layers: names of modules; None for all that have no parts, leaving out calls that hand on
            the output of another as it is, such as torch.nn.Identity on a shortcut.

    Returns:
        A row for each layer and call of it, in the order of the forward pass.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 256), mpelu.MPELU(256), nn.Linear(256, 10))
        >>> rows = activation_statistics(model, torch.randn(512, 64))
        >>> [(row.name, row.kind) for row in rows]
        [('0', 'linear'), ('1', 'activation'), ('2', 'linear')]
    """
    check("activation_statistics", model)
    model = unwrap(model)
    records: dict[tuple[str, int], _Record] = {}

    def record(layer: Layer, call: int) -> _Record:
        return records.setdefault((layer.name, call), _Record(layer, call))

    def before(layer: Layer, call: int, inputs: Tensor) -> None:
        entry = record(layer, call)
        if layer.kind == "activation":
            entry.add_input(inputs)

    def after(layer: Layer, call: int, output: Tensor) -> None:
        record(layer, call).add_output(output)

    watch = Watch(model, before, after, repeats=layers is not None)
    chosen = find_layers("activation_statistics", model, layers)
    with torch.no_grad(), undisturbed(model), watch.on(chosen):
        for batch in checked("activation_statistics", batches):
            watch.run(batch)
    return [entry.result() for entry in records.values() if entry.output.count]
