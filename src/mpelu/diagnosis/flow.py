"""What the calls of a model tell: where values and gradients go, gates, layers in a row, rows of
weights, and mistakes in arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mpelu.diagnosis.units import is_measurable
from mpelu.graph import (
    ARITHMETIC,
    KINDS,
    MIXES,
    MOVES,
    Call,
    Layer,
    Ref,
    layer_of,
    plain_name,
    tensors_in,
)


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
        has_numbers = id(call) in self.graded or call.shape is None
        return call.fed_by[:1] if has_numbers and kind != "create" else ()

    def before(self, ends: Iterable[int]) -> set[int]:
        """The calls whose values reach one of some calls, including these."""
        found = set(ends)
        for index in range(max(found, default=-1), -1, -1):
            if index in found:
                found.update(self.sources(index))
        return found

    def after(self, start: int, without: int = -1) -> set[int]:
        """The calls that a call's values reach, including itself, but not through another."""
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
        """The calls that take values with a gradient and return values without one."""
        return [
            index
            for index, call in enumerate(self.calls)
            if self.graded.get(id(call)) is False
            and (
                any(each.requires_grad for each in tensors_of(call))
                or any(self.has_gradient(each) for each in self.sources(index))
            )
        ]

    def meets_itself(self, cut: int) -> bool:
        """Whether the output of a cut meets values that bypass it, as in x + f(x.detach()).

        Straight-through estimators add and subtract such values too, with no layer in between.
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


def tensors_of(call: Call, *, recurse: bool = False) -> list[Tensor]:
    """The parameters of a call's module, and the tensors among its arguments."""
    target = call.target
    own = target.parameters(recurse) if isinstance(target, nn.Module) else ()
    return [*own, *tensors_in((call.args, call.kwargs))]


def gates_of(calls: Sequence[Call]) -> set[int]:
    """Ids of the calls whose output is multiplied with another tensor."""
    found = set()
    for call in calls:
        tensors = [each for each in call.args if isinstance(each, (Ref, Tensor))]
        if call.kind == "multiply" and len(tensors) > 1:
            for index in call.fed_by:
                while calls[index].kind in (*MOVES, "copy") and isinstance(
                    source := calls[index].argument(0, "input"), Ref
                ):  # behind views and reshapes
                    index = source.index
                found.add(id(calls[index]))
    return found


def followed_by_layers(calls: Sequence[Call]) -> set[int]:
    """Ids of the calls whose output reaches the weight of a later call."""
    found: set[int] = set()
    for call in reversed(calls):
        target = call.target
        if id(call) in found or (
            any(each.dim() > 1 for each in target.parameters())
            if isinstance(target, nn.Module)
            else layer_of(call) is not None
        ):
            found.update(id(calls[index]) for index in call.fed_by)
    return found


def has_equal_rows(layer: Layer) -> bool:
    """Whether the weights of all outputs are the same, and not zero.

    Outputs of different groups see different inputs, so rows are compared within each group.
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


_CHANNEL_NORMS = {*KINDS["batch norm"], *KINDS["group norm"]}
_STRAIGHT = {
    *_CHANNEL_NORMS,
    "identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout", "contiguous",
    "flatten",
}  # fmt: skip
"""Operations that may stand between two layers that could be one, as `Call.operation` has them."""


def layers_in_a_row(calls: Sequence[Call]) -> tuple[list[tuple[int, int]], int]:
    """Indices of pairs of layers that could be one layer, and the number of candidates.

    Nothing nonlinear comes between them, nothing else takes what does, and the first has at least
    as many outputs as their product has rank: a low rank, grouped or separable convolutions and
    convolutions of another shape are on purpose.
    """
    uses = Counter(index for call in calls for index in call.fed_by)
    dense = {index: layer for index, call in enumerate(calls) if (layer := _dense(call))}
    pairs = []
    for index, layer in dense.items():
        fed, between = layer.fed, set()
        while uses[fed] == 1 and calls[fed].operation in _STRAIGHT:
            between.add(calls[fed].operation)
            fed = calls[fed].fed_by[0]
        first = dense.get(fed)
        if first is None or uses[fed] != 1 or ("flatten" in between and not first.kernel):
            continue  # tokens behind a linear layer may be flattened for the next
        has_norm = not between.isdisjoint(_CHANNEL_NORMS)
        # Blocks that end in a norm and continue wider are the bottlenecks of MobileNets.
        rank = layer.out_channels if has_norm else min(first.fan_in, layer.out_channels)
        if first.out_channels >= rank:
            pairs.append((fed, index))
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
    """A kind of finding and a sentence, if an argument of a function is certainly wrong."""
    found = _CHECKS.get(plain_name(target))
    call = Call("", target, args, kwargs)
    values = call.argument(0, "input")
    if found is None or not isinstance(values, Tensor) or not is_measurable(values):
        return None
    kind, check = found
    text = check(call, values, batch)
    return (kind, text) if text else None


def _over_batch(call: Call, values: Tensor, batch: int) -> str:
    is_similarity = values.shape == (batch, batch)  # between samples
    if values.dim() < 2 or values.size(0) != batch or is_similarity:
        return ""
    is_module = isinstance(call.target, nn.Module)
    dim = getattr(call.target, "dim", None) if is_module else call.argument(1, "dim")
    if dim is None:  # torch chooses one, with a warning
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
"""Kind of finding and check, by the name of a function or class as `Call.operation` has it."""
