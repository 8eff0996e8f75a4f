"""Inspection of networks: statistics of layers, Taylor residuals, gradients, alpha and beta.

Four functions work on any torch module: `activation_statistics`, `measure_gradients`,
`residual_histogram` and `learned_parameters`. `inspect_run` and `inspect_config` apply all four to
the network of a run, or to the network a run would start with. Signal, gradient and units are
defined in `mpelu.diagnosis`.
"""

from mpelu.lab.inspecting.inspection import (
    Inspection,
    LearnedParameters,
    inspect_config,
    inspect_run,
    learned_parameters,
)
from mpelu.lab.inspecting.layers import (
    Gradients,
    LayerGradient,
    LayerStatistics,
    activation_statistics,
    measure_gradients,
)
from mpelu.lab.inspecting.residuals import LayerResiduals, ResidualHistogram, residual_histogram

__all__ = [
    "Gradients",
    "Inspection",
    "LayerGradient",
    "LayerResiduals",
    "LayerStatistics",
    "LearnedParameters",
    "ResidualHistogram",
    "activation_statistics",
    "inspect_config",
    "inspect_run",
    "learned_parameters",
    "measure_gradients",
    "residual_histogram",
]
