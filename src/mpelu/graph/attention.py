"""torch.nn.MultiheadAttention as the linear layers and the attention it consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def attention_forward(module: nn.MultiheadAttention) -> Callable[..., Any]:
    """A forward of torch functions that can be watched, equal to the module's own in evaluation.

    Learned biases of keys and values, which hardly any model has, are left to the module.
    """
    own = module.forward

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if module.bias_k is not None or module.add_zero_attn or query.dim() != 3:
            return own(
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                need_weights=need_weights,
                attn_mask=attn_mask,
                average_attn_weights=average_attn_weights,
                is_causal=is_causal,
            )
        if not module.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        heads = module.num_heads
        queries, keys, values = (
            projected.unflatten(-1, (heads, -1)).transpose(1, 2)
            for projected in _projections(module, query, key, value)
        )
        mask = _mask(attn_mask, key_padding_mask, queries, heads)
        if need_weights:
            scores = queries @ keys.transpose(-2, -1) * module.head_dim**-0.5
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            mixed = weights @ values
            shown = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, mask)
            shown = None
        output = F.linear(
            mixed.transpose(1, 2).flatten(2), module.out_proj.weight, module.out_proj.bias
        )
        return output if module.batch_first else output.transpose(0, 1), shown

    return forward


def _projections(
    module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> list[Tensor]:
    if module.in_proj_weight is None:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = list(module.in_proj_weight.chunk(3))
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.chunk(3))
    inputs = (query, key, value)
    return [F.linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def _mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, queries: Tensor, heads: int
) -> Tensor | None:
    """Both masks as one that is added to the scores, shape [batch, heads, queries, keys]."""

    def additive(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask.to(queries.dtype)
        return torch.zeros_like(mask, dtype=queries.dtype).masked_fill(mask, float("-inf"))

    total = None
    if attn_mask is not None:
        total = additive(attn_mask)
        if total.dim() == 3:
            total = total.unflatten(0, (-1, heads))
    if key_padding_mask is not None:
        padding = additive(key_padding_mask)[:, None, None, :]
        total = padding if total is None else total + padding
    return total
