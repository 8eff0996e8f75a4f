"""Initialization of a whole network at one call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpelu.init.checks import check_inputs, check_model, input_error
from mpelu.init.graph import Call, Inputs, trace, unwrap
from mpelu.init.layers import layer_of
from mpelu.init.lsuv import lsuv_
from mpelu.init.plan import make_plan
from mpelu.init.record import record, variance_of
from mpelu.init.report import Report
from mpelu.init.reset import reset_norms_, zero_biases_
from mpelu.init.rows import rows_of
from mpelu.init.rules import check_mode, fill_

METHODS = ("taylor", "exact", "msra", "xavier", "gaussian", "lsuv")


def initialize_(
    model: nn.Module,
    example_inputs: Inputs | None = None,
    method: str = "taylor",
    mode: str = "fan_in",
    generator: torch.Generator | None = None,
) -> Report:
    """Sets every weight of a network by the activation that feeds it.

    Weights get a normal distribution of mean zero, biases zero, norm layers the identity and fresh
    running statistics. What doesn't require gradients stays as it is; tied weights are set once.

    Args:
        model: any network, also inside DistributedDataParallel or torch.compile.
        example_inputs: one tensor, a tuple of positional or a dict of keyword arguments. With
            them the moments of the inputs count, pooling knows its sizes, the report has measured
            variances, and models that torch.fx cannot trace work; the price is two forward passes.
        method: "taylor", the paper's rule; "exact", which keeps the variance of every
            pre-activation at one; "msra", "xavier", "gaussian" (standard deviation 0.01) or "lsuv"
            (see `lsuv_`; takes example_inputs as its batch).
        mode: n of the rule is "fan_in", "fan_out" or their "average"; no matter for xavier,
            gaussian and lsuv.
        generator: of the random numbers.

    Returns:
        A row for each weight; print it for a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), mpelu.MPELU(64), nn.Linear(64, 10))
        >>> report = initialize_(model, torch.randn(256, 64), method="exact")
        >>> report.rows[1].predicted
        1.0
    """
    if method not in METHODS:
        raise ValueError(f"initialize_: expected a method of {list(METHODS)}, got {method!r}")
    check_mode("initialize_", mode)
    if method == "lsuv":
        if example_inputs is None:
            raise ValueError("initialize_: expected example_inputs for lsuv, got None")
        return lsuv_(model, example_inputs, generator=generator)
    model = unwrap(model)
    parameters = check_model("initialize_", model, generator)
    calls = _calls(model, example_inputs)
    plans = make_plan(calls, parameters, method, mode)
    for plan in plans:
        if plan.is_trained:
            fill_(plan.layer.weight, plan.std, generator)
    reset_norms_(model)
    zero_biases_(plan.layer for plan in plans)
    measured = {} if example_inputs is None else _measure(model, example_inputs)
    rule = method if method in ("gaussian", "xavier") else f"{method} {mode}"
    return Report(rows_of(model, parameters, plans, rule, measured))


def _calls(model: nn.Module, inputs: Inputs | None) -> list[Call]:
    if inputs is None:
        try:
            return trace(model)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                "initialize_: expected example_inputs for a model that torch.fx cannot trace, "
                f"got None: {reason}"
            ) from error
    check_inputs("initialize_", inputs)
    try:
        return record(model, inputs)
    except Exception as error:
        raise input_error("initialize_", inputs, error) from error


def _measure(model: nn.Module, inputs: Inputs) -> dict[int, float]:
    """Variance of the output of each layer, at the first use of its weight, by the weight's id."""
    measured: dict[int, float] = {}

    def measure(call: Call, output: Tensor, _: object) -> Tensor:
        layer = layer_of(call)
        if layer is not None and id(layer.weight) not in measured:
            measured[id(layer.weight)] = variance_of(output)
        return output

    record(model, inputs, after=measure)
    return measured
