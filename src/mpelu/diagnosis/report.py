"""The records of a diagnosis: rows, findings and trials, its sentence, and how it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

CURABLE = (
    "non-finite", "signal dies", "signal explodes", "gradient vanishes", "gradient explodes",
    "dead", "symmetric", "saturated", "linear",
)  # fmt: skip
"""Kinds of problems that other weights may solve."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosedLayer:
    """Measurements of the output of a layer, a norm or an activation, over the whole batch."""

    position: int
    """Number of layers with a weight that the pass has reached, including this one."""
    name: str
    """Path of the module. A function is named after itself and the layer before it."""
    kind: str
    """"layer", "norm" or "activation"."""
    type: str
    """Class of the module, or name of the function."""
    mean: float
    variance: float
    """Population variance of all values."""
    signal: float
    """Variance of each value between the samples of the batch, averaged over values."""
    share: float
    """Signal divided by the mean square: 0 if every sample gives the same values. For a layer that
    no other layer follows, the mean square leaves out the bias."""
    predicted: float | None = None
    """Variance that random weights of this size give. None for norms and activations."""
    gradient: float | None = None
    """Mean square of the gradient with respect to the output; None if no gradient arrives."""
    weight_gradient: float | None = None
    """Norm of the weight times the norm of its gradient: the effect of a relative change of the
    weight on the loss. It doesn't depend on a scale that a norm removes again."""
    is_symmetric: bool = False
    """Whether all rows of the weight are equal and not zero, and another layer follows."""
    is_gate: bool = False
    """Whether it is an activation whose output is multiplied with another tensor."""
    units: int | None = None
    """Number of units of an activation."""
    dead: float | None = None
    """Share of dead units, as defined in `mpelu.diagnosis.quantities`."""
    saturated: float | None = None
    """Share of saturated units. None for activations that are flat on one side, such as ReLU, and
    for functions that aren't known by name."""
    linear: float | None = None
    """Share of linear units. None for functions that aren't known by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A problem of a model, or a remark about it."""

    kind: str
    """"inputs", "non-finite", "detached", "softmax", "loss", "signal dies", "signal explodes",
    "dead", "gradient vanishes", "gradient explodes", "symmetric", "saturated", "linear",
    "parameters" or "remark"."""
    text: str
    """One sentence without a full stop."""
    layer: str = ""
    """Name of the layer where it starts."""
    position: int | None = None

    @property
    def is_problem(self) -> bool:
        return self.kind != "remark"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Effect of an initialization, measured on a copy of the model."""

    method: str
    swapped: tuple[str, ...] = ()
    """Classes of the activations that MPELU replaced."""
    predicted: float | None = None
    """Variance of the last layer's output by propagation of moments."""
    signal: float | None = None
    """Measured variance of the last layer's output between samples."""
    gradient_ratio: float | None = None
    """Effect of a relative change of the first weight on the loss, divided by that of the last."""
    problem: str = ""
    """Problem that remains, or why the initialization can't be applied; empty if there is none."""

    @property
    def label(self) -> str:
        """The method, and the activations that MPELU replaced."""
        return f"{self.method} {self.swap}" if self.swapped else self.method

    @property
    def swap(self) -> str:
        """The activations that MPELU replaced, in words."""
        return f"with MPELU for {' and '.join(self.swapped)}"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What `diagnose` found. Print it to see the sentence and a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> mpelu.diagnose(model, torch.randn(32, 8)).is_healthy
        True
    """

    sentence: str
    """The worst problem, or that the model is healthy, with figures."""
    findings: tuple[Finding, ...]
    """Problems first, then remarks."""
    rows: tuple[DiagnosedLayer, ...]
    """In the order of the forward pass."""
    trials: tuple[Trial, ...]
    """Effect of each initialization; empty if other weights wouldn't help."""
    loss: float | None
    """None without targets and loss."""

    @property
    def is_healthy(self) -> bool:
        """Whether no problem was found. Remarks don't count."""
        return not any(finding.is_problem for finding in self.findings)

    @property
    def others(self) -> tuple[Finding, ...]:
        """Findings that the sentence doesn't mention."""
        return self.findings if self.is_healthy else self.findings[1:]

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain numbers, strings and lists."""
        return {
            "sentence": self.sentence,
            "healthy": self.is_healthy,
            "loss": self.loss,
            "findings": [
                {**asdict(finding), "problem": finding.is_problem} for finding in self.findings
            ],
            "rows": [asdict(row) for row in self.rows],
            "trials": [asdict(trial) for trial in self.trials],
        }

    def __str__(self) -> str:
        texts, numbers = ("name", "type"), ("mean", "variance", "predicted", "signal", "gradient")
        cells: list[Sequence[str]] = [("layer", *texts, *numbers)]
        for row in self.rows:
            values = (getattr(row, each) for each in numbers)
            shown = ("-" if value is None else f"{value:.3g}" for value in values)
            cells.append((str(row.position), row.name, row.type, *shown))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        aligned = [f"{{:>{widths[0]}}}", *(f"{{:<{each}}}" for each in widths[1:3])]
        line = "  ".join([*aligned, *(f"{{:>{each}}}" for each in widths[3:])])
        table = [line.format(*each).rstrip() for each in cells]
        return "\n".join([self.sentence, *(f"- {each.text}" for each in self.others), "", *table])


def sentence_of(
    rows: Sequence[DiagnosedLayer], findings: Sequence[Finding], trials: Sequence[Trial]
) -> str:
    """Returns the worst problem and what would solve it, or that the model is healthy.

    Args:
        rows: rows of the model.
        findings: findings, the worst first.
        trials: trials in the order of preference.
    """
    worst = next((each for each in findings if each.is_problem), None)
    if worst is None:
        return _healthy(rows)
    if worst.kind not in CURABLE:
        return worst.text
    cure = next((trial for trial in trials if not trial.problem), None)
    if cure is None:
        tried = dict.fromkeys(trial.method for trial in trials)
        return f"{worst.text}; no initialization of {', '.join(tried)} would change that"
    assert cure.signal is not None
    call = f"initialize_(model, inputs, '{cure.method}')"
    if cure.swapped:
        call = f"no initialization alone would change that; {cure.swap}, {call}"
    verb = "hold it at" if worst.kind.startswith("signal") else "give the signal a variance of"
    return f"{worst.text}; {call} would {verb} {number(cure.signal)} in the last layer"


def _healthy(rows: Sequence[DiagnosedLayer]) -> str:
    layers = [row for row in rows if row.kind == "layer"]
    signals = [row.signal for row in layers]
    ratio = gradient_ratio(rows)
    dead = [row.dead for row in rows if row.dead is not None]
    parts = [
        f"healthy: the signal's variance is between {number(min(signals))} and "
        f"{number(max(signals))} over {len(layers)} layers, {number(signals[-1])} at the last "
        f"(`{layers[-1].name}`)"
    ]
    if ratio is not None:
        parts.append(f"the first weights matter {number(ratio)} times as much as the last")
    if dead:
        share = f"at most {max(dead):.0%} of an activation's units are dead"
        parts.append(share if max(dead) > 0 else "no unit of any activation is dead")
    return "; ".join(parts)


def gradient_ratio(rows: Sequence[DiagnosedLayer]) -> float | None:
    """Returns the effect of a relative change of the first weight, divided by that of the last."""
    sizes = [row.weight_gradient for row in rows if row.weight_gradient is not None]
    return sizes[0] / sizes[-1] if len(sizes) > 1 and sizes[-1] > 0 else None


def number(value: float) -> str:
    """Formats a number for a sentence.

    Example:
        >>> number(0.93), number(1234567.0), number(1.23e-9)
        ('0.93', '1.2e+06', '1.2e-09')
    """
    return f"{value:.2g}"
