"""The record of a diagnosis: its one sentence, and how it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mpelu.diagnosis.rows import DiagnosedLayer, Finding, Measurement, gradient_ratio, number
from mpelu.diagnosis.trials import CURABLE, METHODS, Trial, swap_words


def sentence_of(measured: Measurement, findings: Sequence[Finding], trials: Sequence[Trial]) -> str:
    """The worst that was found and what would solve it, or that all is well, with figures."""
    problems = [each for each in findings if each.is_problem]
    if not problems:
        return _healthy(measured)
    worst = problems[0]
    if worst.kind not in CURABLE:
        return worst.text
    cure = next((trial for trial in trials if not trial.problem), None)
    if cure is None:
        return f"{worst.text}; no initialization of {', '.join(METHODS)} would change that"
    assert cure.signal is not None
    call = f"initialize_(model, example_inputs, method='{cure.method}')"
    if cure.swapped:
        swap = swap_words(cure.swapped)
        call = f"no initialization alone would change that; {swap}, {call}"
    verb = "hold it at" if worst.kind.startswith("signal") else "give the signal a variance of"
    return f"{worst.text}; {call} would {verb} {number(cure.signal)} in the last layer"


def _healthy(measured: Measurement) -> str:
    layers = measured.layers
    signals = [row.signal for row in layers]
    ratio = gradient_ratio(measured)
    dead = [row.dead for row in measured.rows if row.dead is not None]
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


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found; print it for the sentence and the table.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> mpelu.diagnose(model, torch.randn(32, 8)).is_healthy
        True
    """

    sentence: str
    """The worst that was found, or that all is well, with the figures."""
    findings: tuple[Finding, ...]
    """Problems first, then remarks."""
    rows: tuple[DiagnosedLayer, ...]
    """In the order of the forward pass."""
    trials: tuple[Trial, ...]
    """What each initialization would give; empty if no other weights are needed."""
    loss: float | None
    """None without targets and loss."""

    @property
    def is_healthy(self) -> bool:
        """Whether no problem was found; remarks don't count."""
        return not any(finding.is_problem for finding in self.findings)

    @property
    def others(self) -> tuple[Finding, ...]:
        """Findings that the sentence isn't about."""
        return self.findings if self.is_healthy else self.findings[1:]

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings and lists."""
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
        lines = [self.sentence, *(f"- {each.text}" for each in self.others), ""]
        header = ("layer", "name", "type", "mean", "variance", "predicted", "signal", "gradient")
        cells = [
            (
                str(row.position),
                row.name,
                row.type,
                *(
                    "-" if value is None else f"{value:.3g}"
                    for value in (
                        row.mean,
                        row.variance,
                        row.predicted,
                        row.signal,
                        row.gradient,
                    )
                ),
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        for line in (header, *cells):
            padded = [
                cell.ljust(width) if index in (1, 2) else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)
