"""What calls tell about a network: where values go and gradients don't, layers in a row, mistakes
in arguments, gates, rows of weights, and flat activations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.diagnosis.inputs import is_measurable
from mpelu.elementwise import LINEAR
from mpelu.graph import (
    ARITHMETIC,
    KINDS,
    MIXES,
    MOVES,
    Call,
    Layer,
    Ref,
    elementwise_function,
    layer_of,
    plain_name,
    substitute,
    tensors_in,
)


def gate_calls(calls: Sequence[Call]) -> Iterator[Call]:
    """Calls whose output is multiplied with another tensor."""
    for call in calls:
        tensors = [each for each in call.args if isinstance(each, (Ref, Tensor))]
        if call.kind == "multiply" and len(tensors) > 1:
            for index in call.fed_by:
                yield calls[_through_views(index, calls)]


def _through_views(index: int, calls: Sequence[Call]) -> int:
    """The call behind views and reshapes."""
    while calls[index].kind in (*MOVES, "copy") and isinstance(
        calls[index].argument(0, "input"), Ref
    ):
        index = calls[index].argument(0, "input").index
    return index


@dataclass(frozen=True)
class Flow:
    """Where values and gradients go from call to call."""

    calls: Sequence[Call]
    graded: Mapping[int, bool]
    """Whether the output of a call has a gradient, by the call's id; only of real numbers."""

    def sources(self, index: int) -> tuple[int, ...]:
        """The calls whose values come out of a call."""
        call = self.calls[index]
        kind = call.kind
        if kind in MIXES or call.name == "setitem":
            return call.fed_by
        if kind == "create":
            return ()
        if id(call) not in self.graded and call.shape is not None:
            return ()  # it returned no real numbers
        return call.fed_by[:1]

    def before(self, ends: Iterable[int]) -> set[int]:
        """The calls whose values reach one of some calls, these included."""
        found = set(ends)
        for index in range(max(found, default=-1), -1, -1):
            if index in found:
                found.update(self.sources(index))
        return found

    def after(self, start: int, without: int = -1) -> set[int]:
        """The calls that the values of a call reach, itself included, but not through another."""
        found = {start}
        for index in range(start + 1, len(self.calls)):
            if index != without and not found.isdisjoint(self.sources(index)):
                found.add(index)
        return found

    def has_gradient(self, index: int) -> bool:
        """Whether the output of a call has one; several outputs have one if their inputs have."""
        known = self.graded.get(id(self.calls[index]))
        if known is None:
            return any(self.has_gradient(each) for each in self.sources(index))
        return known

    def cuts(self) -> list[int]:
        """The calls that values with a gradient go into, and values without one come out of."""
        return [
            index
            for index, call in enumerate(self.calls)
            if self.graded.get(id(call)) is False
            and (has_trained(call) or any(self.has_gradient(each) for each in self.sources(index)))
        ]

    def meets_itself(self, cut: int) -> bool:
        """Whether what leaves a cut meets values that have gone around it, as in x + f(x.detach()).

        What straight-through estimators add and subtract does too, but no layer is between.
        """
        behind = self.after(cut)
        beside = {
            index
            for source in self.sources(cut)
            if self.has_gradient(source)
            for index in self.after(source, without=cut)
        } - behind
        return any(
            self.calls[index].kind in ARITHMETIC and not beside.isdisjoint(self.sources(index))
            for index in behind
        )


def has_trained(call: Call) -> bool:
    """Whether the call takes a trained parameter."""
    target = call.target
    own = target.parameters(recurse=False) if isinstance(target, nn.Module) else ()
    return any(each.requires_grad for each in (*own, *tensors_in((call.args, call.kwargs))))


_CHANNEL_NORMS = {*KINDS["batch norm"], *KINDS["group norm"]}
_STRAIGHT = {
    *_CHANNEL_NORMS,
    "identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout", "contiguous",
    "flatten",
}  # fmt: skip
"""What makes no difference to whether two layers could be one, as `plain_name` has it."""


def layers_in_a_row(calls: Sequence[Call]) -> tuple[list[tuple[Call, Call]], int]:
    """Pairs of layers that could be one layer, and how many layers could be in such pairs.

    Nothing nonlinear comes between them, nothing else takes what does, and the first has at least
    as many outputs as their product has rank: a low rank, grouped or separable convolutions and
    convolutions of another shape are meant to be so.
    """
    uses = Counter(index for call in calls for index in call.fed_by)
    found = {index: _dense(call) for index, call in enumerate(calls)}
    dense = {index: layer for index, layer in found.items() if layer is not None}
    pairs = []
    for index, layer in dense.items():
        fed, between = layer.fed, set()
        while uses[fed] == 1 and plain_name(calls[fed].target) in _STRAIGHT:
            between.add(plain_name(calls[fed].target))
            fed = calls[fed].fed_by[0]
        first = dense.get(fed)
        if first is None or uses[fed] != 1 or ("flatten" in between and not first.kernel):
            continue  # what a linear layer makes of tokens may be flattened for the next
        has_norm = not between.isdisjoint(_CHANNEL_NORMS)
        # Blocks that end in a norm and go on wider are the bottlenecks of MobileNets.
        rank = layer.out_channels if has_norm else min(first.fan_in, layer.out_channels)
        if first.out_channels >= rank:
            pairs.append((calls[fed], calls[index]))
    return pairs, len(dense)


def _dense(call: Call) -> Layer | None:
    """The layer of a call, if its weight is trained and connects everything with everything."""
    layer = layer_of(call)
    if layer is None or not layer.is_standard or layer.transposed or layer.groups > 1:
        return None
    return layer if layer.weight.requires_grad and len({*layer.kernel}) < 2 else None


def mistake_in(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int
) -> tuple[str, str] | None:
    """The kind of what is certainly wrong with the arguments of a function, and a sentence."""
    found = _CHECKS.get(plain_name(target))
    call = Call("", target, args, kwargs)
    values = call.argument(0, "input")
    if found is None or not isinstance(values, Tensor) or not is_measurable(values):
        return None
    kind, check = found
    text = check(call, values, batch)
    return (kind, text) if text else None


def _over_batch(call: Call, values: Tensor, batch: int) -> str:
    if values.dim() < 2 or values.size(0) != batch:
        return ""
    if values.shape == (batch, batch):  # similarities between samples
        return ""
    is_module = isinstance(call.target, nn.Module)
    dim = getattr(call.target, "dim", None) if is_module else call.argument(1, "dim")
    if dim is None:  # what torch takes, and warns of
        dim = 0 if values.dim() == 3 else 1
    if not isinstance(dim, int) or dim % values.dim() != 0:
        return ""
    return "the softmax sums to one over the samples of the batch; give it dim=-1"


def _of_probabilities(call: Call, values: Tensor, batch: int) -> str:
    if not _are_probabilities(values):
        return ""
    return (
        "it gets probabilities, but takes scores and applies softmax itself; leave out the softmax "
        "before it"
    )


def _of_scores(call: Call, values: Tensor, batch: int) -> str:
    if not bool((values > 1e-3).any()):
        return ""
    return (
        f"it gets {'probabilities' if _are_probabilities(values) else 'scores'}, but takes their "
        "logarithms; use cross_entropy on scores"
    )


def _are_probabilities(values: Tensor) -> bool:
    axis = 1 if values.dim() > 1 else 0
    if values.dim() == 0 or values.size(axis) < 2 or not bool((values >= 0).all()):
        return False
    total = values.detach().float().sum(axis)
    return bool(((total - 1).abs() < 1e-2).all())


_CHECKS: dict[str, tuple[str, Callable[[Call, Tensor, int], str]]] = {
    **dict.fromkeys(["softmax", "logsoftmax"], ("softmax", _over_batch)),
    **dict.fromkeys(["crossentropy", "crossentropyloss"], ("loss", _of_probabilities)),
    "nllloss": ("loss", _of_scores),
}
"""By the name of a function or class, as `plain_name` has it."""


def followed_calls(calls: Sequence[Call]) -> set[int]:
    """Ids of the calls whose output reaches a weight of a later call."""
    found: set[int] = set()
    for call in reversed(calls):
        if id(call) in found or _has_weight(call):
            found.update(id(calls[index]) for index in call.fed_by)
    return found


def _has_weight(call: Call) -> bool:
    target = call.target
    if isinstance(target, nn.Module):
        return any(each.dim() > 1 for each in target.parameters())
    return layer_of(call) is not None


def has_equal_rows(layer: Layer) -> bool:
    """Whether the weights of all outputs are the same, and not zero.

    Outputs of different groups see different inputs, so rows are compared inside of each group.
    """
    if not layer.weight.requires_grad or layer.out_channels < 2:
        return False
    weight = layer.weight.detach()
    if not layer.is_standard:  # which of its dimensions the outputs are isn't known
        rows = weight.reshape(1, -1, 1)
    elif layer.transposed:
        rows = weight.movedim(1, 0).reshape(1, weight.size(1), -1)
    else:
        rows = weight.reshape(layer.groups, weight.size(0) // layer.groups, -1)
    if rows.size(1) < 2 or not rows[0, 0].equal(rows[0, 1]):
        return False
    return bool((rows == rows[:, :1]).all() and rows.any())


_RANGE = 6.0
"""A flat part is looked for between minus and plus this."""
_POINTS = 64

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class CalledActivation:
    """An elementwise function and what it is called with."""

    function: Function
    values: Tensor
    is_known: bool = True
    """Whether it is an activation by its name. Of other functions only dead units count: one that
    keeps values in bounds is meant to be linear most of the time."""


def clipping_of(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CalledActivation | None:
    """The function that a call applies to its one tensor with a gradient, or None.

    None unless it is elementwise, and constant on one part of the line and not on another. Other
    tensors have to hold a single value, as zeros_like(x) does in maximum(x, zeros_like(x)).
    """
    tensors = tensors_in((args, kwargs))
    learned = [each for each in tensors if each.requires_grad]
    if len(learned) != 1 or not callable(target):
        return None
    values = learned[0]
    if isinstance(values, nn.Parameter) or values.dim() < 2 or not is_measurable(values):
        return None
    numbers = {id(each): _number(each) for each in tensors if each is not values}
    if any(each is None for each in numbers.values()):
        return None

    def function(y: Tensor) -> Tensor:
        now = substitute((args, kwargs), Tensor, lambda each: y if each is values else each)
        output: Tensor = target(*now[0], **now[1])
        return output

    def on_noise(y: Tensor) -> Tensor:
        now = substitute(
            (args, kwargs), Tensor, lambda each: y if each is values else numbers[id(each)]
        )
        output: Tensor = target(*now[0], **now[1])
        return output

    found = elementwise_function(on_noise, "", 1, values.dim())
    if found is None or found is LINEAR or not _has_flat_part(on_noise, values.dim()):
        return None
    return CalledActivation(function, values, is_known=False)


def _number(values: Tensor) -> Tensor | None:
    """The single value that a tensor holds, on the CPU, or None."""
    if values.numel() == 0 or torch._C._functorch.is_functorch_wrapped_tensor(values):
        return None
    first = values.flatten()[0]
    return first.cpu() if bool((values == first).all()) else None


def _has_flat_part(function: Function, dims: int) -> bool:
    points = torch.linspace(-_RANGE, _RANGE, _POINTS, dtype=torch.float64)
    try:
        _, slopes = with_slopes(function, points.reshape(-1, *[1] * (dims - 1)))
    except RuntimeError:  # its outputs have no gradient
        return False
    return 0 < int((slopes == 0).sum()) < _POINTS


def with_slopes(function: Function, values: Tensor) -> tuple[Tensor, Tensor]:
    """The function's outputs, and its slope at each value."""
    with torch.enable_grad():
        leaf = values.clone().requires_grad_()
        outputs = function(leaf * 1)  # a copy, because the function may work in place
        (slopes,) = torch.autograd.grad(outputs.sum(), leaf)
    return outputs.detach(), slopes
