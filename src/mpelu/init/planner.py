"""The standard deviation of every weight of a model, before any is changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.elementwise import LINEAR, Value, average
from mpelu.graph import WEIGHT_HOOKS, Call, Layer, Weights, is_zero, layer_of
from mpelu.init.factors import has_no_tangent, msra_factor, safe_taylor_factor
from mpelu.init.maps import (
    PADDING_NOTE,
    is_small,
    pads_small,
    spread_share,
    step_after,
    surrounded,
)
from mpelu.init.operations import Step, added_signals, ends_in_norm, pads_zeros, propagate
from mpelu.init.operations.products import embedding_weight
from mpelu.init.orthogonal import has_delta
from mpelu.init.outputs import TARGET, after_fixed, after_random, by_group, deviation
from mpelu.init.plan import (
    CAPPED_NOTE,
    COMPUTED_ZERO_NOTE,
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
    tangent_note,
)
from mpelu.init.recurrent import recurrent_plans
from mpelu.init.reuse import Key, taken_elsewhere, uses_of
from mpelu.init.rules import GAUSSIAN_STD, fan_of, limits
from mpelu.init.signal import Note, Profile, Signal, Source, doubted, flat, padded, resized
from mpelu.init.tailoring import Tailoring


class Planner:
    """Walks the calls of a model once, with one signal per call.

    Args:
        calls: of the model, in order.
        weights: which tensors are parameters.
        method: as for `initialize_`.
        mode: as for `initialize_`.
        std: for method "gaussian".
        distribution: as for `initialize_`.
        tailoring: of a chain, for activation_shape "tailored".
        embedded: deviations that weights of embeddings will have, by path.
        zeros: paths of parameters that stay zero; None if all are set.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        weights: Weights,
        method: str,
        mode: str,
        std: float = GAUSSIAN_STD,
        distribution: str = "normal",
        tailoring: Tailoring | None = None,
        embedded: Mapping[str, float] | None = None,
        zeros: Collection[str] | None = None,
    ) -> None:
        self._zeros = zeros
        self._calls, self._weights = calls, weights
        self._is_orthogonal = distribution == "orthogonal"
        self._tailoring = tailoring
        self._method, self._mode, self._gaussian_std = method, mode, std
        self._factor = msra_factor if method == "msra" else safe_taylor_factor
        self.layers = [layer_of(call) for call in calls]
        """Of every call that runs one."""
        self._shapes = [call.shape for call in calls]
        self._keys, self._widest, self._entangled = uses_of(self.layers, weights)
        self._all_uses = Counter(self._keys)
        self._uses: Counter[Key] = Counter()
        """So far."""
        self._embedded = embedded or {}
        self._consumers: dict[int, list[int]] = {}
        for index, call in enumerate(calls):
            for fed in call.fed_by:
                self._consumers.setdefault(fed, []).append(index)
        self._last = max(
            (index for index, layer in enumerate(self.layers) if layer is not None), default=0
        )
        self._knows_shapes = any(shape is not None for shape in self._shapes)
        self._additions = sum(len(call.fed_by) > 1 and added_signals(call) for call in calls)
        self.signals: list[Signal] = []
        """Of every call, once `run` is done."""
        self._profiles: list[Profile] = []
        self._steps: list[float] = []
        """Pixels of the input between neighbours on a map, where shapes are not known."""
        self._plans: dict[int, list[Plan]] = {}
        """By the index of the call."""
        self._of_weight: dict[Any, Plan] = {}
        """By the key of the weight."""

    @torch.no_grad()
    def run(self) -> list[Plan]:
        """One plan for each weight the calls use, in order."""
        for index, (call, layer) in enumerate(zip(self._calls, self.layers, strict=True)):
            if layer is not None:
                signal, profile = self._through_layer(index, call, layer)
            else:
                signal, profile = self._through_operation(index, call)
            if not self._knows_shapes:
                self._steps.append(step_after(call, layer, self._step(call)))
            if signal.layer is not None and len(self._consumers.get(index, ())) > 1:
                signal = replace(signal, layer=None)
            self.signals.append(signal)
            self._profiles.append(profile)
        if self._mode == "balanced" and self._knows_shapes:
            self._free()
        return [plan for plans in self._plans.values() for plan in plans]

    def _free(self) -> None:
        """Notes which weights end in a norm wherever they are used."""
        kept = self._entangled | taken_elsewhere(self._calls, self.layers, self._weights)
        free: dict[Key, bool] = {}
        for index, key in enumerate(self._keys):
            if key is not None and free.get(key, True):
                ends = ends_in_norm(index, self._calls, self._consumers)
                free[key] = ends and key[0] not in kept
        for key, plan in self._of_weight.items():
            plan.is_free = free.get(key, False)

    def _is_hooked(self, call: Call) -> bool:
        """Whether a hook, which torch.fx doesn't show, may change what a module returns."""
        module = call.target
        if self._knows_shapes or not isinstance(module, nn.Module):
            return False
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        return not all(isinstance(hook, WEIGHT_HOOKS) for hook in hooks)

    def _step(self, call: Call) -> float:
        return max((self._steps[fed] for fed in call.fed_by), default=1.0)

    def _through_layer(self, index: int, call: Call, layer: Layer) -> tuple[Signal, Profile]:
        signal = self.signals[layer.fed]
        if self._method in ("exact", "critical") and _is_astray(signal, signal.second):
            doubts = (SCALELESS_NOTE, *signal.doubts)[:4]
            signal = Signal(0.0, 1.0, 1.0, signal.sources, signal.channels, doubts=doubts)
        elif self._method in ("taylor", "msra") and _is_astray(signal, signal.factor):
            doubts = (SCALELESS_NOTE, *signal.doubts)[:4]
            signal = replace(signal, factor=1.0, doubts=doubts)
        if not self._knows_shapes and is_small(layer, self._steps[layer.fed]):
            signal = doubted(signal, PADDING_NOTE)
        if average(signal.second) == 0:
            signal = doubted(signal, ZEROS_NOTE)
        profile, reached = self._padded(layer, self._profiles[layer.fed], call.shape)
        key = self._keys[index]
        self._uses[key] += 1
        name = None if key is None else key[0]
        is_trained = name is not None and self._weights.is_trained(layer.weight)
        if name is not None and key not in self._of_weight:
            fan, std, bias_variance = self._std(index, layer, signal, reached)
            plan = Plan(
                name,
                layer.weight,
                key,
                layer.bias,
                is_trained,
                signal.sources,
                fan,
                std,
                0.0,
                self._doubts(signal),
                written=self._widest[key] if isinstance(std, float) else None,
                is_computed=self._weights.is_computed(layer.weight),
                bias_std=math.sqrt(bias_variance),
                groups=layer.groups if layer.is_standard else 1,
                is_delta=self._is_delta(layer),
                reached=reached,
                index=index,
            )
            if self._tailoring is not None:
                shape, shifted, raised = self._tailoring
                plan.shift = shape.shift if index in shifted else 0.0
                plan.offset = shape.offset if index in raised else 0.0
            self._of_weight[key] = plan
            self._plans[index] = [plan]
            if is_trained:
                self._adjust(plan, layer, signal, reached)
        mean: Value
        variance: Value
        if self._tailoring is not None:
            mean, variance = self._of_weight[key].shift, TARGET
        elif is_trained and not self._of_weight[key].is_fixed:
            mean, variance = after_random(layer, signal, reached, self._of_weight[key].std)
            variance = variance + self._of_weight[key].bias_std ** 2
        else:
            is_left = key in self._of_weight and bool(self._of_weight[key].left)
            now = replace(layer, weight=self._weights.again(layer.weight))
            mean, variance = after_fixed(now, signal, keeps_bias=is_left)
        is_free = (
            self._method in ("exact", "critical")
            and is_trained
            and self._uses[key] == 1
            and index != self._last
            and not self._of_weight[key].is_fixed
        )
        after = Signal(
            mean,
            variance,
            1.0,
            (Source("linear", LINEAR),),
            layer.out_channels,
            layer=index if is_free else None,
            doubts=signal.doubts,
            growth=signal.growth,
        )
        if name is None and isinstance(call.target, nn.Module) and list(call.target.parameters()):
            after = doubted(after, hook_note(call.name))
        elif self._is_hooked(call):
            after = doubted(after, changed_note(call.name))
        if index in self._plans:
            self._plans[index][0].predicted = after.overall_variance
        elif key in self._of_weight:
            self._doubt_reuse(self._of_weight[key], after.overall_variance)
        return after, profile

    def _doubt_reuse(self, plan: Plan, variance: float) -> None:
        ratio = variance / plan.predicted if plan.predicted else 1.0
        if not 1 / OFF <= ratio <= OFF and REUSED_NOTE not in plan.doubts:
            plan.doubts = (*plan.doubts, REUSED_NOTE)

    def _adjust(self, plan: Plan, layer: Layer, signal: Signal, reached: float) -> None:
        """Takes into account how a weight is computed, and that first-order rules may explode."""
        if self._method in ("taylor", "msra") and self._knows_shapes:
            _, variance = after_random(layer, signal, reached, plan.std)
            if average(variance) > LARGEST:
                plan.std = plan.std * math.sqrt(TARGET / average(variance))
                plan.doubts = (*plan.doubts, CAPPED_NOTE)
        self._settle(plan)

    def _settle(self, plan: Plan) -> None:
        """Finds out whether and how the weight can be set as planned."""
        self._limit(plan)
        if self._stays_zero(plan):
            plan.left = ZERO_NOTE
        elif plan.is_computed:
            self._adjust_computed(plan)
        if plan.left:
            plan.is_fixed, plan.bias_std = True, 0.0
            plan.std = deviation(self._weights.again(plan.weight))

    def _stays_zero(self, plan: Plan) -> bool:
        if self._zeros is None:
            return False
        if any(name in self._zeros for name in self._weights.originals(plan.name)):
            return True
        return self._weights.is_part(plan.weight) and is_zero(plan.weight)

    def _limit(self, plan: Plan) -> None:
        """Keeps the weight in the range of its type."""
        if self._method in ("gaussian", "lsuv"):  # as the user says; as it is
            return
        low, high = limits(plan.weight.dtype)
        kept: Value
        if isinstance(plan.std, Tensor):
            kept = plan.std.clamp(low, high)
            is_kept = torch.equal(kept, plan.std)
        else:
            kept = min(max(plan.std, low), high)
            is_kept = kept == plan.std
        if not is_kept and average(plan.std) == average(plan.std):  # a NaN is refused later
            plan.std, plan.doubts = kept, (*plan.doubts, RANGE_NOTE)

    def _adjust_computed(self, plan: Plan) -> None:
        """Finds out how the weight follows from its parameters, or whether it can't."""
        weights = self._weights
        if weights.can_write(plan.weight, average(plan.std)):
            plan.is_inverted = True
            return
        if is_zero(weights.again(plan.weight)):
            plan.left = COMPUTED_ZERO_NOTE
            return
        plan.is_fixed = not 0.5 < weights.exponent(plan.weight) < 1.5
        if weights.parametrized(plan.name) is None:
            plan.doubts = (*plan.doubts, SCALE_NOTE) if plan.is_fixed else plan.doubts
        elif plan.is_fixed or self._method == "lsuv":
            plan.left = STATE_NOTE
        elif not weights.takes_noise(plan.name, average(plan.std)):
            plan.left = NOISE_NOTE

    def _through_operation(self, index: int, call: Call) -> tuple[Signal, Profile]:
        if call.target is None:
            profile = flat(call.shape)
        else:
            fed = self._profiles[call.fed_by[0]] if call.fed_by else ()
            profile = surrounded(fed, call) if pads_zeros(call) else resized(fed, call.shape)
            if len(call.fed_by) > 1 and added_signals(call):
                self._share_sum(call)
            elif isinstance(call.target, (nn.RNNBase, nn.RNNCellBase)):
                self._plan_recurrent(index, call)
        signal = propagate(Step(call, self.signals, self._shapes, self._factor))
        weight = embedding_weight(call) if self._embedded else None
        name = None if weight is None else self._weights.name(weight)
        if name is not None and name in self._embedded:
            second = self._embedded[name] ** 2
            signal = replace(signal, mean=0.0, variance=second, factor=second)
        if self._zeros is not None and f"{call.name}.weight" in self._zeros:  # of a norm
            signal = replace(signal, mean=0.0, variance=0.0, factor=0.0)
        if self._is_hooked(call):
            signal = doubted(signal, changed_note(call.name))
        if not self._knows_shapes and pads_small(call, self._step(call)):
            signal = doubted(signal, PADDING_NOTE)
        return signal, profile

    def _padded(
        self, layer: Layer, profile: Profile, shape: torch.Size | None
    ) -> tuple[Profile, float]:
        if self._is_delta(layer):
            return resized(profile, shape), 1.0
        if len(profile) != len(layer.padding):
            return flat(shape), 1.0
        if layer.transposed:
            return flat(shape), spread_share(layer, profile, shape) if shape else 1.0
        return padded(profile, layer.kernel, layer.stride, layer.dilation, layer.padding)

    def _is_delta(self, layer: Layer) -> bool:
        return self._is_orthogonal and self._method != "lsuv" and has_delta(layer)

    def _std(
        self, index: int, layer: Layer, signal: Signal, reached: float
    ) -> tuple[float | None, Value, float]:
        """n of the rule, the standard deviation (of each group where they differ), and the
        variance of the biases.

        Args:
            index: of the call.
            layer: whose weight it is for.
            signal: into the layer.
            reached: share of the layer's inputs that are not padding.
        """
        if self._method == "lsuv":  # done already
            return None, deviation(self._weights.again(layer.weight)), 0.0
        if self._method == "gaussian":
            return None, self._gaussian_std, 0.0
        if self._method == "xavier":
            fan = fan_of("average", layer.fan_in, layer.fan_out)
            return fan, fan**-0.5, 0.0
        # "balanced" scales only weights whose scale doesn't change the signal, afterwards.
        mode = "fan_in" if self._mode == "balanced" else self._mode
        fan = fan_of(mode, layer.fan_in, layer.fan_out)
        if self._tailoring is not None and index in self._tailoring.raised:
            raised = signal.variance + (signal.mean + self._tailoring.shape.offset) ** 2
            return fan, (TARGET / (fan * reached * average(raised))) ** 0.5, 0.0
        if self._method == "critical" and self._tailoring is None:
            critical = self._critical(index, layer, signal, fan, reached)
            if critical is not None:
                return fan, *critical
        if self._method in ("exact", "critical"):
            return fan, (TARGET / (fan * reached * by_group(layer, signal.second))) ** 0.5, 0.0
        return fan, (TARGET / (fan * by_group(layer, signal.factor))) ** 0.5, 0.0

    def _critical(
        self, index: int, layer: Layer, signal: Signal, fan: float, reached: float
    ) -> tuple[Value, float] | None:
        """Weights that keep gradients, and biases that make up for what the signal then loses.

        None where the exact rule has to do: a layer without trained biases, before a norm, at the
        end, or fed by anything but one activation; and an activation that needs less than none.
        """
        bias = layer.bias
        can_shift = bias is not None and bias.requires_grad and bias.dim() == 1
        if signal.before is None or not can_shift or index == self._last:
            return None
        is_shared = self._all_uses[self._keys[index]] > 1
        if is_shared or ends_in_norm(index, self._calls, self._consumers):
            return None
        variance = 1 / (fan * reached * signal.slope_before)
        missing = TARGET - variance * layer.fan_in * reached * average(signal.second)
        return (variance**0.5, max(0.0, missing)) if missing > -1e-6 else None

    def _doubts(self, signal: Signal) -> tuple[Note | str, ...]:
        if self._method == "taylor":
            flat_ones = [
                source.activation.name
                for source in signal.sources
                if has_no_tangent(source.activation)
            ]
            if flat_ones:
                return (*signal.doubts, tangent_note(flat_ones[0]))
        return signal.doubts

    def _share_sum(self, call: Call) -> None:
        """Scales the layers that end in an addition so that the sum has the target variance.

        What the other addends leave of the target goes to these layers in equal parts. Identity
        shortcuts leave nothing: then each addition may add 1 / additions of the target, and no
        chain of them ends above twice the target.
        """
        fed, signals = call.fed_by, self.signals
        # A weight that was used again already has an effect elsewhere.
        free = [
            index
            for index in fed
            if (at := signals[index].layer) is not None and self._uses[self._keys[at]] == 1
        ]
        if not free:
            return
        taken = sum(average(signals[index].variance) for index in fed if index not in free)
        share = max(TARGET - taken, TARGET / self._additions) / len(free) / TARGET
        for index in free:
            layer = signals[index].layer
            assert layer is not None
            # What one weight adds again and again adds up in its amplitude.
            own = share / self._all_uses[self._keys[layer]]
            for plan in self._plans[layer]:
                plan.std = plan.std * math.sqrt(own)
                plan.bias_std *= math.sqrt(own)
                plan.predicted = (plan.predicted or 0.0) * own
            signals[index] = replace(signals[index], variance=signals[index].variance * own)

    def _plan_recurrent(self, index: int, call: Call) -> None:
        signal = self.signals[call.fed_by[0]]
        plans = recurrent_plans(call, signal, self._weights, self._method, self._gaussian_std)
        for plan in plans:
            if plan.key not in self._of_weight:
                plan.is_computed = self._weights.is_computed(plan.weight)
                if plan.is_trained:
                    self._settle(plan)
                self._of_weight[plan.key] = plan
                self._plans.setdefault(index, []).append(plan)


def _is_astray(signal: Signal, value: Value) -> bool:
    """Whether a mean square that was predicted, with doubts, is too far from one to be believed."""
    square = average(value)
    is_far = square != 0 and not 1 / SCALELESS < square < SCALELESS
    return square == math.inf or (bool(signal.doubts) and is_far)
