"""Initialization of a whole network by one call."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from mpelu.graph import (
    Call,
    Inputs,
    Key,
    Known,
    Weights,
    check_inputs,
    check_model,
    evaluating,
    input_error,
    reason,
    record,
    record_shapes,
    restored_on_error,
    trace,
    unchanged_on_error,
    unwrap,
)
from mpelu.init.depth import report_depth, shape_for, shaped
from mpelu.init.fill import fill_all_, reset_norms_, zero_weights
from mpelu.init.lsuv import lsuv_
from mpelu.init.measure import Measured, balance_gradients_, measure_
from mpelu.init.methods import LSUV, Fitted, Gaussian, Method, find_method
from mpelu.init.operations import is_known
from mpelu.init.planner import plan
from mpelu.init.report import Initialization, rows_of


def initialize_(
    model: nn.Module,
    inputs: Inputs | None = None,
    method: str | Method = "exact",
    *,
    input_shape: Sequence[Any] | None = None,
    generator: torch.Generator | None = None,
) -> Initialization:
    """Initializes every weight of a network according to the activation that feeds it.

    Weights are drawn from a normal distribution with mean zero, biases are set to zero, and norm
    layers to the identity with fresh running statistics. Parameters that don't require gradients
    and weights that hold only zeros are left unchanged; tied weights are set once.

    Args:
        model: any network, also wrapped in DistributedDataParallel or torch.compile.
        inputs: inputs to call the model with: one tensor, a tuple of positional or a dict of
            keyword arguments. Predictions then account for the moments of the inputs and the sizes
            of pooling, the report has measured variances, and weights whose prediction fails are
            scaled by measurement. This costs two forward passes, a third one and a backward pass
            by default if there are norms, and memory for a copy of the model, so that any error
            leaves it unchanged.
        method: "exact", which keeps the variance of every pre-activation at one; "taylor", the
            paper's rule; "critical", in which weights preserve the variance of gradients and biases
            the variance of the signal; "deep", for plain networks of hundreds of layers; "msra",
            "xavier", "gaussian" or "lsuv"; or an object with options of its own, such as
            `Exact(mode="fan_out", distribution="orthogonal")`, `Deep(target=0.4)`,
            `Gaussian(std=0.05)` or a method of your own (see `register_method`).
        input_shape: shape of an input without the batch dimension, such as (3, 224, 224), or a
            tuple of shapes for several inputs. Use it instead of inputs for models that torch.fx
            can't trace, and for predictions that know the size of each map. Nothing is run, unless
            an operation of the model has no rule for shapes alone.
        generator: random number generator to draw from.

    Returns:
        A report with a row for each weight; print it to see a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), mpelu.MPELU(64), nn.Linear(64, 10))
        >>> report = initialize_(model, torch.randn(256, 64), method="exact")
        >>> round(report.rows[1].predicted, 6)
        1.0
    """
    chosen = find_method(method)
    if inputs is not None and input_shape is not None:
        raise ValueError("initialize_: expected inputs or input_shape, got both")
    _check_shape(input_shape)
    if isinstance(inputs, (str, Method)):
        raise TypeError(f"initialize_: expected inputs, got a method; write method={inputs!r}")
    if isinstance(inputs, tuple) and inputs and all(isinstance(each, int) for each in inputs):
        raise TypeError(
            f"initialize_: expected tensors as inputs, got a shape; write "
            f"input_shape={tuple(inputs)}"
        )
    model = unwrap(model)
    parameters = check_model("initialize_", model, generator)
    zeros = zero_weights(model, parameters) if chosen.keep_zeros else None
    if chosen.needs_inputs and inputs is None:
        raise ValueError(f"initialize_: {chosen.name} requires inputs")
    if isinstance(chosen, LSUV) and inputs is not None:
        return lsuv_(model, parameters, inputs, chosen, zeros, generator)
    # Reading a weight may change the state of its parametrization.
    parametrizations = _parametrizations(model)
    with evaluating(parametrizations):
        calls, weights = _calls(model, inputs, input_shape)
    used = chosen.in_network(calls)
    has_shapes = isinstance(used, Fitted) and used.shapes
    with contextlib.ExitStack() as guards:
        guards.enter_context(evaluating(parametrizations))
        planned = plan(calls, weights, used, zeros)
        shape = shape_for(planned, used) if isinstance(used, Fitted) and used.shapes else None
        if shape is not None:
            guards.enter_context(shaped(*shape))
            planned = plan(calls, weights, used, zeros)
        # Nothing but alpha and beta has been written yet.
        if inputs is not None:
            guards.enter_context(unchanged_on_error(model))
        elif (
            used.distribution == "orthogonal"
            or type(used).draw_ not in (Method.draw_, Gaussian.draw_)
            or not all(map(_is_plain, parameters.values()))
            or any(each.is_inverted for each in planned.plans)
        ):
            # Drawing normal numbers into plain parameters can't fail, and copies take time.
            guards.enter_context(restored_on_error([*model.parameters(), *model.buffers()]))
        fill_all_(planned.plans, parameters, weights, used, generator)
        reset_norms_(model, zeros or ())
        outcomes: dict[Key, Measured] = {}
        if inputs is not None:
            outcomes = measure_(model, inputs, planned.plans, used.reads_moments)
            if used.balances:
                plans = balance_gradients_(model, inputs, planned.plans, outcomes, weights)
                planned = replace(planned, plans=plans)
    for each in planned.plans:
        if each.is_inverted:
            weights.refresh(each.name)
    rule = used.label if used is chosen else f"{chosen.name}: {used.label}"
    rows = rows_of(model, parameters, weights, planned.plans, rule, outcomes, zeros or ())
    if used.sets_biases or has_shapes:
        return replace(report_depth(rows, planned, used.sets_biases), rule=rule)
    return Initialization(rows, rule=rule)


def _is_plain(parameter: nn.Parameter) -> bool:
    return type(parameter) is nn.Parameter and parameter.is_floating_point()


def _parametrizations(model: nn.Module) -> list[nn.Module]:
    lists = [part for part in model.modules() if isinstance(part, parametrize.ParametrizationList)]
    return [part for each in lists for part in each.modules()]


def _calls(
    model: nn.Module, inputs: Inputs | None, input_shape: Sequence[Any] | None
) -> tuple[list[Call], Weights]:
    if input_shape is not None:
        return _calls_by_shape(model, input_shape)
    if inputs is None:
        try:
            # Cached, so that the trace gets the very tensors that are recorded here.
            with parametrize.cached():
                weights = Weights(model)
                weights.read_parametrizations()
                return trace(model), weights
        except Exception as error:
            raise ValueError(
                "initialize_: a model that torch.fx can't trace requires inputs or input_shape: "
                f"{reason(error)}"
            ) from error
    check_inputs("initialize_", inputs)
    try:
        return record(model, inputs, known=is_known)
    except Exception as error:
        raise input_error("initialize_", inputs, error) from error


def _check_shape(input_shape: Any) -> None:
    """Raises ValueError unless `input_shape` is None, a shape or several shapes."""
    shapes = input_shape if isinstance(input_shape, (tuple, list)) else [input_shape]
    if shapes and all(isinstance(size, int) for size in shapes):
        shapes = [shapes]
    is_right = isinstance(input_shape, (tuple, list)) and all(
        isinstance(shape, (tuple, list))
        and all(isinstance(size, int) and size >= 0 for size in shape)
        for shape in shapes
    )
    if input_shape is not None and not is_right:
        raise ValueError(
            f"initialize_: expected an input_shape such as (3, 224, 224), got {input_shape!r}"
        )


def _calls_by_shape(model: nn.Module, input_shape: Sequence[Any]) -> tuple[list[Call], Weights]:
    """Reads calls from shapes alone; inputs are floating point, or tokens if that fails."""
    shapes = [tuple(input_shape)] if all(isinstance(n, int) for n in input_shape) else input_shape
    errors: list[Exception] = []
    like = next(each for each in model.parameters() if each.is_floating_point())
    numbers = tuple(like.new_zeros(2, *shape) for shape in shapes)
    tokens = tuple(each.to(torch.int64) for each in numbers)
    # Some operations need values to know their shapes; the model then runs on zeros.
    for read in (record_shapes, _record_zeros):
        for inputs in (numbers, tokens):
            try:
                with _quietly("torch._subclasses.fake_tensor"):
                    return read(model, inputs, is_known)
            except Exception as error:  # whatever the model's code raises
                errors.append(error)
    raise ValueError(
        f"initialize_: the model can't run on input_shape {tuple(input_shape)}: {reason(errors[0])}"
    ) from errors[0]


@contextlib.contextmanager
def _quietly(name: str) -> Iterator[None]:
    """Silences a logger, since torch logs every shape that doesn't fit."""
    logger = logging.getLogger(name)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def _record_zeros(model: nn.Module, inputs: Inputs, known: Known) -> tuple[list[Call], Weights]:
    """Records a pass on zeros, whose values are ignored, instead of using `record_shapes`."""
    calls, weights = record(model, inputs, known=known)
    return [replace(call, args=()) if call.target is None else call for call in calls], weights
