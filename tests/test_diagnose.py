"""mpelu.diagnose: what it says first is right, its numbers are those of autograd, and nothing
changes."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mpelu
from mpelu.diagnosis import Diagnosis
from mpelu.diagnosis.samples import random_samples


def plain(
    activation: type[nn.Module], depth: int, width: int = 64, method: str = "", std: float = 0.01
) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [each for _ in range(depth) for each in (nn.Linear(width, width), activation())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    if method:
        mpelu.init.initialize_(model, method=method, std=std)
    return model


def batch(width: int = 64, count: int = 48) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1))


def between_samples(values: Tensor) -> float:
    return values.double().var(0).mean().item()


def promised(found: Diagnosis) -> float:
    """The variance that the sentence says an initialization would give."""
    match = re.search(r"(?:hold it at|a variance of) (\S+) in the last layer$", found.sentence)
    assert match is not None, found.sentence
    return float(match[1])


def test_a_deep_sigmoid_network_loses_the_signal_and_only_another_activation_helps() -> None:
    model = plain(nn.Sigmoid, 50)
    found = mpelu.diagnose(model, batch())
    assert found.findings[0].kind == "signal dies"
    assert found.sentence.startswith("layer 4, `6`: the signal's variance falls to ")
    assert "no initialization alone would change that; with MPELU for Sigmoid" in found.sentence
    # As autograd and the values themselves have it.
    values = batch()
    signals = []
    for layer in model:
        values = layer(values)
        if isinstance(layer, nn.Linear):
            signals.append(between_samples(values))
    assert signals[3] < 1e-4 < signals[2]
    assert signals[-1] < 1e-14
    # Each trial is true: exact initialization of the sigmoid network doesn't help ...
    tried = copy.deepcopy(model)
    mpelu.init.initialize_(tried, batch(), generator=torch.Generator().manual_seed(0))
    assert between_samples(tried(batch())) < 1e-10
    # ... and that of the same network with MPELU does.
    swapped = nn.Sequential(
        *(mpelu.MPELU(64) if isinstance(each, nn.Sigmoid) else each for each in model)
    )
    mpelu.init.initialize_(swapped, batch(), generator=torch.Generator().manual_seed(0))
    assert between_samples(swapped(batch())) == pytest.approx(promised(found), rel=0.06)


def test_small_gaussian_weights_lose_the_signal_and_the_cure_is_measured() -> None:
    model = plain(nn.ReLU, 20, method="gaussian")
    found = mpelu.diagnose(model, batch(), torch.arange(48) % 10)
    assert found.findings[0].kind == "signal dies"
    assert found.sentence.startswith("layer 2, `2`: the signal's variance falls to ")
    assert "initialize_(model, example_inputs, method='exact') would hold it at" in found.sentence
    cured = copy.deepcopy(model)
    mpelu.init.initialize_(cured, batch(), generator=torch.Generator().manual_seed(0))
    assert between_samples(cured(batch())) == pytest.approx(promised(found), rel=0.06)
    assert found.rows[-1].signal < 1e-20


@pytest.mark.parametrize("bias", [-100.0, 0.0])
def test_a_dead_layer_is_named(bias: float) -> None:
    model = plain(nn.ReLU, 6, method="msra")
    with torch.no_grad():
        model[4].weight.zero_()
        model[4].bias.fill_(bias)
    found = mpelu.diagnose(model, batch())
    assert found.sentence.startswith("layer 3, `5`: the whole activation is dead")
    assert next(row for row in found.rows if row.name == "5").dead == 1


def test_a_dead_layer_in_a_residual_branch_is_named() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.relu, self.outer = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + self.outer(self.relu(self.inner(x)))
            return out

    torch.manual_seed(0)
    model = nn.Sequential(*(Residual() for _ in range(4)), nn.Linear(64, 10))
    nn.init.constant_(model[2].inner.bias, -50)
    found = mpelu.diagnose(model, batch())
    assert found.sentence.startswith("layer 5, `2.relu`: the whole activation is dead")


class PreNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.tokens = nn.Embedding(100, 32)
        self.blocks = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.tokens(x)).mean(1))
        return out


def test_healthy_networks_are_called_so() -> None:
    torch.manual_seed(0)
    resnet = mpelu.models.create("resnet-20", activation="relu")
    found = mpelu.diagnose(resnet, random_samples((3, 16, 16), 16), torch.arange(16) % 10)
    assert found.is_healthy
    assert found.findings == ()
    assert re.match(
        r"healthy: the signal's variance is between \S+ and \S+ over 20", found.sentence
    )
    assert mpelu.diagnose(PreNorm(), torch.randint(0, 100, (16, 12))).is_healthy
    assert mpelu.diagnose(plain(nn.ELU, 30, method="exact"), batch()).is_healthy
    # Small weights do no harm where a norm follows.
    layers = [each for _ in range(8) for each in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    normed = nn.Sequential(*layers, nn.Linear(64, 10))
    for layer in normed[:-1]:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
    assert mpelu.diagnose(normed, batch()).is_healthy


def test_weights_that_start_at_zero_by_design_are_no_problem() -> None:
    model = plain(nn.ReLU, 4, method="msra")
    nn.init.zeros_(model[-1].weight)
    found = mpelu.diagnose(model, batch())
    assert found.is_healthy
    assert any("`8.weight` starts at zero" in finding.text for finding in found.findings)
    assert not model[-1].weight.any()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: plain(nn.ReLU, 12, method="gaussian", std=1.0), "signal explodes"),
        (lambda: plain(nn.Tanh, 6, method="gaussian", std=1.0), "saturated"),
        (lambda: plain(nn.Tanh, 2, method="gaussian", std=0.006), "linear"),
    ],
)
def test_other_problems_are_found(make: Any, kind: str) -> None:
    found = mpelu.diagnose(make(), batch())
    assert kind in [finding.kind for finding in found.findings]
    assert not found.is_healthy


def test_values_that_are_not_finite_are_found_first() -> None:
    model = plain(nn.ReLU, 3, method="msra")
    model[2].weight.data[0, 0] = float("nan")
    found = mpelu.diagnose(model, batch())
    assert found.sentence.startswith("layer 2, `2`: its outputs are NaN or infinite")
    assert "initialize_(model, example_inputs, method='exact')" in found.sentence


def test_rows_are_what_autograd_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3), nn.SiLU(), nn.Flatten(),
        nn.Linear(64, 5),
    ).double()  # fmt: skip
    inputs, labels = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.arange(6) % 5
    found = mpelu.diagnose(model, inputs, labels)
    values = inputs
    kept = []
    for layer in model:
        values = layer(values.clone())
        values.retain_grad()
        kept.append(values)
    F.cross_entropy(values, labels).backward()
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["0", "1", "2", "3", "5"]
    for name, row in rows.items():
        output = kept[int(name)]
        assert row.mean == pytest.approx(output.mean().item())
        assert row.variance == pytest.approx(output.var(correction=0).item())
        assert row.signal == pytest.approx(output.var(0).mean().item())
        assert output.grad is not None
        # The gradient after an activation in place is that of what it returned.
        assert row.gradient == pytest.approx(output.grad.square().mean().item())
    weight = model[2].weight
    assert weight.grad is not None
    size = (weight.grad.norm() * weight.norm()).item()
    assert rows["2"].weight_gradient == pytest.approx(size)
    assert found.loss == pytest.approx(F.cross_entropy(values, labels).item())


def test_shares_of_units_are_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(),
                          nn.Linear(4, 2))  # fmt: skip
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[2].weight.copy_(torch.diag(torch.tensor([6.0, 1.0, 1.0, 1e-4])))
        model[2].bias.zero_()
    inputs = torch.rand(32, 4) + 0.5
    inputs[:, 1] *= -1  # dead
    inputs[::2, 2] *= -1  # neither dead nor linear; units 0 and 3 are always positive
    rows = {row.name: row for row in mpelu.diagnose(model, inputs).rows}
    assert (rows["1"].dead, rows["1"].saturated, rows["1"].linear) == (0.25, None, 0.5)
    assert rows["3"].saturated == 0.25
    assert rows["3"].linear == 0.25


def test_functions_are_activations_too() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.two(F.relu(self.one(x)))
            return out

    model = Functional()
    nn.init.constant_(model.one.bias, -100)
    found = mpelu.diagnose(model, batch())
    assert found.sentence.startswith("layer 1, `relu after one`: the whole activation is dead")


def test_the_model_and_the_random_state_are_left_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(64, 3)
    )
    model[3].eval()
    before, modes = copy.deepcopy(model.state_dict()), [each.training for each in model.modules()]
    inputs = batch()
    kept, state = inputs.clone(), torch.get_rng_state()
    mpelu.diagnose(model, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(inputs, kept)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [each.training for each in model.modules()] == modes
    assert all(each.grad is None for each in model.parameters())
    assert not any(each._forward_hooks or each._backward_hooks for each in model.modules())


def test_parameters_that_do_not_move_are_found() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), mpelu.MPELU(64), nn.Linear(64, 10))
    inputs, labels = batch(), torch.arange(48) % 10

    def texts(optimizer: torch.optim.Optimizer) -> list[str]:
        found = mpelu.diagnose(model, inputs, labels, optimizer=optimizer)
        return [each.text for each in found.findings if each.kind == "parameters"]

    healthy = torch.optim.SGD(mpelu.param_groups(model, lr=0.1, weight_decay=1e-4), lr=0.1)
    assert texts(healthy) == []
    (missing,) = texts(torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1))
    assert missing.startswith("`1.alpha`, `1.beta` aren't in the optimizer")
    (slow,) = texts(torch.optim.AdamW(model.parameters(), lr=1e-7))
    assert slow.startswith("`1.alpha`, `1.beta` hardly move")
    (decayed,) = texts(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5))
    assert "are pulled to 0 by weight decay" in decayed
    groups = mpelu.param_groups(model, lr=0.1, lr_mult=0.0)
    (stopped,) = texts(torch.optim.SGD(groups, lr=0.1))
    assert stopped.startswith("`1.alpha`, `1.beta` have learning rate 0")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.ones(8, 64), "expected samples that differ"),
        (torch.randn(8, 7), "expected inputs the model can run on, got shapes [[8, 7]]"),
        (torch.full((8, 64), float("nan")), "expected finite inputs"),
        ((), "expected tensors as inputs"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(inputs: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        mpelu.diagnose(plain(nn.ReLU, 2), inputs)
    assert str(error.value).startswith("diagnose: ")
    assert "\n" not in str(error.value)


def test_the_record_is_plain_and_prints_the_sentence_first() -> None:
    found = mpelu.diagnose(plain(nn.ReLU, 3, method="msra"), batch())
    values = found.to_dict()
    assert values["healthy"] is True
    assert [each["method"] for each in values["trials"]][:2] == ["exact", "taylor"]
    assert str(found).splitlines()[0] == found.sentence
    assert len(str(found).splitlines()) == 3 + len(found.rows)
