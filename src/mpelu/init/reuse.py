"""Parameters that a model uses more than once: again, in parts, transposed, or as an embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mpelu.graph import Call, Weights
from mpelu.init.layers import Layer
from mpelu.init.operations.products import embedding_weight
from mpelu.init.outputs import deviation
from mpelu.init.plan import Plan
from mpelu.init.values import average

Key = tuple[str, int, torch.Size] | None


def keys_of(layers: Sequence[Layer | None], weights: Weights) -> list[Key]:
    """A key for each layer's weight; uses that share elements, however they are seen, share one."""
    found: list[Key] = []
    first: dict[str, list[tuple[Key, Tensor]]] = {}
    for layer in layers:
        key = None if layer is None else weights.key(layer.weight)
        if key is not None and layer is not None:
            seen = first.setdefault(key[0], [])
            for other, tensor in seen:
                if key == other or weights.overlap(layer.weight, tensor):
                    key = other
                    break
            else:
                seen.append((key, layer.weight))
        found.append(key)
    return found


def embedded_stds(
    calls: Sequence[Call], weights: Weights, plans: Sequence[Plan]
) -> Mapping[str, float]:
    """Deviations of planned weights that are also embeddings, where they will change."""
    embeddings = [weight for call in calls if (weight := embedding_weight(call)) is not None]
    if not embeddings:
        return {}
    stds = {plan.name: average(plan.std) for plan in plans if plan.is_trained and not plan.left}
    named = [(weights.name(weight), weight) for weight in embeddings]
    return {
        name: stds[name]
        for name, weight in named
        if name is not None and name in stds and deviation(weight) != stds[name]
    }
