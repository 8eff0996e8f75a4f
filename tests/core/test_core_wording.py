"""The lines that the core refuses with, word for word. Other tests ask for what they name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import mpelu
from mpelu import init
from mpelu.init import Deep, Gaussian

MODEL = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
INPUTS = torch.randn(4, 3)
WEIGHT = torch.empty(4, 4)

CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: mpelu.moments(1.0, -1.0), "moments: expected beta > 0, got -1"),
    (lambda: mpelu.moments(float("nan"), 1.0), "moments: expected finite alpha, got nan"),
    (lambda: mpelu.moments(1.0, 1.0, -1.0), "moments: expected variance >= 0, got -1"),
    (
        lambda: mpelu.register_activation("a:b", nn.ReLU),
        "register_activation: expected a name of letters, digits and _; got 'a:b'",
    ),
    (
        lambda: mpelu.register_activation("mine", 3),  # type: ignore[arg-type]
        "register_activation: expected mine to be callable, got 3",
    ),
    (
        lambda: init.taylor_normal_([[1.0]]),  # type: ignore[arg-type]
        "taylor_normal_: expected a tensor, got list",
    ),
    (
        lambda: init.taylor_normal_(WEIGHT, groups=3),
        "taylor_normal_: expected groups to divide 4, got 3",
    ),
    (
        lambda: init.exact_normal_(WEIGHT, variance=0.0),
        "exact_normal_: expected variance > 0, got 0.0",
    ),
    (lambda: Deep(target=1.5), "Deep: expected a target above 0 and below 1, got 1.5"),
    (lambda: Gaussian(std=-1.0), "Gaussian: expected std > 0, got -1.0"),
    (
        lambda: init.initialize_(MODEL, INPUTS, "kaiming"),
        "initialize_: expected one of ['exact', 'taylor', 'critical', 'deep', 'msra', 'xavier', "
        "'gaussian', 'lsuv'] or an object such as Exact(), got method 'kaiming'",
    ),
    (
        lambda: init.initialize_(MODEL, INPUTS / 0),
        "initialize_: expected finite inputs, got NaN or infinity in a tensor of shape [4, 3]",
    ),
    (
        lambda: init.initialize_(MODEL, torch.empty(0, 3)),
        "initialize_: expected inputs with values, got an empty tensor of shape [0, 3]",
    ),
    (
        lambda: init.initialize_(MODEL, input_shape=(-64,)),
        "initialize_: expected an input_shape such as (3, 224, 224), got (-64,)",
    ),
    (
        lambda: init.initialize_("model"),  # type: ignore[arg-type]
        "initialize_: expected a torch.nn.Module, got str",
    ),
    (lambda: mpelu.convert(MODEL, beta=-1.0), "convert: expected beta >= 1e-06, got -1"),
    (
        lambda: mpelu.convert(MODEL, replace=()),
        "convert: expected at least one class in replace, got none",
    ),
    (
        lambda: mpelu.convert(nn.ReLU()),
        "convert: expected a model that contains activations, got an activation, ReLU",
    ),
    (
        lambda: mpelu.convert(nn.DataParallel(MODEL)),
        "convert: expected a model that isn't wrapped, got DataParallel; convert it first",
    ),
    (
        lambda: mpelu.convert(nn.Sequential(nn.Linear(3, 3))),
        "convert: expected a model with activations, found none in Sequential; name their "
        "classes with replace=",
    ),
    (
        lambda: mpelu.convert(nn.Sequential(nn.LazyLinear(3), nn.ReLU()), INPUTS),
        "convert: expected weights with a shape, got a lazy LazyLinear at 0; run a batch first",
    ),
    (
        lambda: mpelu.param_groups(MODEL, lr=-1.0),
        "param_groups: expected lr >= 0 and finite, got -1.0",
    ),
    (
        lambda: mpelu.param_groups(MODEL, lr=0.1, optimizer="adamw"),  # type: ignore[arg-type]
        "param_groups: expected optimizer to be a class such as torch.optim.AdamW, got 'adamw'",
    ),
    (
        lambda: mpelu.diagnose(MODEL, torch.ones(8, 3)),
        "diagnose: expected samples that differ, got the same ones",
    ),
    (lambda: mpelu.diagnose(MODEL, INPUTS[:1]), "diagnose: expected at least two samples, got one"),
    (
        lambda: mpelu.models.create("resnet"),
        "unknown network 'resnet'; expected a name like 'resnet-20'",
    ),
    (lambda: mpelu.models.create("nin-3"), "unknown network 'nin-3'; expected a name like 'nin'"),
]


@pytest.mark.parametrize(("call", "line"), CALLS, ids=[line for _, line in CALLS])
def test_a_call_that_is_refused_says(call: Callable[[], object], line: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refusal:
        call()
    assert str(refusal.value) == line
