"""How many inputs of the activations lie where the Taylor residual is small: section 4.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mpelu.init.activations import Activation
from mpelu.init.channels import Value, as_value
from mpelu.init.graph import unwrap
from mpelu.init.residual import residual_share
from mpelu.lab.inspecting.layers import Layer, find_layers
from mpelu.lab.inspecting.streams import Moments, by_channel, chunks
from mpelu.lab.inspecting.watch import Batches, Watch, check, checked, undisturbed
from mpelu.modules import MIN_BETA

RESIDUALS = (0.01, 0.5, 2.0, 4.5)
"""The paper's. With alpha = beta = 1 they belong to y > -0.1414, -1, -2 and -3."""

_REACH, _STEPS = 5, 16
EDGES = tuple(step / _STEPS for step in range(-_REACH * _STEPS, _REACH * _STEPS + 1))
"""Of the histogram's bins, from -5 to 5. Powers of two, so that scaling to them doesn't round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerResiduals:
    """The inputs y of one activation. Shares are for each residual in turn."""

    name: str
    """Path of the activation in the model."""
    call: int
    """1, or more where a pass calls the module again."""
    type: str
    """Class of the module."""
    count: int
    mean: float
    """Of y."""
    variance: float
    """Of y."""
    bounded: tuple[float, ...] | None
    """Share of y at which alpha beta^2 y^2 / 2, with the activation's own alpha and beta, is below
    the residual, or y is above zero. 1 for activations made of two lines; None for those that are
    neither."""
    above: tuple[float, ...]
    """Share of y above the threshold that alpha = beta = 1 gives."""
    gaussian: tuple[float, ...] | None
    """`bounded` as `mpelu.init.residual_share` has it for N(0, variance)."""
    counts: tuple[int, ...]
    """Histogram of y: below the first edge, between the edges, at or above the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualHistogram:
    """Section 4.4 of the paper, measured."""

    residuals: tuple[float, ...]
    thresholds: tuple[float, ...]
    """Where y is at these residuals for alpha = beta = 1."""
    edges: tuple[float, ...]
    layers: tuple[LayerResiduals, ...]
    """In the order of the forward pass."""
    count: int
    """Inputs of all layers."""
    bounded: tuple[float, ...] | None
    """Over all layers that have it, each input counting once."""
    above: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(slots=True)
class _Record:
    layer: Layer
    call: int
    residuals: tuple[float, ...]
    moments: Moments = field(default_factory=Moments)
    bounded: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)
    counts: Tensor = field(default_factory=lambda: torch.zeros(len(EDGES) + 1, dtype=torch.int64))

    def add(self, values: Tensor) -> None:
        ones = [-threshold for threshold in _ones(self.residuals)]
        own = self._thresholds()
        is_paper = own is not None and all(isinstance(each, float) for each in own) and own == ones
        for part in chunks(values):
            self.moments.add(part)
            above = [int(torch.count_nonzero(part > threshold)) for threshold in ones]
            self.above = _sum(self.above, above)
            if is_paper:
                self.bounded = _sum(self.bounded, above)
            elif own is not None:
                bounded = [torch.count_nonzero(part > by_channel(each, part)) for each in own]
                self.bounded = _sum(self.bounded, [int(each) for each in bounded])
            self.counts += _histogram(part).cpu()

    def _thresholds(self) -> list[Value] | None:
        """Above which y has a residual below each bound, as plain numbers where they are."""
        shape = _shape(self.layer.activation)
        if shape is None:
            return None
        alpha, beta = shape
        return [as_value(-torch.sqrt(2 * each / alpha) / beta) for each in self.residuals]

    def result(self) -> LayerResiduals:
        count = self.moments.count
        return LayerResiduals(
            name=self.layer.name,
            call=self.call,
            type=type(self.layer.module).__name__,
            count=count,
            mean=self.moments.mean,
            variance=self.moments.variance,
            bounded=tuple(n / count for n in self.bounded) if self.bounded else None,
            above=tuple(n / count for n in self.above),
            gaussian=self._gaussian(),
            counts=tuple(self.counts.tolist()),
        )

    def _gaussian(self) -> tuple[float, ...] | None:
        shape, variance = _shape(self.layer.activation), self.moments.variance
        if shape is None or not 0 < variance < math.inf:
            return None
        pairs = torch.stack(torch.broadcast_tensors(*(each.reshape(-1) for each in shape)))
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


def _shape(activation: Activation | None) -> tuple[Tensor, Tensor] | None:
    """|alpha| and beta; alpha 0 for two lines, which are their own tangents; None if unknown."""
    if activation is None:
        return None
    if activation.slope is not None:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if activation.alpha is None or activation.beta is None:
        return None
    alpha = torch.as_tensor(activation.alpha, dtype=torch.float64).detach().cpu()
    beta = torch.as_tensor(activation.beta, dtype=torch.float64).detach().cpu()
    return (activation.scale * alpha).abs(), beta.clamp(min=MIN_BETA)


def _ones(residuals: Sequence[float]) -> list[float]:
    return [math.sqrt(2 * residual) for residual in residuals]


def _histogram(values: Tensor) -> Tensor:
    """Counts below the first edge, between edges, and at or above the last; NaN in none."""
    if values.isnan().any():
        values = values[~values.isnan()]
    least = -_REACH * _STEPS - 1
    bins = (values * _STEPS).floor_().clamp_(least, -least - 1).sub_(least).to(torch.int32)
    return torch.bincount(bins.flatten(), minlength=len(EDGES) + 1)


def _sum(old: list[int], new: list[int]) -> list[int]:
    return [a + b for a, b in zip(old, new, strict=True)] if old else new


def residual_histogram(
    model: nn.Module,
    batches: Batches,
    *,
    layers: Iterable[str] | None = None,
    residuals: Sequence[float] = RESIDUALS,
) -> ResidualHistogram:
    """Measures what table 8 of the paper prints, for every activation of the model.

    The model is left as it was, as by `activation_statistics`.

    Args:
        model: any module with elementwise activations among its parts.
        batches: as of `activation_statistics`.
        layers: names of activations; None for all.
        residuals: bounds of the residual, above zero.

    Example:
        >>> model = nn.Sequential(mpelu.MPELU())
        >>> found = residual_histogram(model, torch.randn(1000000, 1))
        >>> [round(share, 2) for share in found.layers[0].bounded]
        [0.56, 0.84, 0.98, 1.0]
    """
    caller = "residual_histogram"
    check(caller, model)
    model = unwrap(model)
    if not residuals or not min(residuals) > 0:
        raise ValueError(f"{caller}: expected residuals > 0, got {list(residuals)}")
    found = find_layers(caller, model, layers)
    chosen = [layer for layer in found if layer.kind == "activation"]
    if not chosen or (layers is not None and len(chosen) < len(found)):
        others = [layer.name for layer in found if layer.kind != "activation"]
        raise ValueError(f"{caller}: expected activations, got {others[:3] or 'none'}")
    records: dict[tuple[str, int], _Record] = {}

    def before(layer: Layer, call: int, inputs: Tensor) -> None:
        fresh = _Record(layer, call, tuple(residuals))
        records.setdefault((layer.name, call), fresh).add(inputs)

    watch = Watch(model, before, lambda *_: None)
    with torch.no_grad(), undisturbed(model), watch.on(chosen):
        for batch in checked(caller, batches):
            watch.run(batch)
    return _total(tuple(residuals), list(records.values()))


def _total(residuals: tuple[float, ...], records: list[_Record]) -> ResidualHistogram:
    if not records:
        raise ValueError("residual_histogram: expected the model to call activations, got none")
    count = sum(record.moments.count for record in records)
    known = [record for record in records if record.bounded]
    known_count = sum(record.moments.count for record in known)
    indices = range(len(residuals))
    layers = tuple(record.result() for record in records)
    return ResidualHistogram(
        residuals=residuals,
        thresholds=tuple(-threshold for threshold in _ones(residuals)),
        edges=EDGES,
        layers=layers,
        count=count,
        bounded=(
            tuple(sum(record.bounded[i] for record in known) / known_count for i in indices)
            if known
            else None
        ),
        above=tuple(sum(record.above[i] for record in records) / count for i in indices),
        counts=tuple(sum(column) for column in zip(*(each.counts for each in layers), strict=True)),
    )
