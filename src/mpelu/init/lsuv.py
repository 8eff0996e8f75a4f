"""Layer-sequential unit variance (Mishkin and Matas, "All you need is a good init")."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mpelu.graph import (
    Call,
    Inputs,
    Layer,
    Weights,
    check_inputs,
    check_model,
    input_error,
    is_zero,
    layer_of,
    record,
    unchanged_on_error,
    unwrap,
)
from mpelu.init.filling import reset_norms_, zero_biases_, zero_weights
from mpelu.init.measuring import FEW_OUTPUTS, mean_square_of, variance_of
from mpelu.init.plan import PART_NOTE
from mpelu.init.planner import Planner
from mpelu.init.report import Report, rows_of
from mpelu.init.reuse import Key


def _one_batch(batches: Inputs | Sequence[Inputs]) -> Inputs:
    """Several batches of one tensor each joined to one; anything else as it is."""
    if isinstance(batches, list) and batches and all(isinstance(b, Tensor) for b in batches):
        return torch.cat(batches)
    return batches


class _NotReached(RuntimeError):
    pass


def lsuv_(
    model: nn.Module,
    batches: Inputs | Sequence[Inputs],
    tolerance: float = 0.02,
    max_rounds: int = 20,
    generator: torch.Generator | None = None,
    *,
    keep_zeros: bool = True,
) -> Report:
    """Orthonormal weights, each layer scaled until its output has unit variance; with one or two
    outputs, a mean square of one.

    One forward pass does it all: where the pass reaches a layer everything below is done, so the
    layer is run again on the input at hand until it is done too, and the pass goes on. Batch norm
    uses the statistics of the batch and dropout is off. What doesn't require gradients stays as it
    is.

    Args:
        model: any network, also inside DistributedDataParallel or torch.compile.
        batches: what to call the model with: one tensor, a tuple of positional or a dict of keyword
            arguments; or a list of tensors, which are joined to one batch.
        tolerance: how far from one a variance may stay.
        max_rounds: how often a layer may be scaled before giving up.
        generator: of the random numbers.
        keep_zeros: whether weights that are zero throughout stay zero (see `initialize_`).

    Returns:
        A row for each weight, whose measured variance is the one reached.

    Raises:
        RuntimeError: if a layer doesn't get there. The model is then as it was, as after any error.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), mpelu.MPELU(64), nn.Linear(64, 64))
        >>> report = lsuv_(model, torch.randn(256, 64))
        >>> all(abs(row.measured - 1) < 0.02 for row in report.rows)
        True
    """
    if not tolerance > 0:
        raise ValueError(f"lsuv_: expected tolerance > 0, got {tolerance}")
    if max_rounds < 1:
        raise ValueError(f"lsuv_: expected max_rounds >= 1, got {max_rounds}")
    model = unwrap(model)
    parameters = check_model("lsuv_", model, generator)
    zeros = zero_weights(model, parameters) if keep_zeros else None
    batch = _one_batch(batches)
    check_inputs("lsuv_", batch)
    known = Weights(model)
    reached: dict[Key, float] = {}
    done: dict[str, list[Tensor]] = {}
    """Weights by the path of their parameter."""
    inverted: dict[str, bool] = {}
    """By the path of each parameter that a weight is computed from: whether it can be set."""
    filled: set[Key] = set()
    written: set[int] = set()

    def new_layer(call: Call) -> Layer | None:
        layer = layer_of(call)
        name = None if layer is None else known.name(layer.weight)
        if layer is None or name is None or known.key(layer.weight) in reached:
            return None
        if any(known.overlap(layer.weight, other) for other in done.get(name, ())):
            return None
        is_kept = zeros is not None and (
            not zeros.isdisjoint(known.originals(name))
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
            # In float32 at least: there is no QR decomposition in half precision.
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
        """Finds the parameters of a computed weight that was set in this pass."""
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
        while is_set(weight) and not abs(variance - 1) <= tolerance:
            if rounds == max_rounds or not 0 < variance < float("inf"):
                raise _NotReached(
                    f"lsuv_: expected a variance within {tolerance} of 1 after "
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
                model, batch, before=start, after=scale, written=written, weights=known
            )
        except _NotReached:
            raise
        except Exception as error:
            raise input_error("lsuv_", batch, error) from error
        plans = Planner(calls, weights, "lsuv", "fan_in", zeros=zeros).run()
        for plan in plans:
            if plan.is_trained and not plan.left and plan.key not in filled:
                plan.left = PART_NOTE
    measured = {index: reached[plan.key] for index, plan in enumerate(plans) if plan.key in reached}
    for name in inverted:
        known.refresh(name)
    rows = rows_of(model, parameters, weights, plans, "lsuv", measured, zeros=zeros or ())
    return Report(rows, rule="lsuv")
