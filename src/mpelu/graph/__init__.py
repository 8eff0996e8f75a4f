"""How a model is read: the calls it makes, and what feeds each.

`trace` reads a model symbolically, `record` from a forward pass, `record_shapes` from shapes. All
leave the model as it was.
"""

from mpelu.graph.calls import (
    INPUT,
    Call,
    Inputs,
    Ref,
    arguments,
    check_inputs,
    check_model,
    collector_paused,
    evaluating,
    input_error,
    is_frozen,
    name_of,
    reason,
    substitute,
    tensors_in,
    unwrap,
)
from mpelu.graph.probe import (
    LEAVES,
    elementwise,
    elementwise_function,
    is_opaque,
)
from mpelu.graph.recorded import UNKNOWN, Known, record, record_shapes
from mpelu.graph.state import copied, restored_on_error, snapshot, unchanged, unchanged_on_error
from mpelu.graph.symbolic import trace
from mpelu.graph.weights import WEIGHT_HOOKS, Weights, extent

__all__ = [
    "INPUT",
    "LEAVES",
    "UNKNOWN",
    "WEIGHT_HOOKS",
    "Call",
    "Inputs",
    "Known",
    "Ref",
    "Weights",
    "arguments",
    "check_inputs",
    "check_model",
    "collector_paused",
    "copied",
    "elementwise",
    "elementwise_function",
    "evaluating",
    "extent",
    "input_error",
    "is_frozen",
    "is_opaque",
    "name_of",
    "reason",
    "record",
    "record_shapes",
    "restored_on_error",
    "snapshot",
    "substitute",
    "tensors_in",
    "trace",
    "unchanged",
    "unchanged_on_error",
    "unwrap",
]
