"""Parameter groups: who is in which, and what a schedule leaves of the multipliers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    groups = param_groups(model, lr=0.1, weight_decay=1e-4, decay_norm_bias=False)
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


def test_kinds_of_other_activations() -> None:
    model = nn.Sequential(nn.Linear(4, 4), PELU(4), SReLU(4), nn.PReLU(4))
    groups = param_groups(model, lr=0.1, weight_decay=1.0, decay_mult=2.0)
    of = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert of[id(model[1].a)] == of[id(model[1].b)] == (0.5, 2.0)
    assert {of[id(parameter)] for parameter in model[2].parameters()} == {(0.1, 1.0)}
    assert of[id(model[3].weight)] == (0.1, 2.0)
    assert of[id(model[0].weight)] == (0.1, 1.0)


class Experts(nn.Module):
    """Its bias has two dimensions and is one all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4, 4))
        self.bias = nn.Parameter(torch.ones(2, 4))


def test_no_decay_of_norm_layers_and_biases() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), MPELU(4), nn.PReLU(4), nn.LayerNorm((4, 5, 5)),
        nn.Flatten(), nn.Linear(100, 2), Experts(),
    )  # fmt: skip
    groups = param_groups(model, lr=0.1, weight_decay=1.0, decay_mult=0.5, decay_norm_bias=False)
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    free = [model[i].bias for i in (0, 1, 4, 6, 7)] + [model[i].weight for i in (1, 4)]
    assert {decay[id(each)] for each in free} == {0.0}
    assert {decay[id(model[i].weight)] for i in (0, 6, 7)} == {1.0}
    assert {decay[id(model[2].alpha)], decay[id(model[2].beta)]} == {0.5}
    assert decay[id(model[3].weight)] == 0.5
    (all_decay,) = param_groups(nn.Linear(2, 2), lr=0.1, weight_decay=1.0, lr_mult=1)
    assert len(all_decay["params"]) == 2


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
        ({"lr": -1.0}, "lr .*got -1.0"),
        ({"lr": float("nan")}, "lr .*got nan"),
        ({"lr": 0.1, "lr_mult": -5.0}, "lr_mult .*got -5.0"),
        ({"lr": 0.1, "decay_mult": -1.0}, "decay_mult .*got -1.0"),
    ],
)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mpelu.param_groups(network(), **values)


class Lion(torch.optim.Optimizer):
    """An optimizer of somebody else, which says nowhere that its weight decay is decoupled."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                each.mul_(1 - group["lr"] * group["weight_decay"])
                each.sub_(group["lr"] * each.grad.sign())


DECOUPLED = [
    torch.optim.AdamW,
    functools.partial(torch.optim.AdamW, betas=(0.8, 0.95), amsgrad=True),
    functools.partial(torch.optim.Adam, decoupled_weight_decay=True),
    functools.partial(torch.optim.NAdam, decoupled_weight_decay=True),
    functools.partial(torch.optim.RAdam, decoupled_weight_decay=True),
    torch.optim.Adafactor,
    Lion,
]
COUPLED = [
    torch.optim.SGD,
    functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    torch.optim.Adam,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
]


def decays(model: nn.Module, groups: list[dict[str, Any]]) -> dict[str, float]:
    of = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    return {name: of[id(parameter)] for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("optimizer", DECOUPLED)
def test_decoupled_decay_leaves_activations_alone(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), MPELU(4), nn.PReLU(4), SReLU(4))
    found = decays(model, param_groups(model, lr=1e-3, weight_decay=0.05, optimizer=optimizer))
    zero = {"0.bias", "1.alpha", "1.beta", "2.weight"}
    assert {name for name, value in found.items() if value == 0} == zero
    assert {value for name, value in found.items() if name not in zero} == {0.05}
    said = param_groups(
        model, lr=1e-3, weight_decay=0.05, optimizer=optimizer, decay_mult=1.0, decay_norm_bias=True
    )
    assert sorted({*decays(model, said).values()}) == pytest.approx([0.05 / 5, 0.05])


@pytest.mark.parametrize("optimizer", COUPLED)
def test_with_other_optimizers_the_groups_are_those_of_the_paper(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    model = network()
    values: dict[str, Any] = {"lr": 0.1, "weight_decay": 1e-4}
    assert repr(param_groups(model, **values, optimizer=optimizer)) == repr(
        param_groups(model, **values)
    )
    found = decays(model, param_groups(model, **values, decay_mult=10.0, optimizer=optimizer))
    assert found["2.alpha"] == found["2.beta"] == 1e-4 * 10.0


@pytest.mark.parametrize("optimizer", DECOUPLED)
def test_a_multiplier_of_the_learning_rate_does_not_multiply_decoupled_decay(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    """Without gradients, each step shrinks every weight by the same factor."""
    model = nn.Sequential(nn.Linear(4, 4), MPELU(4), nn.Linear(4, 4), PELU(4))
    groups = param_groups(
        model, lr=0.01, weight_decay=0.1, optimizer=optimizer, decay_mult=1.0, decay_norm_bias=True
    )
    made = optimizer(groups, lr=0.01)
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(1.0)
            each.grad = torch.zeros_like(each)
    for _ in range(3):
        made.step()
    for value in model.parameters():
        torch.testing.assert_close(value.detach(), torch.full_like(value, (1 - 0.01 * 0.1) ** 3))


def mean_beta(**values: Any) -> float:
    """After 300 steps of AdamW with a learning rate of 0.01 and weight decay 0.05."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width in (8, 16, 16):
        layers += [nn.Linear(width, 16), nn.LayerNorm(16), MPELU(16)]
    model = nn.Sequential(*layers, nn.Linear(16, 1))
    made = torch.optim.AdamW(param_groups(model, lr=0.01, weight_decay=0.05, **values))
    inputs = torch.randn(256, 8)
    for _ in range(300):
        made.zero_grad()
        F.mse_loss(model(inputs), inputs[:, :2].sum(1, keepdim=True).sin()).backward()
        made.step()
    found = [each.beta.detach() for each in model if isinstance(each, MPELU)]
    return torch.cat(found).mean().item()


def test_adamw_keeps_the_shape_of_mpelu() -> None:
    assert mean_beta(optimizer=torch.optim.AdamW) > 0.9
    with pytest.warns(UserWarning, match=r"weight_decay=0.05 would shrink the activations' param"):
        assert mean_beta() < 0.7  # as SGD; three times as many steps leave nothing


def test_large_decay_warns_unless_the_optimizer_or_the_multiplier_is_given() -> None:
    values: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.05}
    with pytest.warns(
        UserWarning, match="pass optimizer=torch.optim.AdamW .* or decay_mult"
    ) as all:
        param_groups(network(), **values)
    assert [each.filename for each in all] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        param_groups(network(), **values, decay_mult=1.0)
        param_groups(network(), **values, optimizer=torch.optim.SGD)
        param_groups(network(), **{**values, "weight_decay": 1e-3})
        param_groups(nn.Sequential(nn.Linear(4, 4), SReLU(4)), **values)


def test_a_model_without_learnable_activations_warns_once_and_says_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with pytest.warns(UserWarning, match="Sequential has no learnable activation; convert") as all:
        groups = param_groups(model, lr=0.1, weight_decay=0.1)
    assert [each.filename for each in all] == [__file__]
    assert len(identities(groups)) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repr(param_groups(model, lr=0.1, weight_decay=0.1, lr_mult=1)) == repr(groups)
        param_groups(nn.Sequential(model, nn.PReLU()), lr=0.1)


def test_trying_an_optimizer_touches_nothing_else() -> None:
    model = network()
    torch.manual_seed(1)
    before = [each.clone() for each in model.parameters()], torch.get_rng_state()
    for device in ("cpu", "meta"):
        with torch.device(device), torch.inference_mode():
            groups = param_groups(
                model, lr=0.1, weight_decay=0.1, optimizer=torch.optim.AdamW, lr_mult=0.0
            )
        assert decays(model, groups)["2.beta"] == 0
    assert all(map(torch.equal, before[0], model.parameters()))
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(torch.get_rng_state(), before[1])
    with torch.device("meta"):
        param_groups(network(), lr=0.1, optimizer=torch.optim.AdamW)


def closure_needed(groups: Any, lr: float) -> torch.optim.Optimizer:
    class Needy(Lion):
        def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
            closure()

    return Needy(groups, lr)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adamw", "optimizer .*got 'adamw'"),
        (torch.optim.AdamW(network().parameters()), "such as torch.optim.AdamW, got 'AdamW'"),
        (
            closure_needed,
            "optimizer can't take a step on parameter groups .*closure.*; pass decay_mult",
        ),
        (
            lambda groups: None,
            r"optimizer can't take a step on parameter groups \(.*; pass decay_mult",
        ),
    ],
)
def test_what_is_no_optimizer_is_told_in_one_line(optimizer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^param_groups: .*{message}") as raised:
        param_groups(network(), lr=0.1, optimizer=optimizer)
    assert "\n" not in str(raised.value)
