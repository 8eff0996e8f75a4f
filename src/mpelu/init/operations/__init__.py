"""How each operation changes the signal that goes through it: one rule per operation.

`shapes` has the rules of operations that keep values or join them, `values` those of arithmetic and
activations, `reductions` those of norms, pooling and products. Each registers its rules when it is
imported. A function without a rule is tried for being elementwise; after anything else the variance
is taken to be one, and the report says so.
"""

from mpelu.init.operations.reductions import (
    embedding_weight,
    ends_in_norm,
    hidden_second,
    is_plain,
)
from mpelu.init.operations.registry import Step, register_operation
from mpelu.init.operations.shapes import pad_amounts, pads_zeros
from mpelu.init.operations.values import added_signals, is_known, propagate

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
