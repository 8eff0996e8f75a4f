"""How each operation changes the signal that goes through it: one rule per operation.

`registry` has the table of rules, and the way from a call to the signal after it. `shapes` has the
rules of operations that keep values or join them, `values` those of arithmetic and activations,
`reductions` those of norms, pooling and products; each registers its rules when it is imported. A
function without a rule is tried for being elementwise. After anything else the variance is taken to
be one, and the report says so.
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
