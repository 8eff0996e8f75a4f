"""Measures each layer: moments and units over all batches, and the gradients of one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.diagnosis import Moments, UnitCounter, mean_square, unit_axes
from mpelu.graph import Inputs, arguments, substitute, tensors_in
from mpelu.lab.inspecting.observing import (
    Batches,
    InspectedLayer,
    add_values,
    checked_batches,
    checked_model,
    chunks,
    find_layers,
    observing,
    split,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStatistics:
    """Statistics of a layer's outputs, over all batches and positions.

    `mpelu.diagnosis.quantities` defines `signal`, `dead`, `saturated` and `linear`. The shares are
    None for layers that aren't elementwise activations.
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
    signal: float | None
    """Variance of each value between samples, averaged over values. None for a single sample, if
    samples differ in size, or if they aren't along the first dimension."""
    units: int | None = None
    """Number of units of an activation."""
    dead: float | None = None
    """Share of dead units: with the same output and slope zero everywhere."""
    saturated: float | None = None
    """Share of saturated units. None for activations that are flat on one side, such as ReLU, and
    for functions that aren't known by name."""
    linear: float | None = None
    """Share of linear units. None for functions that aren't known by name."""
    positive: float | None = None
    """Share of the activation's inputs above zero."""
    never_positive: float | None = None
    """Share of units whose output is never above zero."""


def activation_statistics(
    model: nn.Module, batches: Batches, *, layers: Iterable[str] | None = None
) -> list[LayerStatistics]:
    """Computes statistics of each layer's outputs, exact over all batches.

    The model runs in its current mode. Its buffers, training flags, attributes and hooks don't
    change, even after an error, and neither does torch's random state. Sums are in float64 for
    every dtype. Outputs other than a tensor of real numbers are skipped. The model runs once more
    on the first batch, to find the units of its activations.

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
    chosen = find_layers(model, layers)
    records: dict[tuple[str, int], _Statistics] = {}
    axes: dict[str, int] = {}
    samples = 0

    def record(name: str, call: int) -> _Statistics:
        fresh = _Statistics(name, call, chosen[name], axes.get(name, 1))
        return records.setdefault((name, call), fresh)

    def before(name: str, call: int, inputs: Tensor) -> None:
        record(name, call).add_input(inputs)

    def after(name: str, call: int, output: Tensor) -> None:
        record(name, call).add_output(output, samples)

    repeats = layers is not None
    with (
        torch.no_grad(),
        observing(model, chosen, before=before, after=after, repeats=repeats) as run,
    ):
        for batch in checked_batches("activation_statistics", batches):
            if not records and any(layer.activation for layer in chosen.values()):
                axes.update(unit_axes(model, batch))
            tensors = tensors_in(arguments(batch))
            samples = next((len(each) for each in tensors if each.dim() > 0), 1)
            run(batch)
    return [entry.result() for entry in records.values() if entry.output.count]


@dataclass(slots=True)
class _Statistics:
    name: str
    call: int
    layer: InspectedLayer
    axis: int
    output: Moments = field(default_factory=Moments)
    signal: Moments | None = field(default_factory=Moments)
    shape: torch.Size | None = None
    """Shape of a sample's output."""
    units: UnitCounter | None = None
    inputs: int = 0
    positive: int = 0

    def add_input(self, values: Tensor) -> None:
        if self.layer.kind != "activation":
            return
        self.inputs += values.numel()
        self.positive += int(torch.count_nonzero(values > 0))
        if self.layer.activation is not None and values.dim() > 1:
            self.units = self.units or UnitCounter.of(self.layer.module, self.axis)
            for part in split(values):
                self.units.add(part)

    def add_output(self, values: Tensor, samples: int) -> None:
        self.shape = self.shape or values.shape[1:]
        if len(values) != samples or values.shape[1:] != self.shape:
            self.signal = None
        for part in chunks(values):
            add_values(self.output, part)
            if self.signal is not None:
                self.signal.add(part, len(part))

    def result(self) -> LayerStatistics:
        units: dict[str, Any] = {}
        if self.units is not None:
            never_positive = (self.units.high <= 0).double().mean().item()
            units = {**asdict(self.units.shares()), "never_positive": never_positive}
        signal = self.signal if self.signal is not None and self.signal.count > 1 else None
        return LayerStatistics(
            name=self.name,
            call=self.call,
            kind=self.layer.kind,
            type=type(self.layer.module).__name__,
            count=self.output.count,
            mean=self.output.mean,
            variance=self.output.variance,
            signal=None if signal is None else signal.signal,
            positive=self.positive / self.inputs if self.inputs else None,
            **units,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGradient:
    """The gradient of the loss with respect to a layer's output, over the whole batch."""

    name: str
    call: int
    """1 for the first call of the module in a forward pass, 2 for the second, and so on."""
    kind: str
    gradient: float | None
    """Mean square, as in `mpelu.diagnosis`; None if the loss doesn't depend on this output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """The sizes of the gradients of one batch."""

    loss: float
    parameters: dict[str, float]
    """Euclidean norm by parameter name, without parameters that have no gradient."""
    layers: tuple[LayerGradient, ...]
    """In the order of the forward pass."""


def measure_gradients(
    model: nn.Module,
    batch: Inputs,
    loss: Callable[[Any], Tensor],
    *,
    layers: Iterable[str] | None = None,
) -> Gradients:
    """Measures the gradients of one batch, at parameters and at the outputs of layers.

    The model doesn't change, as in `activation_statistics`, and neither does `.grad`.

    Args:
        model: any module.
        batch: inputs of the model: a tensor, a tuple of positional arguments or a dict of keyword
            arguments.
        loss: function from the model's output to a scalar.
        layers: names of modules, as in `activation_statistics`.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 2, bias=False))
        >>> found = measure_gradients(model, torch.ones(1, 8), torch.sum)
        >>> found.parameters["0.weight"], found.layers[0].gradient
        (4.0, 1.0)
    """
    model = checked_model("measure_gradients", model)
    chosen = find_layers(model, layers)
    found: dict[tuple[str, int], float | None] = {}

    def after(name: str, call: int, output: Tensor) -> None:
        def keep(gradient: Tensor) -> None:
            found[name, call] = mean_square(gradient)

        found[name, call] = None
        if output.requires_grad:
            output.register_hook(keep)

    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    repeats = layers is not None
    with torch.enable_grad(), observing(model, chosen, after=after, repeats=repeats) as run:
        (checked,) = checked_batches("measure_gradients", [batch])
        leaves, inputs = _differentiable(checked)
        value = loss(run(inputs))
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ValueError(
                "measure_gradients: expected a scalar loss that depends on the model, got "
                f"{value if not isinstance(value, Tensor) else f'shape {list(value.shape)}'}"
            )
        # With the gradients of the inputs, layers before the first parameter have one, too.
        gradients = torch.autograd.grad(value, [*parameters.values(), *leaves], allow_unused=True)
    return Gradients(
        loss=value.item(),
        parameters={
            name: math.sqrt(sum(part.square().sum().item() for part in chunks(torch.atleast_1d(g))))
            for name, g in zip(parameters, gradients, strict=False)
            if g is not None
        },
        layers=tuple(
            LayerGradient(name=name, call=call, kind=chosen[name].kind, gradient=gradient)
            for (name, call), gradient in found.items()
        ),
    )


def _differentiable(batch: Inputs) -> tuple[list[Tensor], Inputs]:
    """Returns leaf tensors that require gradients, and copies of them as inputs."""
    leaves: list[Tensor] = []

    def fresh(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaf = tensor.detach().requires_grad_()
        leaves.append(leaf)
        return leaf.clone()

    args, kwargs = substitute(arguments(batch), Tensor, fresh)
    return leaves, kwargs or args
