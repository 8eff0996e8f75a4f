"""Why a network doesn't train: signal, gradient and units layer by layer, from one batch."""

from mpelu.diagnosis.diagnosing import Diagnosis, Trial, diagnose
from mpelu.diagnosis.findings import Finding
from mpelu.diagnosis.measure import DiagnosedLayer

__all__ = ["DiagnosedLayer", "Diagnosis", "Finding", "Trial", "diagnose"]
