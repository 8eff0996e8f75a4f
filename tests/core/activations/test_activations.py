"""The table of activations, against formulas in float64, and activations of one's own."""

from __future__ import annotations

import ast
import doctest
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import integrate, special  # type: ignore[import-untyped]
from torch import Tensor, nn

import mpelu
from mpelu import activations, models
from mpelu.activations import TABLE, describe, find_activation, resolve
from mpelu.activations.parametric import PELU, SReLU
from mpelu.elementwise import ElementwiseFunction, average, exponential, fit
from mpelu.graph import elementwise
from mpelu.lab import Config, cli, inspect_run, train
from mpelu.lab.errors import listed
from mpelu.lab.inspecting import learned_parameters
from mpelu.lab.plots import COLORS
from mpelu.lab.reporting.runs import read_run
from mpelu.lab.run import checkpoint, folder

Function = Callable[[float], float]
LAMBDA, SELU_ALPHA = 1.0507009873554804934, 1.6732632423543772848


def sigmoid(y: float) -> float:
    return float(special.expit(y))


def softplus(y: float) -> float:
    return float(special.log1p(math.exp(y))) if y < 30 else y


def mish_slope(y: float) -> float:
    bent = math.tanh(softplus(y))
    return bent + y * (1 - bent**2) * sigmoid(y)


def pieces(slope: float) -> tuple[Function, Function]:
    return lambda y: y if y > 0 else slope * y, lambda y: 1.0 if y > 0 else slope


def curve(alpha: float, beta: float = 1.0, scale: float = 1.0) -> tuple[Function, Function]:
    return (
        lambda y: scale * (y if y > 0 else alpha * math.expm1(beta * y)),
        lambda y: scale * (1.0 if y > 0 else alpha * beta * math.exp(beta * y)),
    )


REFERENCES: dict[str, tuple[Function, Function]] = {
    "relu": pieces(0.0),
    "leaky_relu": pieces(0.01),
    "prelu": pieces(0.25),
    "rrelu": pieces(11 / 48),
    "elu": curve(1.0),
    "celu": curve(1.0),
    "srelu": pieces(torch.tensor(0.2).item()),  # held in float32
    "selu": curve(SELU_ALPHA, 1.0, LAMBDA),
    "gelu": (
        lambda y: y * float(special.ndtr(y)),
        lambda y: float(special.ndtr(y)) + y * math.exp(-(y**2) / 2) / math.sqrt(2 * math.pi),
    ),
    "silu": (
        lambda y: y * sigmoid(y),
        lambda y: sigmoid(y) * (1 + y * (1 - sigmoid(y))),
    ),
    "mish": (lambda y: y * math.tanh(softplus(y)), mish_slope),
    "relu6": (lambda y: min(max(y, 0.0), 6.0), lambda y: 1.0 if 0 < y < 6 else 0.0),
    "hardswish": (
        lambda y: y * min(max(y + 3, 0.0), 6.0) / 6,
        lambda y: (2 * y + 3) / 6 if -3 < y < 3 else float(y >= 3),
    ),
    "pelu": curve(1.0),
    "mpelu": curve(1.0),
    "identity": pieces(1.0),
}
"""f and f' of each activation with its default options."""


def expectation(
    function: Function,
    mean: float,
    variance: float,
    kinks: Sequence[float] = (-3.0, 0.0, 1.0, 3.0, 6.0),
) -> float:
    """E[function(y)] under N(mean, variance), by scipy."""
    sigma = math.sqrt(variance)

    def weighted(z: float) -> float:
        return function(mean + sigma * z) * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    places = sorted({-12.0, *(max(-12.0, min(12.0, (k - mean) / sigma)) for k in kinks), 12.0})
    return math.fsum(
        integrate.quad(weighted, low, high, epsabs=1e-12, epsrel=1e-12, limit=200)[0]
        for low, high in pairwise(places)
    )


def powered(function: Function, power: int, y: float) -> float:
    return float(function(y) ** power)


def described(module: nn.Module) -> ElementwiseFunction:
    found = describe(module)
    assert found is not None
    return found


def test_the_references_cover_the_table() -> None:
    assert list(REFERENCES) == list(TABLE)


@pytest.mark.parametrize("name", REFERENCES)
def test_values(name: str) -> None:
    function, _ = REFERENCES[name]
    module = TABLE[name].make(3).double().eval()
    y = torch.linspace(-6, 6, 36, dtype=torch.float64).reshape(4, 3, 3)
    expected = torch.tensor([function(each) for each in y.flatten().tolist()]).reshape(4, 3, 3)
    torch.testing.assert_close(module(y), expected.double(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", REFERENCES)
def test_slopes_at_zero_are_those_of_autograd(name: str) -> None:
    module = TABLE[name].make(2).double().eval()
    y = torch.tensor([[-1e-9, 1e-9], [1e-9, -1e-9]], dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(module(y).sum(), y)
    value, below, above = described(TABLE[name].make(2)).at_zero()
    assert value == 0
    assert slopes.tolist() == [
        pytest.approx([below, above], abs=1e-7),
        pytest.approx([above, below], abs=1e-7),
    ]
    record = TABLE[name]
    if record.slope is not None:
        chosen = {option: 0.3 for option in record.options if option in ("alpha", "beta")}
        assert above == 1
        found = described(record.make(2, **chosen)).at_zero()[1]
        options = {**record.options, **chosen}
        options.pop("dim", None)
        assert record.slope(**options) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (0.7, 0.5), (-1.5, 9.0), (0.0, 400.0)])
@pytest.mark.parametrize("name", REFERENCES)
def test_moments(name: str, mean: float, variance: float) -> None:
    function, slope = REFERENCES[name]
    found = described(TABLE[name].make(2))
    first, second = found.moments(mean, variance)
    squared = found.squared_slope(mean, variance)
    for values, of, power in ((first, function, 1), (second, function, 2), (squared, slope, 2)):
        expected = expectation(partial(powered, of, power), mean, variance)
        assert values == pytest.approx(expected, rel=1e-8, abs=1e-9)


def test_the_mean_of_gelu_in_closed_form() -> None:
    for variance in (0.1, 1.0, 50.0):
        exact = variance / math.sqrt(2 * math.pi * (1 + variance))
        assert described(nn.GELU()).moments(0.0, variance)[0] == pytest.approx(exact)


def test_moments_per_channel() -> None:
    module = PELU(2)
    with torch.no_grad():
        module.a.copy_(torch.tensor([0.5, 3.0]))
        module.b.copy_(torch.tensor([2.0, 0.75]))
    found = described(module)
    assert found.has_closed_form
    tried = elementwise(module)
    assert tried is not None
    for mean in (0.0, 0.5):
        for closed, numeric in zip(found.moments(mean, 2.0), tried.moments(mean, 2.0), strict=True):
            torch.testing.assert_close(closed, numeric, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(
            found.squared_slope(mean, 2.0), tried.squared_slope(mean, 2.0), rtol=1e-9, atol=1e-10
        )


def test_a_beta_below_its_bound_counts_as_the_bound() -> None:
    module = mpelu.MPELU(1, alpha=1e5)
    with torch.no_grad():
        module.beta.fill_(-1.0)
    y = torch.tensor([[-2.0], [-1.0]])
    expected = described(module).apply(y.double())
    torch.testing.assert_close(module(y).double(), expected, rtol=1e-5, atol=0)


def test_kinks_of_srelu_are_its_thresholds() -> None:
    module = SReLU(2)
    with torch.no_grad():
        module.left_threshold.copy_(torch.tensor([-0.31, -2.0]))
        module.right_threshold.copy_(torch.tensor([0.77, 1.3]))
        module.right_slope.copy_(torch.tensor([3.0, -1.0]))
    found = described(module).moments(0.2, 1.7)
    module.double()

    def at(channel: int, y: float) -> float:
        with torch.no_grad():
            return float(module(torch.full((1, 2), y, dtype=torch.float64))[0, channel])

    for channel, kinks in enumerate(((-0.31, 0.77), (-2.0, 1.3))):
        for power in (1, 2):
            function = partial(powered, partial(at, channel), power)
            exact = expectation(function, 0.2, 1.7, kinks)
            value = fit(found[power - 1], 2)[channel].item()
            assert value == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3, 3)])
def test_pelu_gradients(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = PELU(4, a=0.7, b=1.8).double()
    y = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def call(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, {"a": a, "b": b}, y)
        return result

    assert torch.autograd.gradcheck(call, (y, module.a, module.b))
    zero = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(module(zero).sum(), zero)
    torch.testing.assert_close(slope, torch.full_like(slope, 0.7 / 1.8), check_dtype=False)
    assert module(torch.full((1, 4), 1e300, dtype=torch.float64)).isfinite().all()


def test_pelu_holds_its_parameters_above_the_bound_and_lets_them_return() -> None:
    module = PELU(1)
    with torch.no_grad():
        module.b.fill_(-3.0)
    y = torch.tensor([[-1.0], [2.0]])
    expected = torch.tensor([[math.expm1(-10)], [20.0]])
    torch.testing.assert_close(module(y), expected)
    module(y).sum().backward()
    assert module.b.grad is not None
    assert module.b.grad.item() != 0
    with pytest.raises(ValueError, match=r"b .*got 0"):
        PELU(1, b=0.0)


@pytest.mark.parametrize("name", ["srelu", "pelu", "mpelu"])
def test_channels_in_another_dimension(name: str) -> None:
    torch.manual_seed(0)
    first, last = TABLE[name].make(5), TABLE[name].make(5, dim=-1)
    with torch.no_grad():
        for one, other in zip(first.parameters(), last.parameters(), strict=True):
            one.uniform_(0.2, 2.0)
            other.copy_(one)
    y = torch.randn(2, 5, 7)
    torch.testing.assert_close(last(y.transpose(1, 2)).transpose(1, 2), first(y))


def test_options() -> None:
    assert {name: list(record.options) for name, record in TABLE.items() if record.options} == {
        "leaky_relu": ["alpha"], "prelu": ["alpha"], "elu": ["alpha"], "celu": ["alpha"],
        "srelu": ["alpha", "dim"], "pelu": ["dim"],
        "mpelu": ["alpha", "beta", "coordinates", "dim"],
    }  # fmt: skip
    with pytest.raises(ValueError, match="coordinates: expected 'paper' or 'slope', got 'other'"):
        TABLE["mpelu"].make(3, coordinates="other")
    with pytest.raises(ValueError, match=r"alpha: gelu takes no alpha, got 0\.5"):
        TABLE["gelu"].make(3, alpha=0.5)
    with pytest.raises(ValueError, match="dim: expected 1, the channel dimension of prelu"):
        TABLE["prelu"].make(3, dim=-1)
    assert isinstance(TABLE["gelu"].make(3, dim=-1), nn.GELU)


def test_labels_and_colors_are_distinct() -> None:
    assert len({record.label for record in TABLE.values()}) == len(TABLE)
    assert list(COLORS) == list(TABLE)
    assert len(set(COLORS.values())) == len(TABLE)


def test_the_table_is_read_without_torch() -> None:
    code = (
        "import sys, mpelu.activations as a; a.TABLE['mpelu'].label; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_modules_are_found() -> None:
    for name, record in TABLE.items():
        found = find_activation(record.make(2))
        assert found is (None if name == "identity" else record)
    assert find_activation(nn.Linear(2, 2)) is None
    assert find_activation(nn.Sequential(nn.ReLU())) is None


def test_a_class_that_inherits_is_found_and_described_by_what_it_does() -> None:
    class Steeper(mpelu.MPELU):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.extra = nn.Parameter(torch.full((channels, 1, 1), 3.0))

        def forward(self, input: Tensor) -> Tensor:
            return self.extra * super().forward(input)

    module = Steeper(2)
    assert find_activation(module) is TABLE["mpelu"]
    names = [each.name for each in activations.learnable_parameters(module)]
    assert names == ["alpha", "beta", "extra"]
    expected = exponential(1.0, 1.0, 3.0).moments()[1]
    assert described(module).moments()[1] == pytest.approx(expected, rel=1e-6)


def test_what_has_no_values_or_is_not_elementwise_is_not_described() -> None:
    with torch.device("meta"):
        assert describe(mpelu.MPELU(3)) is None
    for module in (nn.Linear(4, 4), nn.Softmax(1), nn.BatchNorm2d(4), nn.MaxPool2d(2)):
        assert describe(module) is None


def test_describing_leaves_module_and_random_state() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Tanh()).train()
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    state = torch.get_rng_state()
    assert described(module).moments()[1] == pytest.approx(0.3943, abs=1e-4)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert calls == []


# Activations of one's own


class Bend(nn.Module):
    """A learnable mixture of the identity and tanh, whose slopes beside zero are 1 and gain."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, input: Tensor) -> Tensor:
        return torch.where(input > 0, input, self.gain * torch.tanh(input))


@pytest.fixture
def bend() -> activations.ActivationRecord:
    return mpelu.register_activation("bend", Bend, label="Bend", parameters={"gain": "scale"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("relu", Bend), "the name 'relu' is taken; choose another"),
        (("a:b", Bend), "got 'a:b'"),
        (("mine", 3), "mine .*got 3"),
        (("mine", lambda: nn.ReLU()), r"mine\(4\), for 4 channels, failed: "),
        (("mine", lambda channels: channels), "return a torch.nn.Module, got 4"),
    ],
)
def test_registration_refuses(arguments: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^register_activation: .*{message}") as error:
        mpelu.register_activation(*arguments)
    assert "\n" not in str(error.value)
    assert "mine" not in TABLE


def test_registration_refuses_wrong_descriptions() -> None:
    with pytest.raises(ValueError, match="Bend has no parameter 'beta'"):
        mpelu.register_activation("mine", Bend, parameters={"beta": "rate"})
    with pytest.raises(ValueError, match=r"expected one of scale, rate, .*; got kind 'height'"):
        mpelu.register_activation("mine", Bend, parameters={"gain": "height"})
    assert "mine" not in TABLE
    assert find_activation(Bend(2)) is None


def test_options_of_a_registered_activation() -> None:
    def build(channels: int, alpha: float = 0.3) -> nn.Module:
        return nn.Hardtanh(-alpha, alpha)

    record = mpelu.register_activation("clip", build)
    assert record.options == {"alpha": 0.3}
    network = models.create("resnet-8", activation="clip", alpha=0.7)
    clips = [each for each in network.modules() if isinstance(each, nn.Hardtanh)]
    assert {each.max_val for each in clips} == {0.7}
    with pytest.raises(ValueError, match="beta: clip takes no beta"):
        models.create("resnet-8", activation="clip", beta=0.7)


def test_a_registered_activation_everywhere(
    bend: activations.ActivationRecord, tmp_path: Path
) -> None:
    config = Config(
        model="resnet-8", model_options={"width": 4}, activation="bend", epochs=2, batch_size=64,
        train_limit=256, test_limit=64, threads=1, init="exact",
    )  # fmt: skip
    run = tmp_path / "run"
    train(config, run)
    last = checkpoint.read_snapshot(list(folder.find_snapshots(run).values())[-1])
    assert last.tensors
    assert set(last.labels.values()) == {"gain of Bend"}
    assert all((values != 0.5).any() for values in last.tensors.values())  # it learned
    assert learned_parameters(run).final.keys() == last.tensors.keys()

    inspect_run(run, images=32, out=run)
    found = json.loads((run / "inspect.json").read_text())
    assert found["activations"]["labels"] == {"gain": "gain of Bend"}
    kinds = {layer["type"]: layer["kind"] for layer in found["layers"]}
    assert kinds["Bend"] == "activation"
    assert all(layer["gain"] for layer in found["activations"]["layers"])

    (shown,) = read_run(run)["learned"]
    assert (shown["name"], shown["label"], shown["epochs"]) == ("gain", "gain of Bend", [0, 1, 2])

    model = models.create("resnet-8", activation="bend")
    rest, own = mpelu.param_groups(model, lr=0.1, weight_decay=1.0, decay_mult=0.5)
    gains = {id(each.gain) for each in model.modules() if isinstance(each, Bend)}
    assert {id(each) for each in own["params"]} == gains
    assert (own["lr"], own["weight_decay"]) == (0.5, 0.5)
    assert gains.isdisjoint({id(each) for each in rest["params"]})


def test_the_report_shows_it_where_it_is_not_registered(tmp_path: Path) -> None:
    record = mpelu.register_activation("bend", Bend)
    (tmp_path / folder.SNAPSHOTS).mkdir()
    checkpoint.write_snapshot(tmp_path, 0, nn.Sequential(Bend(2), mpelu.MPELU(2), Bend(3)))
    del TABLE["bend"]
    del activations.table.BY_CLASS[record.module]
    labels = {each["label"]: each["layers"]["names"] for each in read_run(tmp_path)["learned"]}
    assert labels == {"gain of Bend": ["0", "2"], "α of MPELU": ["1"], "β of MPELU": ["1"]}


def test_two_activations_with_a_parameter_of_the_same_name(tmp_path: Path) -> None:
    class Alpha(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.alpha = nn.Parameter(torch.full((channels,), 7.0))

        def forward(self, input: Tensor) -> Tensor:
            return input.relu() * self.alpha[0]

    mpelu.register_activation("alpha", Alpha)
    (tmp_path / folder.SNAPSHOTS).mkdir()
    checkpoint.write_snapshot(tmp_path, 0, nn.Sequential(mpelu.MPELU(2), Alpha(2)))
    kinds = {each["name"]: each for each in read_run(tmp_path)["learned"]}
    assert len(kinds) == 3
    assert [each["label"] for each in kinds.values()] == [
        "α of MPELU", "β of MPELU", "alpha of Alpha",
    ]  # fmt: skip
    assert kinds["alpha"]["layers"]["last"] == [[1, 1, 1]]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "outside_acts.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Swish(nn.Module):\n"
        "    def __init__(self, channels):\n"
        "        super().__init__()\n"
        "        self.rate = nn.Parameter(torch.rand(channels))\n"
        "    def forward(self, input):\n"
        "        rate = self.rate.view(-1, *[1] * (input.dim() - 2))\n"
        "        return input * torch.sigmoid(rate * input)\n"
        "not_callable = 3\n"
        "def number(channels):\n    return channels\n"
        "def nothing():\n    return nn.ReLU()\n"
        "def elu(channels, alpha=1.0):\n    return nn.ELU(alpha)\n"
    )
    (tmp_path / "broken_acts.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("outside_acts", None)


@pytest.mark.usefixtures("outside")
def test_a_reference() -> None:
    assert activations.is_reference("outside_acts:Swish")
    assert "outside_acts" not in sys.modules
    state = torch.get_rng_state()
    record = resolve("outside_acts:Swish")
    assert torch.equal(torch.get_rng_state(), state)
    assert (record.name, record.label) == ("outside_acts:Swish", "Swish")
    assert described(record.sample()).at_zero() == pytest.approx((0, 0.5, 0.5))
    network = models.create("plain-15", activation="outside_acts:Swish", input_size=19, width=8)
    found = [each.label for each in activations.learnable_parameters(network)]
    assert found == ["rate of Swish"] * 14


@pytest.mark.usefixtures("outside")
def test_options_of_a_reference_reach_the_modules() -> None:
    network = models.create("resnet-8", activation="outside_acts:elu", alpha=0.5)
    assert {each.alpha for each in network.modules() if isinstance(each, nn.ELU)} == {0.5}


def test_classes_of_other_layers_are_not_taken_for_activations() -> None:
    mpelu.register_activation("mixed", lambda channels: nn.Linear(channels, channels))
    mpelu.register_activation("chain", lambda channels: nn.Sequential(nn.Tanh(), nn.PReLU()))
    model = nn.Sequential(nn.Linear(2, 2), nn.PReLU())
    assert [each.name for each in activations.learnable_parameters(model)] == ["1.weight"]


def test_a_module_handed_out_twice_is_refused() -> None:
    shared = nn.PReLU()
    with pytest.raises(ValueError, match="expected a new module each time"):
        models.create("resnet-8", activation=lambda channels: shared)


@pytest.mark.parametrize("name", ["relu", "a.b", "a:", ":b", "a:b:c", "a b:c", "../a:b", "a:1", ""])
def test_what_is_no_reference(name: str) -> None:
    assert not activations.is_reference(name)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rellu", "unknown activation 'rellu'; did you mean 'relu'"),
        ("no_such_module_xyz:f", "no_such_module_xyz can't be imported: No module named"),
        ("broken_acts:f", "broken_acts can't be imported: two lines"),
        ("outside_acts:missing", "outside_acts has no missing"),
        ("outside_acts:not_callable", "outside_acts:not_callable .*got 3"),
        ("outside_acts:number", "outside_acts:number .*got 4"),
        ("outside_acts:nothing", r"outside_acts:nothing\(4\), for 4 channels, failed: nothing\(\)"),
    ],
)
def test_references_that_fail_do_so_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        resolve(name)
    assert "\n" not in str(error.value)


# Weights


def first_weights(activation: Any, **options: Any) -> Tensor:
    torch.manual_seed(3)
    network = models.create("plain-15", activation=activation, input_size=19, width=8, **options)
    weights = [each.weight.detach() for each in network.modules() if isinstance(each, nn.Conv2d)]
    return torch.cat([each.flatten() for each in weights])


@pytest.mark.usefixtures("outside")
def test_a_callable_is_initialized_by_its_own_slope() -> None:
    assert torch.equal(first_weights(lambda channels: nn.ELU()), first_weights("elu"))
    assert torch.equal(first_weights("outside_acts:elu"), first_weights("elu"))
    half = first_weights("elu", alpha=0.5)
    assert torch.equal(first_weights("outside_acts:elu", alpha=0.5), half)
    assert not torch.equal(first_weights("elu"), first_weights("relu"))


@pytest.mark.parametrize("activation", ["gelu", "silu", "mish", "selu", lambda _: nn.Softplus()])
def test_other_functions_are_initialized_by_their_second_moment(activation: Any) -> None:
    module = activation(1) if callable(activation) else TABLE[activation].make(1)
    second = average(described(module).moments()[1])
    ratio = first_weights(activation) / first_weights("relu")
    torch.testing.assert_close(ratio, torch.full_like(ratio, (0.5 / second) ** 0.5))


def test_what_is_not_elementwise_is_initialized_as_relu_is() -> None:
    weights = first_weights(lambda channels: nn.Softmax(1))
    assert torch.equal(weights, first_weights("relu"))


# The house


def test_page() -> None:
    page = Path(__file__).parents[3] / "docs" / "activations.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
    text = page.read_text(encoding="utf-8")
    for name, record in TABLE.items():
        if name != "swish":
            assert f"| `{name}` | {record.label}" in text


def test_the_command_line_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"activation: {listed(TABLE)}, or package.module:factory" in said


def test_no_lists_of_activations_elsewhere() -> None:
    names = {record.module.rpartition(":")[2] for record in TABLE.values() if record.module}
    source = Path(mpelu.__file__).parent
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0]
        if room == "activations":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                tested = {
                    part.id if isinstance(part, ast.Name) else part.attr
                    for part in ast.walk(node.args[1])
                    if isinstance(part, (ast.Name, ast.Attribute))
                }
                # MPELU by itself is no list: what sets alpha and beta asks for it.
                assert not tested & names or tested == {"MPELU"}, f"{path}:{node.lineno}"
