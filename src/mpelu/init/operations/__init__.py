"""Rules for how operations change the signal that passes through them, one for each operation.

`registry` has the table of rules, and finds the signal after a call. `shapes` has the rules for
operations that keep or join values, `values` for arithmetic and activations, and `reductions` for
norms, pooling and products; each registers its rules when it is imported. A function without a rule
is run to see whether it is elementwise. After anything else the variance is assumed to be one, and
the report says so.
"""

from mpelu.init.operations.reductions import (
    embedding_weight,
    ends_in_norm,
    hidden_second,
    is_plain,
)
from mpelu.init.operations.registry import Step, is_known, propagate, register_operation
from mpelu.init.operations.shapes import pad_amounts, pads_zeros
from mpelu.init.operations.values import added_signals

__all__ = [
    "Step",
    "added_signals",
    "embedding_weight",
    "ends_in_norm",
    "hidden_second",
    "is_known",
    "is_plain",
    "pad_amounts",
    "pads_zeros",
    "propagate",
    "register_operation",
]
