"""Inspection of networks: statistics of layers, Taylor residuals, gradients, alpha and beta.

Four functions work on any torch module: `activation_statistics`, `gradient_norms`,
`residual_histogram` and `learned_parameters`. `inspect_run` and `inspect_config` apply all four to
the network of a run, or to the network a run would start with.
"""

from mpelu.lab.inspecting.gradients import GradientNorms, LayerGradient, gradient_norms
from mpelu.lab.inspecting.inspection import Inspection, inspect_config, inspect_run
from mpelu.lab.inspecting.learned import LearnedParameters, learned_parameters
from mpelu.lab.inspecting.residuals import LayerResiduals, ResidualHistogram, residual_histogram
from mpelu.lab.inspecting.statistics import LayerStatistics, activation_statistics

__all__ = [
    "GradientNorms",
    "Inspection",
    "LayerGradient",
    "LayerResiduals",
    "LayerStatistics",
    "LearnedParameters",
    "ResidualHistogram",
    "activation_statistics",
    "gradient_norms",
    "inspect_config",
    "inspect_run",
    "learned_parameters",
    "residual_histogram",
]
