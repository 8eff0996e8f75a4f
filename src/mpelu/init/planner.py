"""Plans the standard deviation of every weight of a model, before any is changed.

It walks over the calls of the model once, in order, with the moments of what flows between them.
A layer takes the moments of its input and gets a plan; any other operation passes them on by its
rule; an addition shares the target variance among the layers that end in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mpelu.elementwise import LINEAR, Value, average
from mpelu.graph import (
    WEIGHT_HOOKS,
    Call,
    Key,
    Layer,
    Weights,
    collector_paused,
    is_zero,
    layer_of,
    taken_elsewhere,
    uses_of,
)
from mpelu.init.fill import has_delta, limits
from mpelu.init.layers import (
    PADDING_NOTE,
    Profile,
    after_fixed,
    after_random,
    by_group,
    deviation,
    flat,
    is_small,
    pads_small,
    recurrent_plans,
    resized,
    step_after,
    through_layer,
    through_operation,
)
from mpelu.init.methods import TARGET, AsTheyAre, Incoming, Method
from mpelu.init.operations import (
    Step,
    added_signals,
    embedding_weight,
    ends_in_norm,
    propagate,
)
from mpelu.init.plan import (
    CAPPED_NOTE,
    COMPUTED_ZERO_NOTE,
    HUGE,
    LARGEST,
    NOISE_NOTE,
    OFF,
    RANGE_NOTE,
    REUSED_NOTE,
    SCALE_NOTE,
    SCALELESS,
    SCALELESS_NOTE,
    STATE_NOTE,
    ZERO_NOTE,
    ZEROS_NOTE,
    Plan,
    changed_note,
    hook_note,
)
from mpelu.init.signal import Note, Signal, Source, doubted


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What is planned for a model, and predicted about it."""

    calls: Sequence[Call]
    layers: Sequence[Layer | None]
    """Layer that each call runs."""
    signals: Sequence[Signal]
    """Moments after each call."""
    plans: Sequence[Plan]
    """Plan for each weight that the calls use, in order."""


def plan(
    calls: Sequence[Call],
    weights: Weights,
    method: Method,
    zeros: Collection[str] | None = None,
) -> Planned:
    """Plans all weights.

    Args:
        calls: calls of the model, in order.
        weights: weights of the model, which tell which tensors are parameters.
        method: method that derives the scale of a weight from what feeds it.
        zeros: paths of parameters that stay zero; None if all are set.

    Raises:
        ValueError: if the moments before a weight aren't finite.
    """
    with collector_paused(), torch.no_grad():
        planned = _Walk(calls, weights, method, zeros, {}).run()
        # A weight that is also an embedding feeds the model with its new deviation.
        if embedded := _embedded_stds(calls, weights, planned.plans):
            planned = _Walk(calls, weights, method, zeros, embedded).run()
    return planned


def predict(calls: Sequence[Call], weights: Weights) -> Planned:
    """Predicts the moments in a model whose weights stay as they are."""
    return plan(calls, weights, AsTheyAre())


class _Walk:
    """Walks over the calls once. Decisions about a weight or a call aren't changed later, except
    for the share of an addition, which isn't known until the addition is reached."""

    def __init__(
        self,
        calls: Sequence[Call],
        weights: Weights,
        method: Method,
        zeros: Collection[str] | None,
        embedded: Mapping[str, float],
    ) -> None:
        self._calls, self._weights, self._method = calls, weights, method
        self._zeros, self._embedded = zeros, embedded
        self._is_orthogonal = method.distribution == "orthogonal" and method.has_rule
        self._layers = [layer_of(call) for call in calls]
        self._keys, self._widest, self._entangled = uses_of(self._layers, weights)
        self._all_uses = Counter(self._keys)
        self._uses: Counter[Key | None] = Counter()  # so far
        self._consumers: dict[int, list[int]] = {}
        for index, call in enumerate(calls):
            for fed in call.fed_by:
                self._consumers.setdefault(fed, []).append(index)
        used = (index for index, layer in enumerate(self._layers) if layer is not None)
        self._last = max(used, default=0)
        self._shapes = [call.shape for call in calls]
        self._knows_shapes = any(shape is not None for shape in self._shapes)
        self._additions = sum(len(call.fed_by) > 1 and added_signals(call) for call in calls)
        self._signals: list[Signal] = []
        self._shares: dict[int, float] = {}
        """Factor by which an addition scales the variance of a signal that ends in it, by call."""
        self._profiles: list[Profile] = []
        self._steps: list[float] = []
        """Distance between neighbors on a map, in pixels of the input, if shapes are unknown."""
        self._plans: dict[Key, Plan] = {}

    def run(self) -> Planned:
        for index, (call, layer) in enumerate(zip(self._calls, self._layers, strict=True)):
            if layer is not None:
                signal, profile = self._through_layer(index, call, layer)
            else:
                signal, profile = self._through_operation(index, call)
            if not self._knows_shapes:
                self._steps.append(step_after(call, layer, self._step(call)))
            if signal.layer is not None and len(self._consumers.get(index, ())) > 1:
                signal = replace(signal, layer=None)
            self._signals.append(signal)
            self._profiles.append(profile)
        if self._knows_shapes and self._method.balances:
            self._mark_ends()
        for each in self._plans.values():
            _check_finite(each)
        return Planned(
            calls=self._calls,
            layers=self._layers,
            signals=[self._signal(index) for index in range(len(self._calls))],
            plans=list(self._plans.values()),
        )

    def _signal(self, index: int) -> Signal:
        """Returns the signal after a call, with its share if an addition was reached."""
        signal, share = self._signals[index], self._shares.get(index)
        return signal if share is None else replace(signal, variance=signal.variance * share)

    # Layers

    def _through_layer(self, index: int, call: Call, layer: Layer) -> tuple[Signal, Profile]:
        signal = self._into_layer(layer)
        fed = self._profiles[layer.fed]
        is_delta = self._is_orthogonal and has_delta(layer)
        profile, reached = (
            (resized(fed, call.shape), 1.0) if is_delta else through_layer(layer, fed, call.shape)
        )
        key = self._keys[index]
        is_trained = key is not None and self._weights.is_trained(layer.weight)
        self._uses[key] += 1
        is_first = key is not None and key not in self._plans
        if key is not None and is_first:
            self._plans[key] = self._plan(index, layer, signal, reached, is_delta, is_trained)
        found = None if key is None else self._plans[key]
        is_random = is_trained and found is not None and not found.is_fixed
        mean: Value
        variance: Value
        if is_random and found is not None:
            mean, variance = after_random(layer, signal, reached, found.std)
            variance = variance + found.bias_std**2
        else:
            now = replace(layer, weight=self._weights.again(layer.weight))
            is_left = found is not None and found.left is not None
            mean, variance = after_fixed(now, signal, keeps_bias=is_left)
        after = Signal(
            mean=mean,
            variance=variance,
            sources=(Source("linear", LINEAR),),
            channels=layer.out_channels,
            layer=index if is_random and self._may_share(index) else None,
            doubts=signal.doubts,
            growth=signal.growth,
        )
        if key is None and isinstance(call.target, nn.Module) and list(call.target.parameters()):
            after = doubted(after, hook_note(call.name))
        elif self._is_hooked(call):
            after = doubted(after, changed_note(call.name))
        if key is not None and found is not None:
            if is_first:
                self._plans[key] = replace(found, predicted=after.overall_variance)
            elif _is_off(after.overall_variance, found.predicted):
                self._plans[key] = _noted(found, REUSED_NOTE)
        return after, profile

    def _into_layer(self, layer: Layer) -> Signal:
        """Returns the signal that feeds a layer, with notes if it is doubtful."""
        signal = self._signal(layer.fed)
        if self._method.reads_moments:
            doubts = (SCALELESS_NOTE, *signal.doubts)[:4]
            is_first_order = self._method.is_first_order
            if is_first_order and _is_astray(signal, signal.first_order):
                signal = replace(signal, first_order=1.0, doubts=doubts)
            square = average(signal.second)
            is_huge = square == math.inf or (bool(signal.doubts) and square > HUGE)
            if is_huge or (not is_first_order and _is_astray(signal, signal.second)):
                moment = signal.first_order if is_first_order else 1.0
                sources, channels = signal.sources, signal.channels
                signal = Signal(
                    first_order=moment, sources=sources, channels=channels, doubts=doubts
                )
        if not self._knows_shapes and is_small(layer, self._steps[layer.fed]):
            signal = doubted(signal, PADDING_NOTE)
        if average(signal.second) == 0:
            signal = doubted(signal, ZEROS_NOTE)
        return signal

    def _plan(
        self,
        index: int,
        layer: Layer,
        signal: Signal,
        reached: float,
        is_delta: bool,
        is_trained: bool,
    ) -> Plan:
        """Returns the plan for the weight of a layer at its first use."""
        key, method = self._keys[index], self._method
        assert key is not None
        fan = method.fan(layer.fan_in, layer.fan_out) if method.has_rule else None
        std: Value
        if not method.has_rule:
            std, bias_variance = deviation(self._weights.again(layer.weight)), 0.0
        else:
            moment = signal.first_order if method.is_first_order else signal.second
            incoming = Incoming(
                fan=layer.fan_in if fan is None else fan,
                fan_in=layer.fan_in,
                fan_out=layer.fan_out,
                moment=by_group(layer, moment),
                signal=signal,
                reached=reached,
                can_shift=method.sets_biases and self._can_shift(index, layer, signal),
            )
            std, bias_variance = method.rule_and_bias(incoming)
            if not isinstance(std, (int, float, Tensor)) or average(std) < 0:
                raise ValueError(
                    f"initialize_: expected a standard deviation from {type(method).__name__}.rule "
                    f"for {key[0]}, got {std!r}"
                )
        found = Plan(
            name=key[0],
            key=key,
            index=index,
            weight=layer.weight,
            bias=layer.bias,
            is_trained=is_trained,
            sources=signal.sources,
            fan=fan,
            std=std,
            bias_std=math.sqrt(bias_variance),
            doubts=(*signal.doubts, *method.notes(signal)),
            widest=self._widest[key] if isinstance(std, float) else None,
            is_computed=self._weights.is_computed(layer.weight),
            groups=layer.groups if layer.is_standard else 1,
            is_delta=is_delta,
            reached=reached,
        )
        if not found.is_trained:
            return found
        if method.is_first_order and self._knows_shapes:
            _, variance = after_random(layer, signal, reached, found.std)
            if average(variance) > LARGEST:
                std = found.std * math.sqrt(TARGET / average(variance))
                found = _noted(replace(found, std=std), CAPPED_NOTE)
        return self._settled(found)

    def _can_shift(self, index: int, layer: Layer, signal: Signal) -> bool:
        """Returns whether biases may make up for variance that the weight doesn't give."""
        bias = layer.bias
        can_shift = bias is not None and bias.requires_grad and bias.dim() == 1
        if signal.before is None or not can_shift or index == self._last:
            return False
        is_shared = self._all_uses[self._keys[index]] > 1
        return not (is_shared or ends_in_norm(index, self._calls, self._consumers))

    def _may_share(self, index: int) -> bool:
        """Returns whether a layer may be scaled for an addition that its output ends in."""
        by_moments = self._method.reads_moments and not self._method.is_first_order
        return by_moments and self._uses[self._keys[index]] == 1 and index != self._last

    def _settled(self, found: Plan) -> Plan:
        """Determines whether and how the weight can be set as planned."""
        if self._method.has_rule:
            found = _limited(found)
        if self._stays_zero(found):
            found = replace(found, left=ZERO_NOTE)
        elif found.is_computed:
            found = self._settled_computed(found)
        if found.left:
            std = deviation(self._weights.again(found.weight))
            found = replace(found, is_fixed=True, bias_std=0.0, std=std)
        return found

    def _stays_zero(self, found: Plan) -> bool:
        if self._zeros is None:
            return False
        if any(name in self._zeros for name in self._weights.originals(found.name)):
            return True
        return self._weights.is_part(found.weight) and is_zero(found.weight)

    def _settled_computed(self, found: Plan) -> Plan:
        """Determines how the parameters of a computed weight can be set, if they can."""
        weights, std = self._weights, average(found.std)
        if weights.can_write(found.weight, std):
            return replace(found, is_inverted=True)
        if is_zero(weights.again(found.weight)):
            return replace(found, left=COMPUTED_ZERO_NOTE)
        is_fixed = not 0.5 < weights.exponent(found.weight) < 1.5
        found = replace(found, is_fixed=is_fixed)
        if weights.parametrized(found.name) is None:
            return _noted(found, SCALE_NOTE) if is_fixed else found
        if is_fixed or not self._method.has_rule:
            return replace(found, left=STATE_NOTE)
        if not weights.takes_noise(found.name, std):
            return replace(found, left=NOISE_NOTE)
        return found

    # Other operations

    def _through_operation(self, index: int, call: Call) -> tuple[Signal, Profile]:
        if call.target is None:
            profile = flat(call.shape)
        else:
            fed = self._profiles[call.fed_by[0]] if call.fed_by else ()
            profile = through_operation(call, fed)
            if len(call.fed_by) > 1 and added_signals(call):
                self._share_sum(call)
            elif isinstance(call.target, (nn.RNNBase, nn.RNNCellBase)):
                self._plan_recurrent(index, call)
        signals = {fed: self._signal(fed) for fed in call.fed_by}
        step = Step(
            call=call,
            signals=signals,
            shapes=self._shapes,
            first_order=self._method.first_order,
        )
        signal = propagate(step)
        weight = embedding_weight(call) if self._embedded else None
        name = None if weight is None else self._weights.name(weight)
        if name is not None and name in self._embedded:
            second = self._embedded[name] ** 2
            signal = replace(signal, mean=0.0, variance=second, first_order=second)
        if self._zeros is not None and f"{call.name}.weight" in self._zeros:  # of a norm
            signal = replace(signal, mean=0.0, variance=0.0, first_order=0.0)
        if self._is_hooked(call):
            signal = doubted(signal, changed_note(call.name))
        if not self._knows_shapes and pads_small(call, self._step(call)):
            signal = doubted(signal, PADDING_NOTE)
        return signal, profile

    def _share_sum(self, call: Call) -> None:
        """Shares the target variance among the layers that end in an addition.

        What the other addends leave of the target is divided equally among these layers. Identity
        shortcuts leave nothing; each addition may then add 1 / additions of the target, so that no
        chain of them exceeds twice the target.
        """
        addends = {index: self._signal(index) for index in call.fed_by}
        # A weight that has been reused already has an effect elsewhere.
        free = {
            index: key
            for index, signal in addends.items()
            if signal.layer is not None
            and (key := self._keys[signal.layer]) is not None
            and self._uses[key] == 1
        }
        if not free:
            return
        taken = sum(average(addends[index].variance) for index in call.fed_by if index not in free)
        share = max(TARGET - taken, TARGET / self._additions) / len(free) / TARGET
        for index, key in free.items():
            # The repeated contributions of one weight add up in amplitude, not in variance.
            own = share / self._all_uses[key]
            found = self._plans[key]
            self._plans[key] = replace(
                found,
                std=found.std * math.sqrt(own),
                bias_std=found.bias_std * math.sqrt(own),
                predicted=(found.predicted or 0.0) * own,
            )
            self._shares[index] = own

    def _plan_recurrent(self, index: int, call: Call) -> None:
        signal = self._signal(call.fed_by[0])
        for found in recurrent_plans(index, call, signal, self._weights, self._method):
            if found.key not in self._plans:
                self._plans[found.key] = self._settled(found) if found.is_trained else found

    # What is known about the whole model

    def _mark_ends(self) -> None:
        """Finds the weights that end in a norm wherever they are used."""
        kept = self._entangled | taken_elsewhere(self._calls, self._layers, self._weights)
        ends: dict[Key, bool] = {}
        for index, key in enumerate(self._keys):
            if key is not None and ends.get(key, True):
                is_end = ends_in_norm(index, self._calls, self._consumers)
                ends[key] = is_end and key[0] not in kept
        for key, found in self._plans.items():
            if ends.get(key, False):
                self._plans[key] = replace(found, ends_in_norm=True)

    def _is_hooked(self, call: Call) -> bool:
        """Returns whether a hook, which torch.fx doesn't show, may change a module's output."""
        module = call.target
        if self._knows_shapes or not isinstance(module, nn.Module):
            return False
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        return not all(isinstance(hook, WEIGHT_HOOKS) for hook in hooks)

    def _step(self, call: Call) -> float:
        return max((self._steps[fed] for fed in call.fed_by), default=1.0)


def _noted(found: Plan, note: Note) -> Plan:
    """Adds a note to the plan unless it has it."""
    return found if note in found.doubts else replace(found, doubts=(*found.doubts, note))


def _limited(found: Plan) -> Plan:
    """Keeps the standard deviation of a plan in the range of the weight's type."""
    low, high = limits(found.weight.dtype)
    kept: Value
    if isinstance(found.std, Tensor):
        kept = found.std.clamp(low, high)
        is_kept = torch.equal(kept, found.std)
    else:
        kept = min(max(found.std, low), high)
        is_kept = kept == found.std
    if is_kept or average(found.std) != average(found.std):  # a NaN is refused later
        return found
    return _noted(replace(found, std=kept), RANGE_NOTE)


def _check_finite(found: Plan) -> None:
    std = found.std
    is_finite = bool(std.isfinite().all()) if isinstance(std, Tensor) else math.isfinite(std)
    if found.is_trained and not is_finite:
        raise ValueError(
            f"initialize_: expected finite moments before {found.name}, got a standard deviation "
            f"of {std}; register a rule for what feeds it"
        )


def _is_astray(signal: Signal, value: Value) -> bool:
    """Returns whether a predicted mean square is infinite, or doubtful and far from one."""
    square = average(value)
    is_far = square != 0 and not 1 / SCALELESS < square < SCALELESS
    return square == math.inf or (bool(signal.doubts) and is_far)


def _is_off(variance: float, predicted: float | None) -> bool:
    ratio = variance / predicted if predicted else 1.0
    return not 1 / OFF <= ratio <= OFF


def _embedded_stds(
    calls: Sequence[Call], weights: Weights, plans: Sequence[Plan]
) -> Mapping[str, float]:
    """Returns the new deviations of planned weights that are also embeddings, if they change."""
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
