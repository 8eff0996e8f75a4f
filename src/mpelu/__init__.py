"""MPELU for PyTorch: a learnable activation and the initialization that goes with it."""

from mpelu import functional, kernels, models
from mpelu.functional import mpelu
from mpelu.modules import MPELU

__all__ = ["MPELU", "functional", "kernels", "models", "mpelu"]
__version__ = "0.1.0"
