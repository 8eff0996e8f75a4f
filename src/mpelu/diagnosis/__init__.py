"""Why a network doesn't train: signal, gradient and units layer by layer, from one batch."""

from mpelu.diagnosis.diagnosing import diagnose
from mpelu.diagnosis.report import Diagnosis
from mpelu.diagnosis.rows import DiagnosedLayer, Finding
from mpelu.diagnosis.trials import Trial

__all__ = ["DiagnosedLayer", "Diagnosis", "Finding", "Trial", "diagnose"]
