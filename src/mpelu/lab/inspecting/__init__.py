"""What goes on inside a network: statistics of activations, residuals, gradients, alpha and beta.

Example:
    >>> from mpelu.lab.inspecting import activation_statistics
    >>> rows = activation_statistics(model, batches)
"""

from mpelu.lab.inspecting.gradients import GradientNorms, LayerGradient, gradient_norms
from mpelu.lab.inspecting.learned import Learned, learned_parameters
from mpelu.lab.inspecting.residuals import LayerResiduals, ResidualHistogram, residual_histogram
from mpelu.lab.inspecting.statistics import LayerStatistics, activation_statistics

__all__ = [
    "GradientNorms",
    "LayerGradient",
    "LayerResiduals",
    "LayerStatistics",
    "Learned",
    "ResidualHistogram",
    "activation_statistics",
    "gradient_norms",
    "learned_parameters",
    "residual_histogram",
]
