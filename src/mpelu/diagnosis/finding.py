"""Something to know about a model, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass

from mpelu.diagnosis.rows import DiagnosedLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something to know about a model."""

    kind: str
    """"inputs", "non-finite", "signal dies", "signal explodes", "dead", "gradient vanishes",
    "gradient explodes", "symmetric", "saturated", "linear", "parameters" or "remark"."""
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
