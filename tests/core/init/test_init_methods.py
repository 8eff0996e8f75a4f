"""The table of methods: names, objects with options, and rules of a user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mpelu
from mpelu import init
from mpelu.elementwise import average
from mpelu.lab.config import INIT, Config
from mpelu.lab.errors import UserError
from mpelu.lab.training import network


def mlp() -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(64, 64), mpelu.MPELU(64)]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def lecun() -> Iterator[type[init.Method]]:
    @init.register_method
    class LeCun(init.Method):
        name = "lecun of ones own"

        def rule(self, incoming: init.Incoming) -> float:
            return float(incoming.fan_in**-0.5)

    yield LeCun
    del init.METHODS["lecun of ones own"]


def test_a_name_is_the_method_with_its_default_options() -> None:
    for name, kind in init.METHODS.items():
        if name == "lsuv":
            continue
        one, two = mlp(), mlp()
        first = init.initialize_(one, method=name, generator=seeded())
        second = init.initialize_(two, method=kind(), generator=seeded())
        assert all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))
        assert first.rule == second.rule


def test_a_rule_of_ones_own_sets_every_weight(lecun: type[init.Method]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    report = init.initialize_(model, method="lecun of ones own", generator=seeded())
    assert [row.std for row in report.rows] == [27**-0.5, 288**-0.5]
    assert report.rule == "lecun of ones own"
    assert init.initialize_(model, method=lecun(distribution="orthogonal")).rule == (
        "lecun of ones own, orthogonal"
    )


def test_a_rule_of_ones_own_reads_moments_if_it_asks_for_them() -> None:
    class Half(init.Fitted):
        name = "half"

        def rule(self, incoming: init.Incoming) -> float:
            return float((0.5 / (incoming.fan * average(incoming.moment))) ** 0.5)

    report = init.initialize_(mlp(), torch.randn(256, 64), Half(), generator=seeded())
    assert [row.predicted for row in report.rows] == pytest.approx([0.5] * 4)
    assert all(0.3 < row.measured < 0.8 for row in report.rows if row.measured is not None)


def test_a_method_may_draw_from_a_distribution_of_its_own() -> None:
    class Uniform(init.Exact):
        name = "uniform"

        def draw_(self, weight: torch.Tensor, std: float | torch.Tensor, generator: object) -> None:
            bound = average(std) * 3**0.5
            nn.init.uniform_(weight, -bound, bound)

    model = mlp()
    report = init.initialize_(model, torch.randn(256, 64), Uniform())
    for row, layer in zip(report.rows, (model[0], model[2], model[4], model[6]), strict=True):
        weight = layer.get_parameter("weight")
        assert weight.abs().max().item() <= 1.1 * 3**0.5 * row.std
        assert row.measured == pytest.approx(1, abs=0.25)


def test_an_error_while_a_method_draws_restores_the_model() -> None:
    class Fails(init.Exact):
        name = "fails"

        def draw_(self, weight: torch.Tensor, std: object, generator: object) -> None:
            weight.zero_()
            if weight.size(0) == 10:
                raise RuntimeError("no more numbers")

    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="no more numbers"):
        init.initialize_(model, method=Fails())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_registered_method_is_an_init_of_the_lab_and_a_remedy_of_the_doctor(
    lecun: type[init.Method],
) -> None:
    config = Config(init="lecun of ones own", model="resnet-8", data="digits")
    network.check_name(config)
    built = network.build(config, 10, 1, 8)
    assert built(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    sick = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    for parameter in sick.parameters():
        nn.init.normal_(parameter, std=1e-4)
    found = mpelu.diagnose(sick, torch.randn(32, 64))
    assert "lecun of ones own" in [trial.method for trial in found.trials]


def test_a_class_of_ones_own_module_is_an_init_of_the_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from mpelu.init import Method\n\nclass Tiny(Method):\n    name = 'tiny'\n"
    text += "    def rule(self, incoming):\n        return 1e-3\n"
    (tmp_path / "own_method.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    config = Config(init="own_method:Tiny", model="resnet-8", data="digits")
    weights = [each for each in network.build(config, 10, 1, 8).parameters() if each.dim() > 1]
    assert all(each.std().item() == pytest.approx(1e-3, rel=0.2) for each in weights)


def test_the_help_of_the_lab_lists_every_method() -> None:
    assert sorted(INIT) == sorted(["own", *init.METHODS])


def test_an_option_that_a_method_does_not_have_is_refused_by_the_lab() -> None:
    config = Config(init="xavier", init_shape="depth", model="resnet-8", data="digits")
    with pytest.raises(UserError, match="init_shape: xavier has no such option"):
        network.build(config, 10, 1, 8)


@pytest.mark.parametrize("wrong", ["kaiming", None, 3])
def test_what_is_no_method_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"expected one of \['exact'.*or an object such as"):
        init.initialize_(mlp(), method=wrong)  # type: ignore[arg-type]


# Without types, so that calls may be wrong.
INITIALIZE: Any = init.initialize_
DIAGNOSE: Any = mpelu.diagnose
DEEP: Any = init.Deep
EXACT: Any = init.Exact
LSUV: Any = init.LSUV


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: INITIALIZE(m, x, init.Exact), r"got a class; write Exact\(\)"),
        (lambda m, x: INITIALIZE(m, x, "exakt"), "did you mean 'exact'"),
        (lambda m, x: INITIALIZE(m, "exact"), "write method='exact'"),
        (lambda m, x: INITIALIZE(m, init.Exact(mode="fan_out")), r"write method=Exact\("),
        (lambda m, x: INITIALIZE(m, (3, 8, 8)), r"write input_shape=\(3, 8, 8\)"),
        (lambda m, x: INITIALIZE(m, x, generator=0), "got 0"),
        (lambda m, x: INITIALIZE(torch.jit.trace(m, x), x), "before scripting or tracing"),
        (lambda m, x: DIAGNOSE(torch.jit.trace(m, x), x), "before scripting or tracing"),
        (lambda m, x: DIAGNOSE(m, x, optimizer=torch.optim.SGD), "pass the object"),
        (lambda m, x: DIAGNOSE(m, x, x, nn.MSELoss), "pass an object such as"),
        (lambda m, x: DEEP(target="0.4"), "got '0.4'"),
        (lambda m, x: LSUV(max_rounds=2.5), "got 2.5"),
        (lambda m, x: EXACT(std=0.1), r"Exact.__init__\(\) got an unexpected"),
    ],
)
def test_arguments_in_the_wrong_place_are_told_what_to_write(call: Any, message: str) -> None:
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        call(model, torch.randn(16, 64))
    assert "\n" not in str(raised.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_target_counts_in_every_network() -> None:
    model = nn.Sequential(
        nn.Linear(16, 16), nn.LayerNorm(16), mpelu.MPELU(), nn.Linear(16, 16), mpelu.MPELU(),
        nn.Linear(16, 4),
    )  # fmt: skip
    report = init.initialize_(model, method=init.Deep(target=0.02))
    assert report.rule == "deep: exact fan_in"
    assert report.correlation == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize("returned", [None, -1.0, "0.1"])
def test_a_rule_that_gives_no_standard_deviation_is_named(returned: Any) -> None:
    class Wrong(init.Method):
        name = "wrong"

        def rule(self, incoming: init.Incoming) -> Any:
            return returned

    with pytest.raises(ValueError, match=r"from Wrong.rule for 0.weight, got "):
        init.initialize_(mlp(), method=Wrong())
    with pytest.raises(NotImplementedError, match=r"Method requires a method rule"):
        init.initialize_(mlp(), method=init.Method())


def test_a_name_is_taken_once() -> None:
    for name in ("exact", "own"):
        with pytest.raises(ValueError, match=f"'{name}' is taken"):
            init.register_method(type("Mine", (init.Exact,), {"name": name}))


def test_what_cannot_be_registered_is_refused() -> None:
    with pytest.raises(TypeError, match="got 3"):
        init.register_method(3)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="Nameless requires a name"):
        init.register_method(type("Nameless", (init.Method,), {}))


def test_critical_biases_make_up_for_what_the_weights_leave_out() -> None:
    incoming = init.Incoming(
        fan=100.0,
        fan_in=100.0,
        fan_out=100.0,
        moment=0.6449,
        signal=init.Signal(mean=0.1605, variance=0.6191),
        can_shift=True,
    )
    std, variance = init.Critical().rule_and_bias(incoming)
    # Without an activation before it the slope is one, so the weights have variance 1 / n.
    assert std == pytest.approx(0.1)
    assert variance == pytest.approx(1 - (0.6191 + 0.1605**2))
    assert math.isclose(init.Exact().rule(incoming), (1 / 64.49) ** 0.5)
