"""Initialization of a whole network at one call."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mpelu.graph import (
    Call,
    Inputs,
    Known,
    Weights,
    check_inputs,
    check_model,
    collector_paused,
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
from mpelu.init.depth import check_choice, choose, report_depth
from mpelu.init.filling import fill_all_, fill_bias_, reset_norms_, zero_biases_, zero_weights
from mpelu.init.lsuv import lsuv_
from mpelu.init.measuring import balance_gradients_, measure_
from mpelu.init.operations import is_known
from mpelu.init.plan import FITTED, Plan
from mpelu.init.planner import Planner
from mpelu.init.report import Report, rows_of
from mpelu.init.reuse import embedded_stds
from mpelu.init.rules import GAUSSIAN_STD, MODES
from mpelu.init.shape import Structure, shaped
from mpelu.init.tailoring import Tailoring, fill_shifts_, tailor

NETWORK_MODES = (*MODES, "balanced")

METHODS = ("taylor", "exact", "critical", "deep", "msra", "xavier", "gaussian", "lsuv")


def initialize_(
    model: nn.Module,
    example_inputs: Inputs | None = None,
    method: str = "exact",
    mode: str = "balanced",
    generator: torch.Generator | None = None,
    *,
    std: float | None = None,
    input_shape: Sequence[Any] | None = None,
    distribution: str | None = None,
    activation_shape: str | None = None,
    shape_target: float | None = None,
    keep_zeros: bool = True,
) -> Report:
    """Sets every weight of a network by the activation that feeds it.

    Weights get a normal distribution of mean zero, biases zero, norm layers the identity and fresh
    running statistics. What doesn't require gradients stays as it is, and so do weights that hold
    nothing but zeros; tied weights are set once.

    Args:
        model: any network, also inside DistributedDataParallel or torch.compile.
        example_inputs: one tensor, a tuple of positional or a dict of keyword arguments. With
            them the moments of the inputs count, pooling knows its sizes, the report has measured
            variances, and weights whose prediction fails are scaled by measurement; the price is
            two forward passes, and memory for a copy of the model: any error leaves it unchanged.
        method: "exact", which keeps the variance of every pre-activation at one; "taylor", the
            paper's rule; "critical", which keeps the variance of gradients by the weights and
            that of the signal by the biases; "deep", which is critical and orthogonal with shapes
            by depth in a network without norms and shortcuts, and exact in any other; "msra",
            "xavier", "gaussian" or "lsuv" (see `lsuv_`; takes example_inputs as its batch).
        mode: n of the rule is "fan_in", "fan_out" or their "average". "balanced" is "fan_in", and
            with example_inputs also scales weights that end in a norm, which takes their scale out
            of the signal, until their gradients come near the last weight's: for one more pass,
            forward and backward. Ignored by xavier, gaussian and lsuv.
        generator: of the random numbers.
        std: standard deviation for method "gaussian" (default: 0.01).
        input_shape: shape of an input without the batch, such as (3, 224, 224), or a tuple of
            shapes for several inputs. Instead of example_inputs, for models that torch.fx can't
            trace, and for predictions that know the size of each map. Nothing is run, unless an
            operation of the model has no rule for shapes alone.
        distribution: "normal", or "orthogonal": orthogonal matrices, in the middle of the kernel
            for convolutions of stride one. None for the method's own, which is normal for all but
            "deep".
        activation_shape: "depth" sets alpha and beta of every trained MPELU, with alpha beta = 1
            and a beta that fits the depth of the network: two unrelated inputs leave the network
            with a correlation of `shape_target`. "tailored", with "critical" or "deep", sets them,
            gains and constant biases by the conditions of TAT, in a chain of layers with biases
            and MPELUs. None leaves them as they are, except for "deep".
        shape_target: C_f(0), above 0 and below 1. None for at most 0.5 with method "critical" and
            "deep" and 0.3 with all others, and beta at most 1; shapes below that stay.
        keep_zeros: whether weights that are zero throughout, such as the last one of a residual
            branch or the scale of its norm, are taken to be so by design and stay zero. False sets
            them like all others; so does a model in which every weight is zero.

    Returns:
        A row for each weight; print it for a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), mpelu.MPELU(64), nn.Linear(64, 10))
        >>> report = initialize_(model, torch.randn(256, 64), method="exact")
        >>> round(report.rows[1].predicted, 6)
        1.0
    """
    if method not in METHODS:
        raise ValueError(f"initialize_: expected a method of {list(METHODS)}, got {method!r}")
    if mode not in NETWORK_MODES:
        raise ValueError(f"initialize_: expected a mode of {list(NETWORK_MODES)}, got {mode!r}")
    if std is not None and method != "gaussian":
        raise ValueError(f"initialize_: expected method gaussian with std, got {method}")
    std = GAUSSIAN_STD if std is None else std
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"initialize_: expected std >= 0, got {std}")
    if example_inputs is not None and input_shape is not None:
        raise ValueError("initialize_: expected example_inputs or input_shape, got both")
    _check_shape(input_shape)
    check_choice(method, distribution, activation_shape, shape_target)
    if method == "lsuv":
        if example_inputs is None:
            raise ValueError("initialize_: expected example_inputs for lsuv, got None")
        return lsuv_(model, example_inputs, generator=generator, keep_zeros=keep_zeros)
    model = unwrap(model)
    parameters = check_model("initialize_", model, generator)
    zeros = zero_weights(model, parameters) if keep_zeros else None
    # Reading a weight may change what its parametrization keeps.
    parametrizations = _parametrizations(model)
    with evaluating(parametrizations):
        calls, weights = _calls(model, example_inputs, input_shape)
    choice = choose(calls, method, mode, distribution, activation_shape)
    critical = choice.method == "critical"

    def plan(
        tailoring: Tailoring | None = None, embedded: Mapping[str, float] | None = None
    ) -> tuple[list[Plan], Planner]:
        planner = Planner(
            calls,
            weights,
            choice.method,
            mode,
            std,
            choice.distribution,
            tailoring,
            embedded,
            zeros,
        )
        with collector_paused():
            plans = planner.run()
        _check_finite(plans)
        if embedded is None and (changed := embedded_stds(calls, weights, plans)):
            return plan(tailoring, changed)
        return plans, planner

    measured: dict[int, float] = {}
    scaled: set[int] = set()
    balanced: set[int] = set()
    tailoring: Tailoring | None = None
    with contextlib.ExitStack() as guards:
        guards.enter_context(evaluating(parametrizations))
        plans, planner = plan()
        if choice.activation_shape is not None:
            structure = Structure(calls, planner.layers, planner.signals, critical)
            if activation_shape is not None and not structure.modules:
                raise ValueError(
                    "initialize_: expected a trained MPELU for activation_shape, got none"
                )
            beta = None
            if choice.activation_shape == "tailored":
                tailoring = tailor(calls, planner.layers, planner.signals, structure)
                beta = tailoring.shape.beta
            elif structure.modules:
                try:
                    beta = structure.beta(shape_target)
                except ValueError as error:
                    raise ValueError(f"initialize_: shape_target: {error}") from error
            if beta is not None:
                guards.enter_context(shaped(structure.modules, beta))
                plans, planner = plan(tailoring)
        # No weight has been written so far.
        if example_inputs is not None:
            guards.enter_context(unchanged_on_error(model))
        elif (
            choice.distribution == "orthogonal"
            or not all(map(_is_plain, parameters.values()))
            or any(plan.is_inverted for plan in plans)
        ):
            # Drawing normal numbers into plain parameters can't fail, and copies take time.
            guards.enter_context(restored_on_error([*model.parameters(), *model.buffers()]))
        fill_all_(plans, parameters, weights, choice, std, generator)
        reset_norms_(model, zeros or ())
        zero_biases_(plan.bias for plan in plans if not plan.left)
        for each in plans:
            fill_bias_(each.bias, each.bias_std, generator)
        fill_shifts_(plans, weights)
        if example_inputs is not None:
            measured, scaled = measure_(model, example_inputs, plans, choice.method)
            if mode == "balanced" and choice.method in FITTED:
                balanced = balance_gradients_(model, example_inputs, plans, measured, weights)
    for each in plans:
        if each.is_inverted:
            weights.refresh(each.name)
    rows = rows_of(
        model, parameters, weights, plans, choice.rule, measured, scaled, balanced, zeros or ()
    )
    if critical or choice.activation_shape is not None:
        shape = None if tailoring is None else tailoring.shape
        depth = report_depth(rows, plans, calls, planner.layers, planner.signals, critical, shape)
        return replace(depth, rule=choice.rule)
    return Report(rows, rule=choice.rule)


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
            # Cached, so that what computes a weight gives the trace the tensor noted here.
            with parametrize.cached():
                weights = Weights(model)
                weights.read_parametrizations()
                return trace(model), weights
        except Exception as error:
            raise ValueError(
                "initialize_: expected example_inputs or input_shape for a model that torch.fx "
                f"cannot trace, got None: {reason(error)}"
            ) from error
    check_inputs("initialize_", inputs)
    try:
        return record(model, inputs, known=is_known)
    except Exception as error:
        raise input_error("initialize_", inputs, error) from error


def _check_shape(input_shape: Any) -> None:
    """Raises unless it is None, a shape or several shapes."""
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
    """From shapes alone; inputs are real numbers, or tokens if the model takes no real numbers."""
    shapes = [tuple(input_shape)] if all(isinstance(n, int) for n in input_shape) else input_shape
    errors: list[Exception] = []
    like = next(each for each in model.parameters() if each.is_floating_point())
    numbers = tuple(like.new_zeros(2, *shape) for shape in shapes)
    tokens = tuple(each.to(torch.int64) for each in numbers)
    # Some operations know no shapes without values: then the model runs, on nothing but zeros.
    for read in (record_shapes, _record_zeros):
        for inputs in (numbers, tokens):
            try:
                with _quietly("torch._subclasses.fake_tensor"):
                    return read(model, inputs, is_known)
            except Exception as error:  # whatever the model's code raises
                errors.append(error)
    raise ValueError(
        f"initialize_: expected an input_shape the model can run on, got {tuple(input_shape)}: "
        f"{reason(errors[0])}"
    ) from errors[0]


@contextlib.contextmanager
def _quietly(name: str) -> Iterator[None]:
    """Without the messages of a logger: torch logs every shape that doesn't fit."""
    logger = logging.getLogger(name)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def _record_zeros(model: nn.Module, inputs: Inputs, known: Known) -> tuple[list[Call], Weights]:
    """As `record_shapes`, from a pass; the values of its inputs don't count."""
    calls, weights = record(model, inputs, known=known)
    return [replace(call, args=()) if call.target is None else call for call in calls], weights


def _check_finite(plans: Sequence[Plan]) -> None:
    for plan in plans:
        if isinstance(plan.std, Tensor):
            is_finite = bool(plan.std.isfinite().all())
        else:
            is_finite = math.isfinite(plan.std)
        if plan.is_trained and not is_finite:
            raise ValueError(
                f"initialize_: expected finite moments before {plan.name}, got a standard "
                f"deviation of {plan.std}; register a rule for what feeds it"
            )
