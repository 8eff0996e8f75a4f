"""Layer-sequential unit variance (Mishkin and Matas, "All you need is a good init")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from mpelu.graph import (
    Call,
    Inputs,
    Key,
    Layer,
    Weights,
    check_inputs,
    input_error,
    is_zero,
    layer_of,
    record,
    unchanged_on_error,
)
from mpelu.init.fill import reset_norms_, zero_biases_
from mpelu.init.measure import FEW_OUTPUTS, Measured, mean_square_of, variance_of
from mpelu.init.methods import LSUV
from mpelu.init.plan import PART_NOTE
from mpelu.init.planner import plan
from mpelu.init.report import Initialization, rows_of


class _NotReached(RuntimeError):
    pass


def lsuv_(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    inputs: Inputs,
    method: LSUV,
    zeros: Collection[str] | None,
    generator: torch.Generator | None,
) -> Initialization:
    """Scales each layer until its output on the inputs has unit variance, in one forward pass.

    Args:
        model: network to initialize.
        parameters: parameters of the network, by path.
        inputs: inputs to call it with.
        method: method with its tolerance and number of rounds.
        zeros: paths of parameters that stay zero; None if all are set.
        generator: random number generator to draw from.

    Raises:
        RuntimeError: if a layer doesn't reach it. The model is then unchanged, as after any error.
    """
    check_inputs("initialize_", inputs)
    known = Weights(model)
    reached: dict[Key | None, float] = {}
    done: dict[str, list[Tensor]] = {}
    """Weights by the path of their parameter."""
    inverted: dict[str, bool] = {}
    """Whether a computed weight can be set, by the path of each parameter it is computed from."""
    filled: set[Key | None] = set()
    written: set[int] = set()

    def new_layer(call: Call) -> Layer | None:
        layer = layer_of(call)
        name = None if layer is None else known.name(layer.weight)
        if layer is None or name is None or known.key(layer.weight) in reached:
            return None
        if any(known.overlap(layer.weight, other) for other in done.get(name, ())):
            return None
        is_kept = zeros is not None and (
            any(each in zeros for each in known.originals(name))
            or (known.is_part(layer.weight) and is_zero(layer.weight))
        )
        return None if is_kept else layer

    def is_set(weight: Tensor) -> bool:
        return weight.requires_grad or inverted.get(known.name(weight) or "", False)

    def start(call: Call, *_: object) -> None:
        layer = new_layer(call)
        name = None if layer is None else known.name(layer.weight)
        if layer is None or name is None:
            return
        if known.parametrized(name) is not None and name not in inverted:
            inverted[name] = known.can_write(layer.weight, layer.fan_in**-0.5)
        if is_set(layer.weight):
            # At least float32, because there is no QR decomposition in half precision.
            dtype = torch.promote_types(layer.weight.dtype, torch.float32)
            fresh = torch.empty_like(layer.weight, dtype=dtype, requires_grad=False)
            layer.weight.copy_(nn.init.orthogonal_(fresh, generator=generator))
            keep(layer.weight, name)
            zero_biases_([layer.bias])
            filled.add(known.key(layer.weight))
            written.update(id(parameters[each]) for each in known.originals(name))
            if layer.bias is not None:
                written.add(id(layer.bias if layer.bias._base is None else layer.bias._base))

    def keep(weight: Tensor, name: str | None) -> None:
        """Updates the parameters of a computed weight that was set in this pass."""
        if name is not None and inverted.get(name):
            known.write(name, weight)

    def scale(call: Call, output: Tensor, run: Callable[[], Tensor]) -> Tensor:
        layer = new_layer(call)
        if layer is None:
            return output
        weight = layer.weight
        observe = mean_square_of if layer.out_channels <= FEW_OUTPUTS else variance_of
        variance = observe(output)
        rounds = 0
        while is_set(weight) and not abs(variance - 1) <= method.tolerance:
            if rounds == method.max_rounds or not 0 < variance < float("inf"):
                raise _NotReached(
                    f"lsuv: expected a variance within {method.tolerance} of 1 after "
                    f"{known.name(weight)}, got {variance:g} in {rounds} rounds"
                )
            weight.div_(variance**0.5)
            keep(weight, known.name(weight))
            output = run()
            variance = observe(output)
            rounds += 1
        reached[known.key(weight)] = variance
        done.setdefault(known.name(weight) or "", []).append(weight)
        return output

    with unchanged_on_error(model):
        reset_norms_(model, zeros or ())
        try:
            calls, weights = record(
                model, inputs, before=start, after=scale, written=written, weights=known
            )
        except _NotReached:
            raise
        except Exception as error:
            raise input_error("initialize_", inputs, error) from error
        plans = [
            replace(each, left=PART_NOTE)
            if each.is_trained and not each.left and each.key not in filled
            else each
            for each in plan(calls, weights, method, zeros).plans
        ]
    for name in inverted:
        known.refresh(name)
    outcomes = {
        key: Measured(variance=variance) for key, variance in reached.items() if key is not None
    }
    rows = rows_of(model, parameters, weights, plans, method.label, outcomes, zeros or ())
    return Initialization(rows, rule=method.label)
