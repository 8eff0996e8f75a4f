"""Measures how many inputs of activations have a small Taylor residual (section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpelu.diagnosis import Moments
from mpelu.elementwise import ElementwiseFunction, Value, as_value
from mpelu.init import residual_share
from mpelu.lab.inspecting.observing import (
    Batches,
    InspectedLayer,
    add_values,
    checked_batches,
    checked_model,
    chunks,
    find_layers,
    observing,
)
from mpelu.modules import MIN_BETA

RESIDUALS = (0.01, 0.5, 2.0, 4.5)
"""The bounds of the paper. For alpha = beta = 1 they hold for y > -0.1414, -1, -2 and -3."""

_REACH, _STEPS = 5, 16
EDGES = tuple(step / _STEPS for step in range(-_REACH * _STEPS, _REACH * _STEPS + 1))
"""Edges of the histogram's bins, from -5 to 5. Dividing by a power of two doesn't round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerResiduals:
    """Measurements of the inputs y of one activation. Shares have one entry per residual bound."""

    name: str
    """Path of the activation in the model."""
    call: int
    """1 for the first call of the module in a forward pass, 2 for the second, and so on."""
    type: str
    """Class name of the module."""
    count: int
    """Number of inputs."""
    mean: float
    """Mean of y."""
    variance: float
    """Population variance of y."""
    bounded: tuple[float, ...] | None
    """Share of y with y > 0, or with alpha beta^2 y^2 / 2 below the bound, given the activation's
    alpha and beta. 1 for piecewise linear activations; None for other kinds."""
    above: tuple[float, ...]
    """Share of y above the threshold for alpha = beta = 1."""
    gaussian: tuple[float, ...] | None
    """`bounded` in theory, if y were distributed as N(0, variance)."""
    counts: tuple[int, ...]
    """Histogram of y: below the first edge, between the edges, at or above the last edge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualHistogram:
    """Taylor residuals of all activations of a model."""

    residuals: tuple[float, ...]
    """The bounds."""
    thresholds: tuple[float, ...]
    """For each bound, the y above which the residual is below it, for alpha = beta = 1."""
    edges: tuple[float, ...]
    layers: tuple[LayerResiduals, ...]
    """In the order of the forward pass."""
    count: int
    """Number of inputs of all layers."""
    bounded: tuple[float, ...] | None
    """Share over the inputs of all layers with a known share."""
    above: tuple[float, ...]
    counts: tuple[int, ...]


def residual_histogram(
    model: nn.Module,
    batches: Batches,
    *,
    layers: Iterable[str] | None = None,
    residuals: Sequence[float] = RESIDUALS,
) -> ResidualHistogram:
    """Measures the shares of table 8 of the paper for every activation of a model.

    The model doesn't change, as in `activation_statistics`.

    Args:
        model: any module that calls elementwise activations as submodules.
        batches: inputs of the model, as in `activation_statistics`.
        layers: names of activations (default: all).
        residuals: positive bounds on the residual.

    Raises:
        ValueError: if the model calls no activation, or for bad arguments.

    Example:
        >>> found = residual_histogram(nn.ELU(), torch.randn(1000000, 1))
        >>> [round(share, 2) for share in found.layers[0].bounded]
        [0.56, 0.84, 0.98, 1.0]
    """
    caller = "residual_histogram"
    model = checked_model(caller, model)
    if not residuals or not min(residuals) > 0:
        raise ValueError(f"{caller}: expected residuals > 0, got {list(residuals)}")
    found = find_layers(model, layers)
    others = [name for name, layer in found.items() if layer.kind != "activation"]
    if len(others) == len(found) or (layers is not None and others):
        raise ValueError(f"{caller}: expected activations, got {others[:3] or 'none'}")
    records: dict[tuple[str, int], _Counts] = {}

    def before(name: str, call: int, inputs: Tensor) -> None:
        if (name, call) not in records:
            records[name, call] = _Counts(name, call, found[name], tuple(residuals))
        records[name, call].add(inputs)

    activations = {name: layer for name, layer in found.items() if name not in others}
    with torch.no_grad(), observing(model, activations, before=before) as run:
        for batch in checked_batches(caller, batches):
            run(batch)
    if not records:
        raise ValueError(f"{caller}: expected the model to call activations, got no call")
    return _total(tuple(residuals), list(records.values()))


def _exponential_parameters(
    activation: ElementwiseFunction | None,
) -> tuple[Tensor, Tensor] | None:
    """Returns the absolute value of alpha, and beta, per channel, on the CPU.

    Piecewise linear activations have alpha 0: they are their own Taylor expansion.

    Returns:
        None for activations of any other kind.
    """
    if activation is None:
        return None
    if activation.slope is not None:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if activation.alpha is None or activation.beta is None:
        return None
    alpha = torch.as_tensor(activation.alpha, dtype=torch.float64).detach().cpu()
    beta = torch.as_tensor(activation.beta, dtype=torch.float64).detach().cpu()
    return (activation.scale * alpha).abs(), beta.clamp(min=MIN_BETA)


class _Counts:
    """Counts the inputs of one call of an activation, by residual and by size."""

    def __init__(
        self, name: str, call: int, layer: InspectedLayer, residuals: tuple[float, ...]
    ) -> None:
        self.name, self.call, self.layer, self.residuals = name, call, layer, residuals
        self.moments = Moments()
        self.above = self.bounded = torch.zeros(len(residuals), dtype=torch.int64)
        self.counts = torch.zeros(len(EDGES) + 1, dtype=torch.int64)
        self.parameters = _exponential_parameters(layer.activation)
        """None if the residual of the activation isn't known."""
        self._own: list[Value] = []
        if self.parameters is not None:
            alpha, beta = self.parameters
            self._own = [as_value(-torch.sqrt(2 * each / alpha) / beta) for each in residuals]

    def add(self, values: Tensor) -> None:
        for part in chunks(values):
            add_values(self.moments, part)
            self.above = self.above + _count_above(_thresholds(self.residuals), part)
            if self.parameters is not None:
                self.bounded = self.bounded + _count_above(self._own, part)
            self.counts += _histogram(part).cpu()

    def result(self) -> LayerResiduals:
        count = self.moments.count
        return LayerResiduals(
            name=self.name,
            call=self.call,
            type=type(self.layer.module).__name__,
            count=count,
            mean=self.moments.mean,
            variance=self.moments.variance,
            bounded=None if self.parameters is None else _shares([self.bounded], count),
            above=_shares([self.above], count),
            gaussian=self._gaussian(),
            counts=tuple(self.counts.tolist()),
        )

    def _gaussian(self) -> tuple[float, ...] | None:
        variance = self.moments.variance
        if self.parameters is None or not 0 < variance < math.inf:
            return None
        pairs = torch.stack(
            torch.broadcast_tensors(*(each.reshape(-1) for each in self.parameters))
        )
        if not pairs.isfinite().all():
            return None
        distinct, weights = torch.unique(pairs, dim=1, return_counts=True)
        return tuple(
            sum(
                weight * residual_share(residual, alpha, beta, variance)
                for (alpha, beta), weight in zip(distinct.T.tolist(), weights.tolist(), strict=True)
            )
            / pairs.size(1)
            for residual in self.residuals
        )


def _total(residuals: tuple[float, ...], records: list[_Counts]) -> ResidualHistogram:
    count = sum(record.moments.count for record in records)
    known = [record for record in records if record.parameters is not None]
    known_count = sum(record.moments.count for record in known)
    return ResidualHistogram(
        residuals=residuals,
        thresholds=tuple(_thresholds(residuals)),
        edges=EDGES,
        layers=tuple(record.result() for record in records),
        count=count,
        bounded=_shares([record.bounded for record in known], known_count) if known else None,
        above=_shares([record.above for record in records], count),
        counts=tuple(torch.stack([record.counts for record in records]).sum(0).tolist()),
    )


def _shares(counts: Sequence[Tensor], total: int) -> tuple[float, ...]:
    return tuple(each / total for each in torch.stack([*counts]).sum(0).tolist())


def _thresholds(residuals: Sequence[float]) -> list[float]:
    """Returns the y above which the residual is below each bound, for alpha = beta = 1."""
    return [-math.sqrt(2 * residual) for residual in residuals]


def _count_above(thresholds: Sequence[Value], values: Tensor) -> Tensor:
    """Counts the values above each threshold: a number, or one per channel in dimension 1."""
    counts = []
    for each in thresholds:
        limit = torch.as_tensor(each, dtype=torch.float64, device=values.device).reshape(-1)
        if limit.numel() > 1 and values.dim() >= 2:
            limit = limit.reshape(-1, *[1] * (values.dim() - 2))
        counts.append(int(torch.count_nonzero(values > limit)))
    return torch.tensor(counts, dtype=torch.int64)


def _histogram(values: Tensor) -> Tensor:
    """Counts values below the first edge, between edges, and from the last edge on; skips NaN."""
    if values.isnan().any():
        values = values[~values.isnan()]
    least = -_REACH * _STEPS - 1
    bins = (values * _STEPS).floor_().clamp_(least, -least - 1).sub_(least).to(torch.int32)
    return torch.bincount(bins.flatten(), minlength=len(EDGES) + 1)
