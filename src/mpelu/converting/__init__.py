"""MPELU in other people's models: `convert` and `load_state_dict`."""

from mpelu.converting.loading import load_state_dict
from mpelu.converting.modules import MPELUByWidth, PendingMPELU
from mpelu.converting.report import Conversion, ConvertedActivation
from mpelu.converting.swap import convert

__all__ = [
    "Conversion",
    "ConvertedActivation",
    "MPELUByWidth",
    "PendingMPELU",
    "convert",
    "load_state_dict",
]
