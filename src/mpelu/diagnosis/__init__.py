"""Why a network doesn't train: signal, gradient and units layer by layer, from one batch.

In the order of a call: `diagnosing` (the steps, and what an initialization would change), `measure`
(a forward and a backward pass), `quantities` (signal, gradient, units), `flow` (where values and
gradients go), `findings` (what is wrong) and `report` (the record).
"""

from mpelu.diagnosis.diagnosing import diagnose
from mpelu.diagnosis.quantities import (
    Moments,
    UnitCounter,
    UnitShares,
    is_measurable,
    mean_square,
    unit_axes,
)
from mpelu.diagnosis.report import DiagnosedLayer, Diagnosis, Finding, Trial

__all__ = [
    "DiagnosedLayer",
    "Diagnosis",
    "Finding",
    "Moments",
    "Trial",
    "UnitCounter",
    "UnitShares",
    "diagnose",
    "is_measurable",
    "mean_square",
    "unit_axes",
]
