"""Initialization of a whole network by one call, its methods, rules for a single weight, and the
paper's residual analysis.
"""

from mpelu.gaussian import residual_bound, residual_share
from mpelu.init.initialize import initialize_
from mpelu.init.methods import (
    LSUV,
    METHODS,
    MSRA,
    Critical,
    Deep,
    Exact,
    Fitted,
    Gaussian,
    Incoming,
    Method,
    Taylor,
    Xavier,
    find_method,
    gain,
    register_method,
)
from mpelu.init.operations import Step, register_operation
from mpelu.init.planner import predict
from mpelu.init.report import Initialization, InitializedWeight
from mpelu.init.rules import exact_normal_, taylor_normal_
from mpelu.init.signal import Note, Signal

__all__ = [
    "LSUV",
    "METHODS",
    "MSRA",
    "Critical",
    "Deep",
    "Exact",
    "Fitted",
    "Gaussian",
    "Incoming",
    "Initialization",
    "InitializedWeight",
    "Method",
    "Note",
    "Signal",
    "Step",
    "Taylor",
    "Xavier",
    "exact_normal_",
    "find_method",
    "gain",
    "initialize_",
    "predict",
    "register_method",
    "register_operation",
    "residual_bound",
    "residual_share",
    "taylor_normal_",
]
