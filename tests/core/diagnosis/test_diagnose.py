"""mpelu.diagnose: what it says first is right, its numbers are those of autograd, and nothing
changes."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mpelu
from mpelu.diagnosis import Diagnosis
from mpelu.lab.doctor import random_samples


def plain(
    activation: type[nn.Module], depth: int, width: int = 64, method: str = "", std: float = 0.01
) -> Any:
    torch.manual_seed(0)
    layers = [each for _ in range(depth) for each in (nn.Linear(width, width), activation())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    if method:
        chosen = mpelu.init.Gaussian(std=std) if method == "gaussian" else method
        mpelu.init.initialize_(model, method=chosen)
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
    assert "initialize_(model, inputs, 'exact') would hold it at" in found.sentence
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
    model: Any = nn.Sequential(*(Residual() for _ in range(4)), nn.Linear(64, 10))
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
    for layer in layers:
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
    assert "initialize_(model, inputs, 'exact')" in found.sentence


def test_rows_are_what_autograd_says() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
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
    model: Any = nn.Sequential(
nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(),
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
        (torch.randn(8, 7), "the model can't run on inputs of shapes [[8, 7]]"),
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
    assert values["trials"] == []
    assert str(found).splitlines()[0] == found.sentence
    assert len(str(found).splitlines()) == 3 + len(found.rows)


def small(inputs: int = 16, outputs: int = 4) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def kinds(found: Diagnosis) -> list[str]:
    return [each.kind for each in found.findings]


def test_initializations_are_tried_only_if_other_weights_may_help() -> None:
    said: list[str] = []
    assert mpelu.diagnose(small(), batch(16), progress=said.append).trials == ()
    assert said == ["measuring the model"]
    found = mpelu.diagnose(plain(nn.ReLU, 20, method="gaussian"), batch())
    assert [each.method for each in found.trials] == ["exact", "taylor", "msra", "xavier", "lsuv"]


@pytest.mark.parametrize(
    ("make", "inputs", "name"),
    [
        (lambda: nn.LSTM(16, 32), torch.randn(9, 8, 16), "LSTM"),
        (lambda: nn.Embedding(16, 32), torch.arange(72).reshape(9, 8) % 16, "Embedding"),
    ],
)
def test_a_model_without_a_layer_to_watch_is_refused_in_one_line(
    make: Any, inputs: Tensor, name: str
) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011, compared below
        mpelu.diagnose(make(), inputs)
    expected = "diagnose: expected a layer with a weight that can be watched, got none in "
    assert str(error.value) == expected + name


def test_a_model_that_fails_with_other_weights_is_diagnosed() -> None:
    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 64), nn.Linear(64, 4)
            nn.init.normal_(self.one.weight, std=1e-5)
            nn.init.constant_(self.one.bias, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.one(x)
            assert hidden.abs().max() < 1.5, "out of bounds"
            out: Tensor = self.two(F.relu(hidden))
            return out

    found = mpelu.diagnose(Bounded(), batch(16))
    assert found.findings[0].kind == "signal dies"
    assert all(each.problem.endswith("out of bounds") for each in found.trials)
    assert "no initialization of exact, taylor" in found.sentence


def test_every_finding_is_printed() -> None:
    model = small()
    nn.init.normal_(model[0].weight, std=0.2)
    model[0].requires_grad_(False)
    found = mpelu.diagnose(model, batch(16))
    (remark,) = found.findings
    assert remark.text in str(found)
    assert str(found).startswith("healthy: ")
    sick = mpelu.diagnose(plain(nn.ReLU, 20, method="gaussian"), batch())
    assert str(sick).count(sick.findings[0].text) == 1


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        out: Tensor = self.net(mask * x)
        return out


def test_a_mask_of_ones_may_come_first() -> None:
    mask = torch.ones(48, 16)
    assert mpelu.diagnose(Masked(), {"mask": mask, "x": batch(16)}).is_healthy
    # Tokens that differ are enough, and the same ones aren't.
    tokens = torch.arange(48 * 16).reshape(48, 16) % 7
    assert mpelu.diagnose(Masked(), (mask, tokens)).is_healthy
    for same in (mask, tokens[:1].expand(48, 16)):
        with pytest.raises(ValueError, match="expected samples that differ"):
            mpelu.diagnose(Masked(), (mask, same))


def test_an_output_bias_at_the_mean_of_the_targets_is_no_problem() -> None:
    model = small(outputs=1)
    nn.init.constant_(model[2].bias, 300)
    targets = 300 + torch.randn(48, 1, generator=torch.Generator().manual_seed(2))
    found = mpelu.diagnose(model, batch(16), targets)
    assert found.is_healthy
    output = model[2](F.relu(model[0](batch(16)))).double() - 300
    assert found.rows[-1].share == pytest.approx(
        between_samples(output) / output.square().mean().item(), rel=1e-3
    )
    # A bias that drowns the signal of another layer still is.
    deep: Any = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1))
    nn.init.constant_(deep[2].bias, 1e4)
    assert kinds(mpelu.diagnose(deep, batch(16)))[0] == "signal dies"


class Clipped(nn.Module):
    """Two layers, and dead units of the first."""

    def __init__(self, activation: Any, dead: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.activation = nn.Linear(16, 32), nn.Linear(32, 4), activation
        with torch.no_grad():
            self.one.bias[:dead] = -100

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.activation(self.one(x)))
        return out


class OwnReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("clamp after one", lambda x: x.clamp(min=0)),
        ("clamp after one", lambda x: x.clamp_(min=0)),
        ("clamp after one", lambda x: torch.clamp(x, 0, 6)),
        ("maximum after one", lambda x: torch.maximum(x, torch.tensor(0.0))),
        ("maximum after one", lambda x: torch.maximum(torch.zeros_like(x), x)),
        ("activation", OwnReLU()),
    ],
)
def test_dead_units_are_found_however_the_activation_is_written(name: str, activation: Any) -> None:
    found = mpelu.diagnose(Clipped(activation, 31), batch(16))
    assert found.sentence.startswith(f"layer 1, `{name}`: 97% of its units are dead")
    found = mpelu.diagnose(Clipped(activation, 32), batch(16))
    assert found.sentence.startswith(f"layer 1, `{name}`: the whole activation is dead")
    found = mpelu.diagnose(Clipped(activation, 0), batch(16))
    assert found.is_healthy
    assert [row.dead for row in found.rows] == [None, 0, None]


def test_a_gradient_that_is_lost_in_a_function_nobody_knows_is_placed() -> None:
    found = mpelu.diagnose(Clipped(lambda x: torch.where(x > 0, x, 0.0), 32), batch(16))
    assert found.sentence.startswith("layer 2, `two`: its output is the same for every sample")
    (lost,) = (each for each in found.findings if each.kind == "gradient vanishes")
    assert lost.text.startswith("layer 1, `one`: the gradient at its output is zero")


def test_functions_that_keep_values_in_bounds_are_no_problem() -> None:
    for function in (
        lambda x: x.clamp(-1e3, 1e3),
        lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1e-6),
        lambda x: x * x.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt(),
        lambda x: x + (x.sign() - x).detach(),
        lambda x: x.masked_fill(x > 3, 3.0),
    ):
        assert mpelu.diagnose(Clipped(function, 0), batch(16)).findings == ()


@pytest.mark.parametrize("target", [1e20, float("nan")])
def test_a_loss_that_is_not_finite_is_found(target: float) -> None:
    found = mpelu.diagnose(small(), batch(16), torch.full((48, 4), target))
    assert found.findings[0].kind == "non-finite"
    assert found.sentence.startswith("the loss is ")


@pytest.mark.parametrize("scale", [1e30, 1e4, 1e-4, 1e-30])
def test_inputs_on_another_scale_are_found_first(scale: float) -> None:
    found = mpelu.diagnose(small(), batch(16) * scale)
    assert found.findings[0].kind == "inputs"
    assert found.sentence.endswith("standardize them to mean 0 and variance 1")
    assert mpelu.diagnose(small(), batch(16) + 1e4).findings[0].kind == "inputs"


def test_tokens_and_inputs_that_the_model_standardizes_are_on_a_usual_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, (48, 3, 8, 8), generator=generator).float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 4))
    found = mpelu.diagnose(model, bytes_)
    assert found.sentence.startswith("the inputs are large for a model without a norm")
    assert mpelu.diagnose(model, bytes_ / 255).is_healthy
    assert mpelu.diagnose(model.insert(1, nn.BatchNorm2d(16)), bytes_).is_healthy
    tokens = torch.randint(0, 100, (16, 12), generator=generator) * 1
    assert mpelu.diagnose(PreNorm(), tokens).is_healthy
    normed = nn.Sequential(nn.BatchNorm1d(16), small())
    assert mpelu.diagnose(normed, batch(16) * 1e5).is_healthy


def test_equal_rows_of_a_weight_are_found() -> None:
    model = small()
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.constant_(model[2].weight, 0.1)
    found = mpelu.diagnose(model, batch(16))
    assert found.sentence.startswith("layer 1, `0`: all rows of its weight are equal")
    assert "initialize_(model, inputs, 'exact')" in found.sentence
    transposed: Any = nn.Sequential(nn.ConvTranspose1d(16, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 3))
    with torch.no_grad():
        transposed[0].weight.copy_(torch.randn(16, 1, 3).expand(16, 8, 3))
    assert "symmetric" in kinds(mpelu.diagnose(transposed, batch(16 * 9).reshape(48, 16, 9)))


def test_equal_rows_that_do_no_harm_are_no_problem() -> None:
    torch.manual_seed(0)
    head = small()
    nn.init.constant_(head[2].weight, 0.1)  # its outputs have targets of their own
    depthwise: Any = nn.Sequential(
        nn.Conv1d(16, 16, 3, groups=16), nn.Conv1d(16, 1, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(7, 4),
    )  # fmt: skip
    nn.init.constant_(depthwise[0].weight, 1 / 3)
    frozen = small()
    nn.init.constant_(frozen[0].weight, 0.1)
    frozen[0].requires_grad_(False)
    for model in (head, depthwise, frozen):
        inputs = batch(16 * 9).reshape(48, 16, 9) if model is depthwise else batch(16)
        assert mpelu.diagnose(model, inputs).is_healthy


def test_a_residual_branch_that_starts_at_zero_is_no_problem() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            last = nn.Linear(16, 16)
            nn.init.zeros_(last.weight)
            self.branch = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), last)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + self.branch(x)
            return out

    torch.manual_seed(0)
    model = nn.Sequential(*(Residual() for _ in range(3)), nn.Linear(16, 4))
    assert mpelu.diagnose(model, batch(16)).is_healthy


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parts_that_are_not_looked_into_are_named() -> None:
    class Recurrent(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.first, self.r, self.last = nn.Linear(16, 16), part, nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.r(self.first(x))
            out: Tensor = self.last((hidden[0] if isinstance(hidden, tuple) else hidden)[:, -1])
            return out

    sequences = batch(16 * 5).reshape(48, 5, 16)
    for part, name in (
        (nn.LSTM(16, 64, batch_first=True), "LSTM"),
        (torch.jit.script(small(outputs=64)), "Sequential"),
    ):
        found = mpelu.diagnose(Recurrent(part), sequences)
        assert found.is_healthy
        assert [each.text for each in found.findings] == [f"`r` ({name}) was not looked into"]


def test_a_variance_is_exact_beside_a_large_mean() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 4)).double()
    nn.init.constant_(model[0].bias, 1e5)
    inputs = batch(16).double()
    (row, _) = mpelu.diagnose(model, inputs).rows
    output = model[0](inputs)
    assert row.signal == pytest.approx(output.var(0).mean().item(), rel=1e-9)
    assert row.variance == pytest.approx(output.var(correction=0).item(), rel=1e-9)


def test_one_sample_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="expected at least two samples, got one"):
        mpelu.diagnose(model, torch.randn(1, 4))


class LastNorm(nn.LayerNorm):
    """Layer norm of the channels in dimension 1, as speech models have it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


def convolved(dims: int, norm: str, activation: nn.Module, dead: int) -> Any:
    """A network of convolutions, and channels that never get past the first activation."""
    torch.manual_seed(0)
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]
    norms: dict[str, nn.Module] = {
        "batch": (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](32),
        "group": nn.GroupNorm(4, 32),
        "instance": instance(32, affine=True),
        "layer": LastNorm(32),
        "none": nn.Identity(),
    }
    model: Any = nn.Sequential(
        convolution(4, 32, 3), norms[norm], activation, convolution(32, 4, 3), nn.Flatten(),
        nn.LazyLinear(3),
    )  # fmt: skip
    model(torch.randn(2, 4, *[5] * dims))
    with torch.no_grad():
        (model[0] if norm == "none" else model[1]).bias[:dead] = -100
    return model


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("norm", ["batch", "group", "instance", "layer", "none"])
def test_units_of_convolutions_are_channels(dims: int, norm: str) -> None:
    inputs = torch.randn(16, 4, *[5] * dims, generator=torch.Generator().manual_seed(1))
    for activation in (nn.ReLU(), mpelu.MPELU(32)):
        found = mpelu.diagnose(convolved(dims, norm, activation, 28), inputs)
        assert next(row for row in found.rows if row.kind == "activation").dead == 28 / 32
        assert found.sentence.startswith("layer 1, `2`: 88% of its units are dead")
    found = mpelu.diagnose(convolved(dims, norm, nn.PReLU(32), 28), inputs)
    assert next(row for row in found.rows if row.kind == "activation").linear == 28 / 32


@pytest.mark.parametrize("norm", [nn.LayerNorm(32), nn.Identity()])
@pytest.mark.parametrize("activation", [nn.ReLU(), mpelu.MPELU(32, dim=-1)])
def test_units_of_tokens_are_features(norm: nn.Module, activation: nn.Module) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 32), copy.deepcopy(norm), activation, nn.Linear(32, 4))
    with torch.no_grad():
        (model[0] if isinstance(norm, nn.Identity) else model[1]).bias[:28] = -100
    found = mpelu.diagnose(model, torch.randn(16, 12, 8))
    assert found.rows[-2].dead == 28 / 32


class Speech(nn.Module):
    """The shape of wav2vec2: convolutions over time with norms, then tokens with channels last."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv1d(1, 24, 10, stride=5, bias=False)
        second = nn.Conv1d(24, 24, 3, stride=2, bias=False)
        self.features = nn.Sequential(
            first, nn.GroupNorm(24, 24), mpelu.MPELU(24), second, LastNorm(24), mpelu.MPELU(24)
        )
        self.project = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 32))
        self.position = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(32, 32, 5, padding=2, groups=4), dim=2
        )
        self.activation = mpelu.MPELU(32)
        self.block = nn.Sequential(
            nn.LayerNorm(32), nn.Linear(32, 64), mpelu.MPELU(64, dim=-1), nn.Linear(64, 32)
        )

    def forward(self, sound: Tensor) -> Tensor:
        hidden: Tensor = self.project(self.features(sound[:, None]).transpose(1, 2))
        placed = self.activation(self.position(hidden.transpose(1, 2))).transpose(1, 2)
        hidden = hidden + placed
        out: Tensor = hidden + self.block(hidden)
        return out


def test_a_converted_speech_model_is_diagnosed() -> None:
    torch.manual_seed(0)
    model: Any = Speech()
    sound = torch.randn(8, 400, generator=torch.Generator().manual_seed(1))
    found = mpelu.diagnose(model, sound)
    assert found.is_healthy
    assert [row.dead for row in found.rows if row.kind == "activation"] == [0, 0, 0, 0]
    with torch.no_grad():
        model.features[4].bias[:21] = -100
    found = mpelu.diagnose(model, sound)
    assert found.sentence.startswith("layer 2, `features.5`: 88% of its units are dead")


def normed(kind: str) -> Any:
    """A network whose weights are computed from other parameters, in both styles of torch."""
    torch.manual_seed(0)
    old = {"weight norm": nn.utils.weight_norm, "spectral norm": nn.utils.spectral_norm}
    new = {
        "weight norm": nn.utils.parametrizations.weight_norm,
        "spectral norm": nn.utils.parametrizations.spectral_norm,
        "orthogonal": nn.utils.parametrizations.orthogonal,
    }
    style, _, name = kind.partition(" ")
    apply: Any = (old if style == "old" else new)[name]
    layers = [each for _ in range(6) for each in (apply(nn.Linear(32, 32)), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(32, 4))


def state_of(model: nn.Module) -> list[Any]:
    """Every attribute of every module: tensors by identity and values, the rest as it prints."""
    return [
        (id(each), each.clone()) if isinstance(each, Tensor) else str(each)
        for module in model.modules()
        for held in (module.__dict__, module._parameters, module._buffers)
        for each in held.values()
    ]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "kind",
    ["old weight norm", "old spectral norm", "new weight norm", "new spectral norm",
     "new orthogonal"],
)  # fmt: skip
def test_computed_weights_are_measured_and_the_model_is_left_as_it_was(kind: str) -> None:
    model, inputs = normed(kind), batch(32)
    output = model(inputs)  # leaves computed tensors in the modules of the old style
    before, held = copy.deepcopy(model[-1].state_dict()), state_of(model)
    found = mpelu.diagnose(model, inputs)
    assert [row.name for row in found.rows] == [str(index) for index in range(13)]
    with pytest.raises(ValueError, match="expected a loss that takes the output"):
        mpelu.diagnose(model, inputs, torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="the model can't run on inputs"):
        mpelu.diagnose(model, batch(31))
    for one, other in zip(held, state_of(model), strict=True):
        same = one == other if isinstance(one, str) else (
            one[0] == other[0] and torch.equal(one[1], other[1])
        )  # fmt: skip
        assert same
    assert before.keys() == model[-1].state_dict().keys()
    del output
    # Faults are found as without the norm, and other initializations can be tried.
    with torch.no_grad():
        model[4].bias.fill_(-100)
    found = mpelu.diagnose(model, inputs)
    assert found.sentence.startswith("layer 3, `5`: the whole activation is dead")
    assert len(found.trials) >= 5


def test_errors_are_told_apart_by_where_they_come_from() -> None:
    class Refusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("diagnose: the model's own words")

    with pytest.raises(ValueError, match="the model can't run on inputs of shapes") as one:
        mpelu.diagnose(Refusing(), batch(16))
    assert str(one.value).endswith(": diagnose: the model's own words")

    def loss(output: Tensor) -> Tensor:
        raise RuntimeError("no such output\nmore lines")

    with pytest.raises(ValueError, match="expected a loss that takes") as other:
        mpelu.diagnose(small(), batch(16), loss=loss)
    assert str(other.value).endswith("got: no such output")


def test_what_a_module_is_called_decides_nothing() -> None:
    straight = plain(nn.Tanh, 2, method="gaussian", std=0.006)
    kinds_of = [
        kinds(mpelu.diagnose(nn.Sequential(OrderedDict({name: straight})), batch()))
        for name in ("net", "emulator", "softmax_net")
    ]
    assert all(each == ["signal dies", "linear"] for each in kinds_of)


def test_a_trial_says_what_was_swapped() -> None:
    found = mpelu.diagnose(plain(nn.Sigmoid, 50), batch())
    assert [each.swapped for each in found.trials] == [()] * 5 + [("Sigmoid",)]
    assert [each.method for each in found.trials][-2:] == ["lsuv", "exact"]
    assert found.trials[-1].label == "exact with MPELU for Sigmoid"
    assert found.others == found.findings[1:]


def test_decoupled_weight_decay_of_alpha_and_beta_is_found() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 64), mpelu.MPELU(64), nn.PReLU(), nn.Linear(64, 10))
    weights = [each for name, each in model.named_parameters() if not name.startswith("1.")]
    activation = [model[1].alpha, model[1].beta]

    def texts(optimizer: torch.optim.Optimizer) -> list[str]:
        found = mpelu.diagnose(model, batch(), torch.arange(48) % 10, optimizer=optimizer)
        assert found.is_healthy == (not kinds(found))
        return [each.text for each in found.findings if each.kind == "parameters"]

    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    (found,) = texts(adamw)
    assert found.startswith("weight decay multiplies `1.alpha`, `1.beta` by 0.61 in 10,000 steps")
    assert "mpelu.param_groups(" in found
    assert "optimizer=torch.optim.AdamW)" in found
    # The factor is what the optimizer does where nothing pushes back.
    alone = nn.Parameter(torch.ones(1))
    decaying = torch.optim.AdamW([alone], lr=1e-3, weight_decay=0.05)
    alone.grad = torch.zeros(1)
    for _ in range(1000):
        decaying.step()
    assert alone.item() ** 10 == pytest.approx(0.61, abs=0.005)
    # Any optimizer that says so, the rate of the group of the parameter, and schedules.
    adam = torch.optim.Adam(
        model.parameters(), lr=1e-3, weight_decay=0.1, decoupled_weight_decay=True
    )
    assert "by 0.37 in 10,000 steps" in texts(adam)[0]
    apart: Any = [{"params": weights}, {"params": activation, "lr": 5e-3}]
    assert "by 0.082 in" in texts(torch.optim.AdamW(apart, lr=1e-3, weight_decay=0.05))[0]
    torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: 0.0)  # the first step of a warm-up
    assert texts(adamw) == [found]
    assert texts(torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=200.0))
    # No decay, little of it, or one that is part of the gradient.
    free: Any = [{"params": weights}, {"params": activation, "weight_decay": 0.0}]
    assert texts(torch.optim.AdamW(free, lr=1e-3, weight_decay=0.05)) == []
    assert texts(torch.optim.AdamW(model.parameters(), lr=1e-3)) == []
    assert texts(torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.05)) == []
    with torch.no_grad():
        model[1].alpha.zero_()
    assert (
        "multiplies `1.beta` by" in texts(torch.optim.AdamW(model.parameters(), weight_decay=1))[0]
    )


class Squeezed(nn.Module):
    """A gate of few units that see one mean value per channel, as in squeeze-and-excitation."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.one, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.down, self.up, self.head = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1), nn.Linear(16, 4)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.hardswish(self.norm(self.one(x)))
        gate = F.hardsigmoid(self.up(self.relu(self.down(hidden.mean((2, 3), keepdim=True)))))
        out: Tensor = self.head((hidden * gate).mean((2, 3)))
        return out


def test_few_units_that_are_negative_by_chance_are_no_problem() -> None:
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    most = 0.0
    for seed in range(16):
        found = mpelu.diagnose(Squeezed(seed), images)
        assert found.is_healthy
        most = max(most, *(row.dead or 0.0 for row in found.rows))
    assert most >= 0.75
    # Many units are never all negative by chance.
    assert kinds(mpelu.diagnose(Clipped(nn.ReLU(), 24), batch(16))) == ["dead"]


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def perceptron(*middle: nn.Module, activation: type[nn.Module] = nn.ReLU) -> Any:
    """Three layers, modules after the second activation, and a last layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), activation(), nn.Linear(64, 64), activation(), *middle,
        nn.Linear(64, 64), activation(), nn.Linear(64, 10),
    )  # fmt: skip


LABELS = torch.arange(48) % 10


@pytest.mark.parametrize("cut", [lambda x: x.detach(), lambda x: x.data])
def test_a_detached_middle_is_found(cut: Any) -> None:
    found = mpelu.diagnose(perceptron(Applied(cut)), batch(), LABELS)
    assert kinds(found) == ["detached"]
    assert found.sentence == (
        "layer 2, `2`: no gradient reaches its weight, nor that of 1 more, although the output "
        "depends on it: `4` behind it stops it"
    )


class Branch(nn.Module):
    """A residual block that keeps the gradient back on its way in, on its way out, or inside."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.one, self.two, self.where = nn.Linear(64, 64), nn.Linear(64, 64), where

    def forward(self, x: Tensor) -> Tensor:
        given = x.detach() if self.where == "in" else x
        with torch.set_grad_enabled(self.where != "inside"):
            found: Tensor = self.two(F.relu(self.one(given)))
        return x + (found.detach() if self.where == "out" else found)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("in", "layer 3, `4.one`: `detach` before it stops the gradient"),
        ("out", "layer 4, `4.two`: no gradient reaches its weight, nor that of 1 more,"),
        ("inside", "layer 4, `4.two`: no gradient reaches its weight, nor that of 1 more,"),
        ("", ""),
    ],
)
def test_a_detached_branch_is_found(where: str, said: str) -> None:
    found = mpelu.diagnose(perceptron(Branch(where)), batch(), LABELS)
    assert kinds(found) == (["detached"] if where else [])
    assert not where or found.sentence.startswith(said)


def test_a_choice_that_has_no_gradient_is_not_called_detached() -> None:
    class Quantized(nn.Module):
        """Takes the row of a code book that a layer prefers, as wav2vec2 does in evaluation."""

        def __init__(self) -> None:
            super().__init__()
            self.prefers, self.book = nn.Linear(64, 8), nn.Parameter(torch.randn(8, 16))
            self.last = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.prefers(x)
            one_hot = scores.new_zeros(scores.shape).scatter(1, scores.argmax(1, keepdim=True), 1.0)
            out: Tensor = self.last(one_hot @ self.book)
            return out

    torch.manual_seed(0)
    assert "detached" not in kinds(mpelu.diagnose(Quantized(), batch()))


def test_a_head_that_is_detached_on_purpose_is_a_remark() -> None:
    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.policy, self.value = (nn.Linear(64, each) for each in (64, 4, 1))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = F.relu(self.body(x))
            return self.policy(hidden), self.value(hidden.detach())

    torch.manual_seed(0)
    found = mpelu.diagnose(ActorCritic(), batch())
    assert found.is_healthy
    assert "`value`: `detach` before it stops the gradient" in found.findings[0].text


def test_detached_values_that_do_no_harm_are_no_problem() -> None:
    for function in (
        lambda x: x + (x.sign() - x).detach(),  # straight through
        lambda x: x / x.detach().norm(dim=1, keepdim=True),
        lambda x: x[:, x.detach()[0].argsort()],
        lambda x: x + torch.zeros_like(x) + x.new_zeros(x.shape).scatter(1, x.argmax(1, True), 1.0),
    ):
        assert mpelu.diagnose(perceptron(Applied(function)), batch(), LABELS).is_healthy


@pytest.mark.parametrize(
    ("last", "loss", "kind"),
    [
        (nn.Softmax(-1), None, "loss"),
        (nn.Softmax(-1), nn.CrossEntropyLoss(), "loss"),
        (nn.Softmax(-1), nn.NLLLoss(), "loss"),
        (nn.Identity(), lambda output, labels: F.nll_loss(output, labels), "loss"),
        (nn.LogSoftmax(-1), nn.NLLLoss(), ""),
        (nn.LogSoftmax(-1), None, ""),
        (nn.Softmax(-1), lambda output, labels: F.nll_loss(output.log(), labels), ""),
        (nn.Softmax(0), None, "softmax"),
        (Applied(lambda x: x.softmax(0)), None, "softmax"),
    ],
)
def test_a_loss_of_probabilities_and_a_softmax_over_the_batch_are_found(
    last: nn.Module, loss: Any, kind: str
) -> None:
    model = perceptron().append(last)
    found = mpelu.diagnose(model, batch(), LABELS, loss)
    assert [each for each in kinds(found) if each in ("loss", "softmax")] == [kind] * bool(kind)
    assert found.is_healthy == (not kind)


def test_a_softmax_over_instances_or_similarities_is_no_problem() -> None:
    class Pooled(nn.Module):
        """Attention over the instances of a bag, as for whole slides."""

        def __init__(self, pools: bool) -> None:
            super().__init__()
            self.one, self.score, self.last = (nn.Linear(64, each) for each in (64, 1, 4))
            self.pools = pools

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.relu(self.one(x))
            if self.pools:
                out: Tensor = self.last(
                    (self.score(hidden).softmax(0) * hidden).sum(0, keepdim=True)
                )
                return out
            similar = (hidden @ hidden.T).softmax(0)
            out = self.last(similar @ hidden)
            return out

    torch.manual_seed(0)
    for pools in (True, False):
        assert "softmax" not in kinds(mpelu.diagnose(Pooled(pools), batch()))


def test_layers_without_an_activation_between_them_are_found() -> None:
    found = mpelu.diagnose(perceptron(activation=nn.Identity), batch(), LABELS)
    assert found.sentence.startswith("layer 1, `0`: nothing nonlinear comes between it and `2`")
    assert kinds(found) == ["linear"]
    missing = perceptron(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout())
    (remark,) = mpelu.diagnose(missing, batch(), LABELS).findings
    assert remark.kind == "remark"
    assert remark.text.startswith("layer 3, `4`: nothing nonlinear comes between it and `7`")


def test_layers_that_are_meant_to_be_linear_are_not_named() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixed = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            tokens = x.reshape(-1, 4, 16)
            found: Tensor = self.mixed(tokens, tokens, tokens)[0]
            return found.flatten(1)

    images = torch.randn(8, 8, 12, 12, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    convolutions = nn.Sequential(
        nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 1), nn.ReLU(),  # separable
        nn.Conv2d(16, 16, (1, 3)), nn.Conv2d(16, 16, (3, 1)), nn.ReLU(),  # factorized
        nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 32, 1), nn.ReLU(),  # a bottleneck
        nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip
    convolutions(images)
    assert mpelu.diagnose(convolutions, images).findings == ()
    for middle in (
        [nn.Linear(64, 8), nn.Linear(8, 64), nn.ReLU()],  # of low rank
        [nn.Linear(64, 64), nn.LayerNorm(64)],
        [nn.Linear(64, 64), Attention()],
        [nn.Linear(64, 64), Applied(torch.sin)],
    ):
        found = mpelu.diagnose(perceptron(*middle), batch())
        assert not any("nonlinear" in each.text for each in found.findings)


def test_inputs_on_different_scales_and_bytes_without_a_norm_are_found() -> None:
    scales = torch.ones(64)
    scales[::2] = 1000
    for inputs in (batch() * scales, batch() * scales / 1000):
        found = mpelu.diagnose(perceptron(), inputs, LABELS)
        assert kinds(found)[0] == "inputs"
        assert found.sentence.startswith("the inputs' channels are on different scales")
    one = torch.ones(64)
    one[5] = 1000
    assert kinds(mpelu.diagnose(perceptron(), batch() * one, LABELS))[0] == "inputs"
    # Not if the model changes them first, nor for channels that are constant or rare.
    normed = nn.Sequential(nn.BatchNorm1d(64), perceptron())
    assert mpelu.diagnose(normed, batch() * scales, LABELS).is_healthy
    rare = (torch.rand(48, 64, generator=torch.Generator().manual_seed(1)) < 0.05).float()
    rare[:, :20] = 1
    assert mpelu.diagnose(perceptron(), rare + batch() * (torch.arange(64) > 32)).is_healthy


def test_frozen_layers_are_told_by_what_they_hold() -> None:
    model = perceptron()
    model[2].requires_grad_(False)
    found = mpelu.diagnose(model, batch(), LABELS)
    assert kinds(found) == ["parameters"]
    assert found.sentence.startswith("requires_grad is False for `2.weight`, where the values are")
    trained = perceptron()
    for layer in trained[:-1]:
        for each in layer.parameters():
            nn.init.normal_(each, std=0.15).requires_grad_(False)
    found = mpelu.diagnose(trained, batch(), LABELS)
    assert found.is_healthy
    assert "and 3 more: 95% of all values aren't trained" in found.findings[0].text
    nothing = perceptron().requires_grad_(False)
    found = mpelu.diagnose(nothing, batch(), LABELS)
    assert found.sentence.startswith("no parameter requires gradients, so nothing learns")
    assert len(found.rows) == 7
    assert not any(each.requires_grad for each in nothing.parameters())
    nn.init.constant_(nothing[2].bias, -100)  # other findings are found all the same
    found = mpelu.diagnose(nothing, batch(), LABELS)
    assert kinds(found)[0] == "dead"
    assert found.trials[0].problem == ""
