"""Rules for one weight, a whole network at a call, LSUV, and the paper's residual analysis."""

from mpelu.gaussian import residual_bound, residual_share
from mpelu.init.factors import gain
from mpelu.init.initialize import initialize_
from mpelu.init.lsuv import lsuv_
from mpelu.init.operations import Step, register_operation
from mpelu.init.report import Report, Row
from mpelu.init.rules import (
    exact_normal_,
    gaussian_,
    msra_normal_,
    taylor_normal_,
    xavier_normal_,
)
from mpelu.init.signal import Signal

__all__ = [
    "Report",
    "Row",
    "Signal",
    "Step",
    "exact_normal_",
    "gain",
    "gaussian_",
    "initialize_",
    "lsuv_",
    "msra_normal_",
    "register_operation",
    "residual_bound",
    "residual_share",
    "taylor_normal_",
    "xavier_normal_",
]
