"""What goes on inside a network: statistics of activations, residuals, gradients, alpha and beta.

Example:
    >>> from mpelu.lab.inspect import activation_statistics
    >>> rows = activation_statistics(model, batches)
"""

from mpelu.lab.inspect.gradients import GradientNorms, LayerGradient, gradient_norms
from mpelu.lab.inspect.learned import Learned, learned_parameters
from mpelu.lab.inspect.residuals import LayerResiduals, ResidualHistogram, residual_histogram
from mpelu.lab.inspect.statistics import LayerStatistics, activation_statistics

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
