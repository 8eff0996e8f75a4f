"""MPELU for PyTorch: a learnable activation and the initialization that goes with it."""

from mpelu import functional, init, kernels, models
from mpelu.functional import mpelu
from mpelu.modules import MPELU
from mpelu.moments import moments

__all__ = ["MPELU", "functional", "init", "kernels", "models", "moments", "mpelu"]
__version__ = "0.1.0"
