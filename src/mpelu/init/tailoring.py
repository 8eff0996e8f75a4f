"""Shapes by the conditions of TAT, with what they ask of weights and biases.

The shift of the conditions is a constant bias before MPELU. The gain is part of the weights after
it, and the offset part of their biases: nothing is added to the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mpelu.graph import Call, Layer, Weights
from mpelu.init.plan import Plan
from mpelu.init.shape import Structure
from mpelu.init.signal import Signal
from mpelu.theory.tailoring import Tailored, tailored


class Tailoring(NamedTuple):
    """What is planned for a network."""

    shape: Tailored
    shifted: frozenset[int]
    """Indices of the layers that feed an MPELU."""
    raised: frozenset[int]
    """Indices of the layers that an MPELU feeds."""


def tailor(
    calls: Sequence[Call],
    layers: Sequence[Layer | None],
    signals: Sequence[Signal],
    structure: Structure,
) -> Tailoring:
    """The shape for a chain of layers and MPELUs.

    Args:
        calls: of the model, in order.
        layers: that the calls run.
        signals: of every call, as the planner left them.
        structure: of the network.

    Raises:
        ValueError: if the network is anything else.
    """
    chosen = {id(module) for module in structure.modules}
    uses = Counter(fed for call in calls for fed in call.fed_by)
    shifted: list[int] = []
    raised: list[int] = []
    last: int | None = None  # the layer since the last MPELU
    count = 0
    for index, (call, layer) in enumerate(zip(calls, layers, strict=True)):
        before = signals[index].before
        if len(call.fed_by) > 1 or uses[index] > 1:
            raise _error(f"{call.name}, where paths part or join")
        if layer is not None:
            if not _has_free_bias(layer):
                raise _error(f"{call.name}, which isn't")
            if last is None and count > 0:
                raised.append(index)
            last = index
        elif before is not None and before is not signals[call.fed_by[0]].before:
            if id(call.target) not in chosen:
                raise _error(f"{call.name}, another activation")
            count += 1
            shifted += [] if last is None else [last]
            last = None
    return Tailoring(tailored(count), frozenset(shifted), frozenset(raised))


def _has_free_bias(layer: Layer) -> bool:
    is_plain = layer.is_standard and not layer.transposed and layer.weight.requires_grad
    bias = layer.bias
    return is_plain and bias is not None and bias.requires_grad and bias.dim() == 1


def _error(found: str) -> ValueError:
    return ValueError(
        "initialize_: expected a chain of MPELUs and of linear or convolutional layers with "
        f"biases, all trained, for activation_shape 'tailored', got {found}"
    )


@torch.no_grad()
def fill_shifts_(plans: Sequence[Plan], weights: Weights) -> None:
    """Constant biases, and what the weights make of the offset of their inputs."""
    for plan in plans:
        if plan.bias is not None and (plan.shift or plan.offset) and not plan.left:
            weight = weights.again(plan.weight)
            plan.bias.copy_(plan.shift + plan.offset * weight.flatten(1).sum(1))
