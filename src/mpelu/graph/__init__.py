"""How a model is read, and what its operations are: the calls it makes and what feeds each.

`trace` reads a model symbolically, `record` from a forward pass, `record_shapes` from shapes. None
of them changes the model. Other packages import from here, never from the modules inside.
"""

from mpelu.graph.attention import attention_forward
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
    reason,
    substitute,
    tensors_in,
    unwrap,
)
from mpelu.graph.channels import Channels, find_channels
from mpelu.graph.layers import Layer, fans, layer_of
from mpelu.graph.ops import (
    ARITHMETIC,
    COMPARES,
    DIVIDES,
    KINDS,
    MIXES,
    MOVES,
    NORMS,
    NOT_NEGATIVE,
    SIGN_KEPT,
    name_of,
    plain_name,
)
from mpelu.graph.probe import (
    LEAVES,
    elementwise,
    elementwise_function,
    is_opaque,
    isolated,
)
from mpelu.graph.recorded import UNKNOWN, Known, record, record_shapes
from mpelu.graph.state import copied, restored_on_error, snapshot, unchanged, unchanged_on_error
from mpelu.graph.symbolic import trace
from mpelu.graph.weights import WEIGHT_HOOKS, Weights, extent, is_zero

__all__ = [
    "ARITHMETIC",
    "COMPARES",
    "DIVIDES",
    "INPUT",
    "KINDS",
    "LEAVES",
    "MIXES",
    "MOVES",
    "NORMS",
    "NOT_NEGATIVE",
    "SIGN_KEPT",
    "UNKNOWN",
    "WEIGHT_HOOKS",
    "Call",
    "Channels",
    "Inputs",
    "Known",
    "Layer",
    "Ref",
    "Weights",
    "arguments",
    "attention_forward",
    "check_inputs",
    "check_model",
    "collector_paused",
    "copied",
    "elementwise",
    "elementwise_function",
    "evaluating",
    "extent",
    "fans",
    "find_channels",
    "input_error",
    "is_frozen",
    "is_opaque",
    "is_zero",
    "isolated",
    "layer_of",
    "name_of",
    "plain_name",
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
