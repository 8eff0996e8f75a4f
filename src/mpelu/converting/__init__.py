"""MPELU in place of the activations of any model."""

from mpelu.converting.conversion import Conversion, ConvertedActivation
from mpelu.converting.modules import MPELUByWidth, PendingMPELU
from mpelu.converting.swap import convert

__all__ = ["Conversion", "ConvertedActivation", "MPELUByWidth", "PendingMPELU", "convert"]
