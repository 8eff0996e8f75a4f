"""Why a network doesn't train: signal, gradient and units layer by layer, from one batch.

In the order of a call: `diagnosing` (the steps), `measure` (a forward and a backward pass), `units`
(dead, saturated, linear), `flow` (what the calls tell), `findings` (what is wrong), `trials` (what
an initialization would change) and `report` (the record).
"""

from mpelu.diagnosis.diagnosing import diagnose
from mpelu.diagnosis.report import DiagnosedLayer, Diagnosis, Finding, Trial

__all__ = ["DiagnosedLayer", "Diagnosis", "Finding", "Trial", "diagnose"]
