"""What a measurement consists of: a row for each layer, norm and activation, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mpelu.diagnosis.inputs import InputScale
from mpelu.diagnosis.structure import Flow


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosedLayer:
    """What comes out of a layer, a norm or an activation, over the whole batch."""

    position: int
    """How many layers with a weight the pass has reached, this one included."""
    name: str
    """Path of the module; for a function, what it is called with or comes after."""
    kind: str
    """"layer", "norm" or "activation"."""
    type: str
    """Class of the module, or name of the function."""
    mean: float
    variance: float
    """Over all values."""
    signal: float
    """Between the samples of the batch: the variance of each value over samples, averaged."""
    share: float
    """The signal's share of the mean square: 0 if every sample gives the same values. The bias of
    a layer that no other layer follows doesn't count."""
    predicted: float | None = None
    """The variance that weights of this size give on average; of layers alone."""
    gradient: float | None = None
    """Mean square of the gradient with respect to the output; None if none arrives."""
    weight_gradient: float | None = None
    """Norm of the weight's gradient times norm of the weight: what a relative change of the weight
    does to the loss. Scales that a norm takes out don't matter to it. Of layers alone."""
    is_symmetric: bool = False
    """Whether another layer follows, and the weight has rows that are all the same and not
    zero."""
    is_gate: bool = False
    """Whether it is an activation whose output is multiplied with another tensor."""
    units: int | None = None
    """How many units an activation has."""
    dead: float | None = None
    """Share of units with the same output and slope zero for every input of the batch; of
    activations alone."""
    saturated: float | None = None
    """Share of units with a slope below 0.01 at half of their inputs or more; None for activations
    that are flat on one side, such as ReLU, and for functions that aren't known by name."""
    linear: float | None = None
    """Share of units whose outputs are a linear function of their inputs on the batch; None for
    functions that aren't known by name."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that a pass tells about a model."""

    rows: tuple[DiagnosedLayer, ...]
    inputs: InputScale
    fed: InputScale | None
    """Of what the first layer takes: the inputs, or what the model makes of them before."""
    loss: float
    flow: Flow
    """The calls, and where gradients go between them."""
    at: Mapping[int, DiagnosedLayer]
    """The rows by the index of their call."""
    cut: Mapping[str, int]
    """Trained parameters that no gradient reaches although the output depends on them, and the
    index of the call that takes each."""
    mistakes: tuple[Finding, ...]
    """What is wrong with the arguments of single calls, or of the loss."""
    parameters: dict[str, Tensor | None]
    """Gradient of each trained parameter; None if no output depends on it."""

    @property
    def layers(self) -> list[DiagnosedLayer]:
        """The rows of layers with a weight."""
        return [row for row in self.rows if row.kind == "layer"]


def gradient_ratio(measured: Measurement) -> float | None:
    """What a relative change of the first weight does to the loss, as a multiple of the last."""
    sizes = [row.weight_gradient for row in measured.layers if row.weight_gradient is not None]
    return sizes[0] / sizes[-1] if len(sizes) > 1 and sizes[-1] > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something to know about a model."""

    kind: str
    """"inputs", "non-finite", "detached", "softmax", "loss", "signal dies", "signal explodes",
    "dead", "gradient vanishes", "gradient explodes", "symmetric", "saturated", "linear",
    "parameters" or "remark"."""
    text: str
    """In a sentence, without a full stop."""
    layer: str = ""
    """Name of the layer it starts at."""
    position: int | None = None

    @property
    def is_problem(self) -> bool:
        return self.kind != "remark"


def found_at(row: DiagnosedLayer, kind: str, text: str) -> Finding:
    """A finding that starts at a row; the text goes on after its place."""
    return Finding(
        kind=kind,
        text=f"layer {row.position}, `{row.name}`: {text}",
        layer=row.name,
        position=row.position,
    )


def number(value: float) -> str:
    """A number as it reads in a sentence.

    Example:
        >>> number(0.93), number(1234567.0), number(1.23e-9)
        ('0.93', '1.2e+06', '1.2e-09')
    """
    return f"{value:.2g}"


def listed(texts: list[str]) -> str:
    """The first three, and how many more there are."""
    shown = ", ".join(texts[:3])
    return f"{shown} and {len(texts) - 3} more" if len(texts) > 3 else shown
