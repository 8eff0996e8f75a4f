"""Parameters that a model uses more than once: again, in parts, transposed, or as an embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpelu.elementwise import average
from mpelu.graph import Call, Layer, Weights, extent, tensors_in
from mpelu.init.operations.products import embedding_weight
from mpelu.init.outputs import deviation
from mpelu.init.plan import Plan

Key = tuple[str, int, torch.Size] | None


class Uses(NamedTuple):
    """How layers use parameters."""

    keys: list[Key]
    """One for each layer's weight; uses that share elements, however they are seen, share one."""
    widest: dict[Key, Tensor]
    """By key, the use that takes the most elements."""
    entangled: set[str]
    """Paths of parameters whose uses share some elements and differ in others."""


def uses_of(layers: Sequence[Layer | None], weights: Weights) -> Uses:
    """Finds out which layers use the same elements of a parameter."""
    found = Uses([None] * len(layers), {}, set())
    by_name: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        key = None if layer is None else weights.key(layer.weight)
        found.keys[index] = key
        if key is not None and layer is not None:
            found.widest.setdefault(key, layer.weight)
            by_name.setdefault(key[0], []).append(index)
    for name, indices in by_name.items():
        if len(indices) > 1:
            tensors = {index: each.weight for index in indices if (each := layers[index])}
            _join(found, name, tensors, weights)
    return found


def _join(found: Uses, name: str, tensors: Mapping[int, Tensor], weights: Weights) -> None:
    """Gives uses of one parameter that share elements the key of the first of them.

    A map of the parameter says which use took each element first, so that every use is looked at
    once, not once with every other.
    """
    views = {index: weights.elements(tensor) for index, tensor in tensors.items()}
    if len(set(views.values())) == 1:
        return
    owners = torch.full((max(map(extent, views.values())),), -1, dtype=torch.int32, device="cpu")
    firsts: list[int] = []
    counts: list[int] = []
    for index, view in views.items():
        own = owners.as_strided(*view)
        taken = own[own >= 0]
        if taken.numel() == 0:
            own.fill_(len(firsts))
            firsts.append(index)
            counts.append(own.numel())
            continue
        owner = int(taken.min())
        key = found.keys[index] = found.keys[firsts[owner]]
        if not own.numel() == counts[owner] == int((own == owner).sum()):
            found.entangled.add(name)
        widest = found.widest[key]
        if own.numel() > owners.as_strided(*weights.elements(widest)).numel():
            found.widest[key] = tensors[index]


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


def taken_elsewhere(
    calls: Sequence[Call], layers: Sequence[Layer | None], weights: Weights
) -> set[str]:
    """Paths of parameters that calls take otherwise than as the weight of a layer."""
    found: set[str | None] = set()
    for call, layer in zip(calls, layers, strict=True):
        if layer is None:
            own = call.target.parameters() if isinstance(call.target, nn.Module) else ()
            found.update(map(weights.name, [*tensors_in((call.args, call.kwargs)), *own]))
    return {name for name in found if name is not None}
