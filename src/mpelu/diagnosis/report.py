"""The record of a diagnosis, and how it prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mpelu.diagnosis.finding import Finding
from mpelu.diagnosis.rows import DiagnosedLayer
from mpelu.diagnosis.trials import Trial


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
        others = [each.text for each in self.findings if each.text not in self.sentence]
        lines = [self.sentence, *(f"- {text}" for text in others), ""]
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
