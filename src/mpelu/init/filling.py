"""Writing planned weights into a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from mpelu.graph import Weights
from mpelu.init.depth import Choice
from mpelu.init.orthogonal import fill_orthogonal_
from mpelu.init.outputs import deviation
from mpelu.init.plan import Plan
from mpelu.init.rules import GAUSSIAN_STD, fill_
from mpelu.init.values import average


def fill_all_(
    plans: Sequence[Plan],
    parameters: Mapping[str, nn.Parameter],
    weights: Weights,
    choice: Choice,
    std: float,
    generator: torch.Generator | None,
) -> None:
    for plan in plans:
        if not plan.is_trained or plan.left:
            continue
        weight = writable(plan, parameters)
        if plan.is_inverted:
            weight = torch.empty_like(plan.weight, requires_grad=False)
        # What a parametrization makes of random values shows once they are there.
        is_parametrized = plan.is_computed and weights.parametrized(plan.name) is not None
        scale = 1.0 if is_parametrized else _computed_scale(plan, weight)
        if choice.distribution == "orthogonal":
            is_whole = weight.shape == plan.weight.shape
            fill_orthogonal_(
                weight,
                plan.std / scale,
                generator,
                plan.groups if is_whole else 1,
                plan.is_delta and is_whole,
            )
        elif choice.method == "gaussian":
            # Drawn with the paper's deviation and then scaled, so that weights of any other are
            # multiples of the same numbers.
            fill_(weight, GAUSSIAN_STD, generator)
            if std != GAUSSIAN_STD:
                with torch.no_grad():
                    weight.mul_(std / GAUSSIAN_STD)
        else:
            fill_(weight, plan.std / scale if scale != 1 else plan.std, generator)
        if plan.is_inverted:
            weights.write(plan.name, weight)
        elif is_parametrized:
            with torch.no_grad():
                found = deviation(weights.again(plan.weight))
                weight.mul_(average(plan.std**2) ** 0.5 / found if found > 0 else 1.0)


def _computed_scale(plan: Plan, parameter: Tensor) -> float:
    """How much larger a computed weight is than the parameter it is a multiple of; 1 for others."""
    if not plan.is_computed or plan.is_fixed or isinstance(plan.weight, FakeTensor):
        return 1.0
    before, after = deviation(parameter), deviation(plan.weight)
    return after / before if before > 0 and after > 0 else 1.0


def writable(plan: Plan, parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """The parameter, or the part of it that layers use as this weight."""
    parameter = parameters[plan.name]
    weight = plan.weight if plan.written is None else plan.written
    is_part = weight is not parameter and weight.numel() < parameter.numel()
    return weight if is_part and weight._base is parameter else parameter
