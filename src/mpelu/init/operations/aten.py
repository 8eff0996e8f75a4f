"""ATen operations, and the prims they are made of, whose arguments differ from those of torch.

They are met inside of calls that have no rule. All others have the rule of the function of their
name.
"""

from __future__ import annotations

from typing import Any

import torch

from mpelu.graph import Ref
from mpelu.init.operations.elementwise import elementwise
from mpelu.init.operations.norms import normalized, root_mean_square
from mpelu.init.operations.pooling import deviation
from mpelu.init.operations.products import attend
from mpelu.init.operations.registry import Step, register_operation
from mpelu.init.operations.shape import keeps, mixes
from mpelu.init.signal import Signal, mixed

aten: Any = torch.ops.aten
prims: Any = torch.ops.prims

register_operation(
    aten._reshape_alias, aten._to_copy, aten._unsafe_view, aten.alias, aten.lift_fresh,
    aten.lift_fresh_copy, prims.broadcast_in_dim, prims.convert_element_type, prims.collapse_view,
    prims.split_dim,
)(keeps)  # fmt: skip

register_operation(
    aten.slice, aten.as_strided, aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.im2col,
    aten.reflection_pad1d, aten.reflection_pad2d, aten.replication_pad2d, aten.index,
)(mixes)  # fmt: skip

# With scales of their own; celu and selu are made of elu.
register_operation(aten.elu, aten._prelu_kernel)(elementwise)

register_operation(aten.linalg_vector_norm)(deviation)

register_operation(
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_fused_attention_overrideable,
)(attend)


@register_operation(
    aten.native_layer_norm,
    aten.native_group_norm,
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._batch_norm_with_update,
)
def _norm(step: Step) -> Signal:
    return normalized(step.first, 0.0, 1.0)


@register_operation(aten._fused_rms_norm)
def _rms_norm(step: Step) -> Signal:
    return normalized(step.first, *root_mean_square(step.first))


@register_operation(aten.copy)
def _copy(step: Step) -> Signal:
    """The values copied; in place too."""
    source = step.call.argument(1, "src")
    return step.signal(source) if isinstance(source, Ref) else mixed(step.first)


register_operation(aten.copy_)(_copy)
