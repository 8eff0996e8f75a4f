"""Parameter groups: who is in which, and what a schedule leaves of the multipliers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mpelu
from mpelu import MPELU, models, param_groups
from mpelu.activations.parametric import PELU, SReLU


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), MPELU(4), nn.Flatten(), nn.Linear(4, 2), MPELU()
    )


def identities(groups: list[dict[str, Any]]) -> list[int]:
    return [id(parameter) for group in groups for parameter in group["params"]]


@pytest.mark.parametrize("name", ["nin", "mpelu-resnet-a-20", "dsn", "nopre-resnet-164"])
def test_every_parameter_is_in_exactly_one_group(name: str) -> None:
    with torch.device("meta"):
        model = models.create(name, activation="mpelu")
    groups = param_groups(model, lr=0.1, weight_decay=1e-4, bias_lr_mult=2.0, bias_decay_mult=0.0)
    found = identities(groups)
    assert len(found) == len(set(found))
    assert set(found) == {id(parameter) for parameter in model.parameters()}


def test_alpha_and_beta_have_a_group_of_their_own() -> None:
    model = network()
    rest, shapes = param_groups(model, lr=0.1, weight_decay=1e-4, lr_mult=5.0, decay_mult=10.0)
    assert {id(p) for p in shapes["params"]} == {
        id(p) for i in (2, 5) for p in (model[i].alpha, model[i].beta)
    }
    assert shapes["lr"] == pytest.approx(0.5)
    assert shapes["weight_decay"] == pytest.approx(1e-3)
    assert (rest["lr"], rest["weight_decay"]) == (0.1, 1e-4)


def test_decay_of_beta_and_of_prelu_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), MPELU(4), nn.PReLU(4))
    groups = param_groups(
        model, lr=0.1, weight_decay=1.0, decay_mult=2.0, beta_decay_mult=0.0, prelu_decay_mult=0.5
    )
    of = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert of[id(model[1].alpha)] == (0.5, 2.0)
    assert of[id(model[1].beta)] == (0.5, 0.0)
    assert of[id(model[2].weight)] == (0.1, 0.5)
    assert of[id(model[0].weight)] == (0.1, 1.0)


def test_kinds_of_other_activations() -> None:
    model = nn.Sequential(nn.Linear(4, 4), PELU(4), SReLU(4))
    groups = param_groups(
        model, lr=0.1, weight_decay=1.0, decay_mult=2.0, beta_decay_mult=0.0, prelu_decay_mult=0.5
    )
    of = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert of[id(model[1].a)] == (0.5, 2.0)
    assert of[id(model[1].b)] == (0.5, 0.0)
    assert {of[id(parameter)] for parameter in model[2].parameters()} == {(0.1, 1.0)}


def test_no_decay_of_norm_layers_and_biases() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), MPELU(4), nn.PReLU(4), nn.LayerNorm((4, 5, 5)),
        nn.Flatten(), nn.Linear(100, 2),
    )  # fmt: skip
    for bias_decay in (1.0, 3.0):
        groups = param_groups(
            model, lr=0.1, weight_decay=1.0, decay_mult=0.5, bias_decay_mult=bias_decay,
            bias_lr_mult=2.0, no_decay_norm_bias=True,
        )  # fmt: skip
        decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        free = [model[i].bias for i in (0, 1, 4, 6)] + [model[i].weight for i in (1, 4)]
        assert {decay[id(each)] for each in free} == {0.0}
        assert decay[id(model[0].weight)] == decay[id(model[6].weight)] == 1.0
        assert decay[id(model[2].alpha)] == decay[id(model[2].beta)] == 0.5
        assert decay[id(model[3].weight)] == 1.0
        rates = {id(p): group["lr"] for group in groups for p in group["params"]}
        assert (rates[id(model[0].bias)], rates[id(model[1].bias)]) == (0.2, 0.1)
    (all_decay,) = param_groups(nn.Linear(2, 2), lr=0.1, weight_decay=1.0)
    assert len(all_decay["params"]) == 2


def test_biases_but_not_those_of_norm_layers() -> None:
    model = network()
    groups = param_groups(model, lr=0.1, bias_lr_mult=2.0, bias_decay_mult=0.0, weight_decay=1e-4)
    biases = next(group for group in groups if group["lr_mult"] == 2.0)
    assert [id(p) for p in biases["params"]] == [id(model[0].bias), id(model[4].bias)]
    assert biases["weight_decay"] == 0.0


def test_a_layer_by_name_with_its_decay_kept() -> None:
    model = network()
    groups = param_groups(
        model, lr=0.1, weight_decay=1.0, bias_lr_mult=2.0, bias_decay_mult=0.0, layers={"4": 0.1}
    )
    of = {id(p): group for group in groups for p in group["params"]}
    assert of[id(model[4].weight)]["lr_mult"] == 0.1
    assert of[id(model[4].weight)]["weight_decay"] == 1.0
    assert of[id(model[4].bias)]["lr_mult"] == 0.1
    assert of[id(model[4].bias)]["weight_decay"] == 0.0


def test_shared_modules_and_parameters_count_once() -> None:
    activation = MPELU(4)
    model = nn.Sequential(nn.Linear(4, 4), activation, nn.Linear(4, 4), activation)
    model[2].weight = model[0].weight
    assert len(identities(param_groups(model, lr=0.1))) == 5


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad", "RMSprop", "NAdam"])
def test_multipliers_stay_under_a_schedule(optimizer: str) -> None:
    model = network()
    made = getattr(torch.optim, optimizer)(param_groups(model, lr=0.1, weight_decay=1e-4))
    schedule = torch.optim.lr_scheduler.MultiStepLR(made, [1, 2])
    for factor in (1.0, 0.1, 0.01):
        rates = [group["lr"] for group in made.param_groups]
        assert rates == pytest.approx([0.1 * factor, 0.5 * factor])
        made.zero_grad()
        model(torch.randn(8, 3, 3, 3)).sum().backward()
        made.step()
        schedule.step()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": -1.0}, "expected lr >= 0 and finite, got -1.0"),
        ({"lr": float("nan")}, "expected lr >= 0 and finite, got nan"),
        ({"lr": 0.1, "lr_mult": -5.0}, "expected lr_mult >= 0 and finite, got -5.0"),
        ({"lr": 0.1, "layers": {"nine": 1.0}}, "expected a module with parameters, got 'nine'"),
        ({"lr": 0.1, "layers": {"3": 1.0}}, "expected a module with parameters, got '3'"),
    ],
)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mpelu.param_groups(network(), **values)
