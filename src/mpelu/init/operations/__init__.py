"""How each operation changes the signal that goes through it: one rule per operation.

Each module holds the rules of one kind of operation and registers them when it is imported.
Functions without a rule are tried for being elementwise; anything else has unit variance and is
said in the report.
"""

from mpelu.init.operations import aten, pooling, products  # noqa: F401  (registers their rules)
from mpelu.init.operations.arithmetic import added_signals
from mpelu.init.operations.calls import is_known, propagate
from mpelu.init.operations.norms import ends_in_norm, normalizes
from mpelu.init.operations.registry import Step, register_operation
from mpelu.init.operations.shape import pads_zeros

__all__ = [
    "Step",
    "added_signals",
    "ends_in_norm",
    "is_known",
    "normalizes",
    "pads_zeros",
    "propagate",
    "register_operation",
]
