"""Follows values and gradients from call to call, and finds mistakes in the calls' arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from torch import Tensor, nn

from mpelu.diagnosis.quantities import is_measurable
from mpelu.diagnosis.report import Finding
from mpelu.graph import ARITHMETIC, KINDS, MIXES, MOVES, Call, Layer, Ref, Weights, tensors_in

_CHANNEL_NORMS = {*KINDS["batch norm"], *KINDS["group norm"]}
_STRAIGHT = {
    *_CHANNEL_NORMS,
    "identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout", "contiguous",
    "flatten",
}  # fmt: skip
"""Operations between which two layers could still be one layer, by `Call.operation`."""


class Bypass(NamedTuple):
    """A layer that learns from values whose layers don't learn from it."""

    layer: int
    """Index of the layer's call."""
    stop: int
    """Index of the call before it that stops the gradient."""
    is_mistake: bool
    """Whether the same values also bypass the stop. A second head may be detached on purpose."""


class Flow:
    """The way of values and gradients from call to call. Methods refer to calls by index.

    Args:
        calls: calls of a pass.
        layers: layers by the index of their call.
        graded: whether the output of a call has a gradient, by index. Only calls that return real
            numbers are in it.
    """

    def __init__(
        self, calls: Sequence[Call], layers: Mapping[int, Layer], graded: Mapping[int, bool]
    ) -> None:
        self.calls, self.layers, self.graded = calls, layers, graded

    @cached_property
    def gates(self) -> set[int]:
        """The calls whose output is multiplied by another tensor."""
        found = set()
        for call in self.calls:
            tensors = [each for each in call.args if isinstance(each, (Ref, Tensor))]
            if call.kind == "multiply" and len(tensors) > 1:
                for index in call.fed_by:
                    while self.calls[index].kind in (*MOVES, "copy") and isinstance(
                        source := self.calls[index].argument(0, "input"), Ref
                    ):  # behind views and reshapes
                        index = source.index
                    found.add(index)
        return found

    @cached_property
    def followed(self) -> set[int]:
        """The calls whose output reaches the weight of a later call."""
        found: set[int] = set()
        for index in reversed(range(len(self.calls))):
            target = self.calls[index].target
            if index in found or (
                any(each.dim() > 1 for each in target.parameters())
                if isinstance(target, nn.Module)
                else index in self.layers
            ):
                found.update(self.calls[index].fed_by)
        return found

    def stops(self) -> list[int]:
        """The calls that take values with a gradient and return values without one."""
        return [
            index
            for index, call in enumerate(self.calls)
            if self.graded.get(index) is False
            and (
                any(each.requires_grad for each in _tensors_of(call))
                or any(self._has_gradient(each) for each in self._sources(index))
            )
        ]

    def cut_off(self, lost: set[str], ends: Iterable[int], weights: Weights) -> dict[str, int]:
        """Returns the call that takes each parameter without a gradient that the output depends on.

        Args:
            lost: parameters without a gradient.
            ends: calls that return the output.
            weights: the model's weights.
        """
        found: dict[str, int] = {}
        for index in sorted(self._before(ends)) if lost else ():
            names = {weights.name(each) for each in _tensors_of(self.calls[index], recurse=True)}
            found.update((name, index) for name in names if name in lost)
        return found

    def bypass(self, learning: Iterable[int]) -> Bypass | None:
        """Returns the first layer that learns from values whose layers don't learn from it.

        Args:
            learning: layers whose weight has a gradient.
        """
        stops = self.stops()
        for index in learning:
            fed = self.layers[index].fed
            if self._has_gradient(fed):
                continue
            stop = max(self._before([fed]).intersection(stops), default=None)
            if stop is not None and self._has_gradient(index):
                return Bypass(index, stop, self._meets_itself(stop))
        return None

    def _sources(self, index: int) -> tuple[int, ...]:
        """Returns the calls whose values come out of a call."""
        call = self.calls[index]
        if call.kind in MIXES or call.name == "setitem":
            return call.fed_by
        has_numbers = index in self.graded or call.shape is None
        return call.fed_by[:1] if has_numbers and call.kind != "create" else ()

    def _before(self, ends: Iterable[int]) -> set[int]:
        """Returns the given calls, and all whose values reach them."""
        found = set(ends)
        for index in range(max(found, default=-1), -1, -1):
            if index in found:
                found.update(self._sources(index))
        return found

    def _after(self, start: int, without: int = -1) -> set[int]:
        """Returns a call and those that its values reach, leaving out paths through `without`."""
        found = {start}
        for index in range(start + 1, len(self.calls)):
            if index != without and not found.isdisjoint(self._sources(index)):
                found.add(index)
        return found

    def _has_gradient(self, index: int) -> bool:
        """Whether the output of a call has a gradient. Tuples have one if their inputs do."""
        known = self.graded.get(index)
        if known is None:
            return any(self._has_gradient(each) for each in self._sources(index))
        return known

    def _meets_itself(self, stop: int) -> bool:
        """Whether the output of a stop meets values that bypass it, as in x + f(x.detach()).

        Straight-through estimators add and subtract such values too, with no layer in between.
        """
        behind = self._after(stop)
        beside = {
            index
            for source in self._sources(stop)
            if self._has_gradient(source)
            for index in self._after(source, without=stop)
        } - behind
        return any(
            self.calls[index].kind in ARITHMETIC and not beside.isdisjoint(self._sources(index))
            for index in behind
        )

    def layers_in_a_row(self) -> tuple[list[tuple[int, int]], int]:
        """Returns pairs of layers that could be one layer, and the number of candidates.

        Nothing nonlinear comes between the two, nothing else takes the values in between, and the
        first has at least as many outputs as their product has rank. Low ranks, grouped or
        separable convolutions and convolutions of different shapes are taken to be intended.
        """
        uses = Counter(index for call in self.calls for index in call.fed_by)
        dense = {index: layer for index, layer in self.layers.items() if _is_dense(layer)}
        pairs = []
        for index, layer in dense.items():
            fed, between = layer.fed, set()
            while uses[fed] == 1 and self.calls[fed].operation in _STRAIGHT:
                between.add(self.calls[fed].operation)
                fed = self.calls[fed].fed_by[0]
            first = dense.get(fed)
            if first is None or uses[fed] != 1 or ("flatten" in between and not first.kernel):
                continue  # tokens behind a linear layer may be flattened for the next
            has_norm = not between.isdisjoint(_CHANNEL_NORMS)
            # Blocks that end in a norm and continue wider are the bottlenecks of MobileNets.
            rank = layer.out_channels if has_norm else min(first.fan_in, layer.out_channels)
            if first.out_channels >= rank:
                pairs.append((fed, index))
        return pairs, len(dense)


def _tensors_of(call: Call, *, recurse: bool = False) -> list[Tensor]:
    """Returns the parameters of a call's module, and the tensors among its arguments."""
    target = call.target
    own = target.parameters(recurse) if isinstance(target, nn.Module) else ()
    return [*own, *tensors_in((call.args, call.kwargs))]


def _is_dense(layer: Layer) -> bool:
    """Whether a layer's weight is trained and connects everything with everything."""
    if not layer.is_standard or layer.transposed or layer.groups > 1:
        return False
    return layer.weight.requires_grad and len({*layer.kernel}) < 2


def has_equal_rows(layer: Layer) -> bool:
    """Whether all outputs of a layer have the same weights, other than zero.

    Outputs of different groups see different inputs, so rows are compared within each group.
    """
    if not layer.weight.requires_grad or layer.out_channels < 2:
        return False
    weight = layer.weight.detach()
    if not layer.is_standard:  # any of its dimensions may hold the outputs
        rows = weight.reshape(1, -1, 1)
    elif layer.transposed:
        rows = weight.movedim(1, 0).reshape(1, weight.size(1), -1)
    else:
        rows = weight.reshape(layer.groups, weight.size(0) // layer.groups, -1)
    if rows.size(1) < 2 or not rows[0, 0].equal(rows[0, 1]):
        return False
    return bool((rows == rows[:, :1]).all() and rows.any())


def mistake_in(call: Call, subject: str, batch: int) -> Finding | None:
    """Returns what is certainly wrong with the arguments of a call, or None.

    Args:
        call: call of an operation in `CHECKS`, with tensors as its arguments.
        subject: beginning of the sentence.
        batch: number of samples.
    """
    kind, check = CHECKS[call.operation]
    values = call.argument(0, "input")
    is_checked = isinstance(values, Tensor) and is_measurable(values)
    text = check(call, values, batch) if is_checked else ""
    return Finding(kind=kind, text=f"{subject}: {text}") if text else None


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


CHECKS: dict[str, tuple[str, Callable[[Call, Tensor, int], str]]] = {
    **dict.fromkeys(["softmax", "logsoftmax"], ("softmax", _over_batch)),
    **dict.fromkeys(["crossentropy", "crossentropyloss"], ("loss", _of_probabilities)),
    "nllloss": ("loss", _of_scores),
}
"""Kind of finding and check, by `Call.operation`."""
