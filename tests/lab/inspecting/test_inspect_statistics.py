"""Statistics of activations by hooks, against closed forms and against all data at once."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch import nn

import mpelu
from mpelu.activations.parametric import SReLU
from mpelu.diagnosis import diagnose
from mpelu.lab.errors import UserError
from mpelu.lab.inspecting import LayerStatistics, activation_statistics, observing


def state(model: nn.Module) -> list[bytes]:
    return [value.detach().numpy().tobytes() for value in model.state_dict().values()]


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def only(model: nn.Module, batches: Any, **options: Any) -> LayerStatistics:
    (row,) = activation_statistics(model, batches, **options)
    return row


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        mpelu.MPELU(8),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 9, 5),
    )


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.25, 1.0), (2.0, 0.5)])
def test_gaussian_inputs_give_the_moments_in_closed_form(alpha: float, beta: float) -> None:
    torch.manual_seed(1)
    row = only(mpelu.MPELU(1, alpha, beta), torch.randn(1_000_000, 1))
    mean, second = (each.item() for each in mpelu.moments(alpha, beta))
    assert row.mean == pytest.approx(mean, abs=4e-3)
    assert row.variance == pytest.approx(second - mean**2, rel=1e-2)
    assert row.signal == pytest.approx(row.variance, rel=1e-4)  # samples of one value
    assert row.positive == pytest.approx(0.5, abs=2e-3)
    assert (row.units, row.dead, row.saturated, row.linear, row.never_positive) == (1, 0, 0, 0, 0)


def test_units_by_hand() -> None:
    # One unit is mostly where the slope is below 0.01, one sometimes, one on a straight part.
    values = torch.tensor(
        [[-5.0, -5.0, 1.0], [-4.7, -4.5, 2.0], [-4.5, -1.0, 3.0], [1.0, 0.5, 4.0]]
    )
    elu = only(nn.ELU(), values)  # e^-4.605 = 0.01
    assert (elu.units, elu.dead, elu.positive) == (3, 0, 0.5)
    assert (elu.saturated, elu.linear) == pytest.approx((1 / 3, 1 / 3))
    assert only(nn.ReLU(), values).saturated is None  # flat on one side by design
    assert only(nn.LeakyReLU(0.1), values).saturated == 0


def test_units_are_channels_wherever_they_are() -> None:
    module = mpelu.MPELU(2, alpha=[1.0, 100.0])
    assert only(module, torch.full((3, 2, 4, 4), -5.0)).saturated == 0.5
    tokens = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    assert activation_statistics(tokens, torch.randn(4, 7, 6))[1].units == 5


@pytest.mark.parametrize("module", [nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.Softplus(), nn.SiLU()])
def test_slopes_of_other_activations_come_from_autograd(module: nn.Module) -> None:
    values = torch.linspace(-9, 9, 501).reshape(3, -1)
    leaf = values.clone().requires_grad_()
    module(leaf).sum().backward()
    row = only(module, values)
    assert row.kind == "activation"
    assert leaf.grad is not None
    flat = (leaf.grad.abs() < 0.01).double().mean(0) >= 0.5
    assert row.saturated == flat.double().mean().item()


def test_activations_of_the_user_are_recognized_by_behavior() -> None:
    class Square(nn.Module):
        calls = 0

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return input**2

    module = Square()
    row = only(module, torch.tensor([[0.001], [1.0], [-1.0]]))
    assert (row.kind, row.positive) == ("activation", 2 / 3)
    assert (row.dead, row.saturated, row.linear) == (0, None, None)
    assert module.calls == 0  # left as it was
    assert only(SReLU(4), torch.randn(8, 4, 2, 2)).kind == "activation"


def test_diagnosis_and_inspection_measure_the_same() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 5),
    )
    with torch.no_grad():
        model[0].weight[:4].mul_(100)
        model[2].bias[:3] = -10
    data = torch.randn(32, 3, 8, 8)
    found = {row.name: row for row in diagnose(model, data).rows}
    for row in activation_statistics(model, data.split([20, 5, 7])):
        if row.kind == "other":
            continue
        same = found[row.name]
        assert row.mean == pytest.approx(same.mean, rel=1e-9)
        assert row.variance == pytest.approx(same.variance, rel=1e-9)
        assert row.signal == pytest.approx(same.signal, rel=1e-9)
        assert (row.units, row.dead) == (same.units, same.dead)
        assert (row.saturated, row.linear) == (same.saturated, same.linear)
    assert found["3"].dead == 3 / 8


def test_the_signal_is_unknown_where_samples_are() -> None:
    assert only(nn.Flatten(0, 1), torch.randn(4, 3)).signal is None
    assert only(nn.ReLU(), torch.randn(1, 3)).signal is None
    assert only(nn.ReLU(), [torch.randn(2, 3, 4, 4), torch.randn(2, 3, 5, 5)]).signal is None


def test_infinite_masks_are_accepted() -> None:
    class Masked(nn.Module):
        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.softmax(values + mask, 1)

    mask = torch.tensor([[0.0, -math.inf]])
    assert only(Masked(), [(torch.ones(3, 2), mask)]).mean == 0.5


def test_dead_units() -> None:
    inputs = torch.tensor([[-1.0, -1.0, 2.0], [-3.0, -3.0, -1.0]])
    inputs[:, 1] = -200.0
    relu = only(nn.ReLU(), inputs)
    assert (relu.dead, relu.never_positive) == pytest.approx((2 / 3, 2 / 3))
    elu = only(nn.ELU(), inputs)
    assert elu.dead == pytest.approx(1 / 3)  # -1 throughout, with slope zero in float32
    assert elu.never_positive == pytest.approx(2 / 3)
    # A unit that comes alive in a later batch is not dead.
    assert only(nn.ReLU(), [inputs[1:], torch.ones(1, 3)]).dead == 0


def test_kinds_in_order(network: nn.Module) -> None:
    rows = activation_statistics(network, torch.randn(4, 3, 8, 8))
    kinds = ["conv", "norm", "activation", "pool", "dropout", "other", "linear"]
    assert [row.kind for row in rows] == kinds
    assert [row.name for row in rows] == [str(index) for index in range(7)]
    assert rows[0].positive is rows[0].linear is rows[0].dead is rows[0].saturated is None
    assert rows[0].count == 4 * 8 * 6 * 6


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 1e3, -1e6]),
    chunk=st.sampled_from([1, 7, 2**21]),
    seed=st.integers(0, 1000),
)
def test_any_split_into_batches_gives_the_same(
    sizes: list[int], offset: float, chunk: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(sum(sizes), 3, 2, generator=generator, dtype=torch.float64) + offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observing, "_CHUNK", chunk)
        split = only(nn.ELU(), data.split(sizes))
    output = nn.functional.elu(data)
    assert split.mean == pytest.approx(output.mean().item(), rel=1e-12, abs=1e-13)
    assert split.variance == pytest.approx(output.var(correction=0).item(), rel=1e-9)
    assert split.count == data.numel()
    assert split.positive == (data > 0).double().mean().item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float64(dtype: torch.dtype) -> None:
    values = (torch.rand(100_000, 1) + 200).to(dtype)
    row = only(nn.ReLU(), values.split(999))
    assert row.mean == pytest.approx(values.double().mean().item(), rel=1e-13)
    assert row.variance == pytest.approx(values.double().var(correction=0).item(), rel=1e-9)


def test_in_place_layers_are_seen_before_and_after() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ELU(inplace=True), mpelu.MPELU(6, inplace=True))
    plain = nn.Sequential(model[0], nn.ELU(), mpelu.MPELU(6))
    data = torch.randn(32, 6)
    assert activation_statistics(model, data) == activation_statistics(plain, data)


def test_a_model_that_starts_in_place_leaves_the_batch_alone() -> None:
    data = torch.randn(8, 2)
    kept = data.clone()
    only(nn.ReLU(inplace=True), data)
    assert torch.equal(data, kept)


def test_every_call_of_a_shared_module_has_its_row() -> None:
    act = nn.ReLU()
    model = nn.Sequential(act, nn.Linear(4, 4), act)
    data = torch.randn(64, 4)
    rows = activation_statistics(model, data.split(10))
    assert [(row.name, row.call) for row in rows] == [("0", 1), ("1", 1), ("0", 2)]
    assert rows[0].mean == pytest.approx(data.relu().mean().item(), rel=1e-5)
    assert rows[2].mean == pytest.approx(model(data).mean().item(), rel=1e-5)


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_the_model_is_left_as_it_was(network: nn.Sequential, mode: str) -> None:
    network.train(mode != "eval")
    first, last = network[0], network[6]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(last, nn.Linear)
    if mode == "mixed":
        network[1].eval()
    batches = [torch.randn(4, 3, 8, 8) for _ in range(2)]
    first.weight.grad = torch.ones_like(first.weight)
    modes = [module.training for module in network.modules()]
    before, random = state(network), torch.get_rng_state()
    activation_statistics(network, batches)
    assert state(network) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in network.modules()] == modes
    assert first.weight.grad.unique().tolist() == [1]
    assert last.weight.grad is None
    assert hooks(network) == 0


def test_train_mode_uses_the_batch_and_drops(network: nn.Module) -> None:
    data = 5 * torch.randn(16, 3, 8, 8) + 3
    trained = activation_statistics(network.train(), data)
    assert trained[1].variance == pytest.approx(1, rel=1e-3)
    assert activation_statistics(network.eval(), data)[1].variance > 2


def test_an_error_in_the_model_leaves_nothing_behind(network: nn.Module) -> None:
    network.train()
    before, random = state(network), torch.get_rng_state()
    with pytest.raises(RuntimeError):
        activation_statistics(network, [torch.ones(2, 3, 8, 8), torch.ones(2, 3, 9, 12)])
    assert state(network) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert hooks(network) == 0


def test_outputs_other_than_real_tensors_are_skipped() -> None:
    class Two(nn.Module):
        def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return input, input

    class Whole(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return pair[0].long()

    rows = activation_statistics(nn.Sequential(nn.ReLU(), Two(), Whole()), torch.randn(3, 3))
    assert [row.type for row in rows] == ["ReLU"]


def test_keyword_and_positional_batches() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.act(input=a + b))

    one = torch.ones(2, 2)
    for batch in [(one, one), {"a": one, "b": one}]:
        row = only(Sum(), [batch])
        assert (row.mean, row.positive) == (2.0, 1.0)


def test_chosen_layers_may_have_submodules(network: nn.Module) -> None:
    model = nn.Sequential(network)
    rows = activation_statistics(model, torch.randn(2, 3, 8, 8), layers=["0.2", "0"])
    assert [(row.name, row.kind) for row in rows] == [("0", "block"), ("0.2", "activation")]
    with refusal("'0.22'", "'0.2'", field="layers"):
        activation_statistics(model, torch.randn(2, 3, 8, 8), layers=["0.22"])


def test_compiled_models_are_observed(network: nn.Module) -> None:
    data = torch.randn(4, 3, 8, 8)
    network.eval()
    compiled = torch.compile(copy.deepcopy(network))
    assert isinstance(compiled, nn.Module)
    assert activation_statistics(compiled, data) == activation_statistics(network, data)


def test_overflow_is_reported_as_such() -> None:
    row = only(nn.ReLU(), torch.full((2, 2), 1e38), layers=None)
    assert math.isfinite(row.variance)  # in float64 it does not overflow
    linear = nn.Linear(2, 2, bias=False)
    nn.init.constant_(linear.weight, 1e38)
    rows = activation_statistics(nn.Sequential(linear, nn.ReLU()), torch.full((4, 2), 1e10))
    assert math.isinf(rows[0].mean) or math.isnan(rows[0].mean)
    assert rows[1].positive == 1


@pytest.mark.parametrize(
    ("batches", "came"),
    [
        ([], "none"),
        (torch.empty(0, 3), "[0, 3]"),
        ([torch.empty(2, 3, device="meta")], "meta"),
        ([torch.tensor([[math.nan]])], "NaN"),
        ([("a", 1)], "tuple"),
    ],
)
def test_bad_batches(batches: Any, came: str) -> None:
    with refusal("batch", "got", came, kind=ValueError):
        activation_statistics(nn.ReLU(), batches)


def test_bad_models() -> None:
    with refusal("torch.nn.Module", "builtin_function", kind=TypeError):
        activation_statistics(torch.relu, torch.ones(1))  # type: ignore[arg-type]
    with refusal("0.weight", "meta", kind=ValueError):
        activation_statistics(nn.Sequential(nn.Linear(2, 2, device="meta")), torch.ones(1, 2))
    with refusal("weight", "lazy", kind=ValueError):
        activation_statistics(nn.LazyLinear(2), torch.ones(1, 2))


def test_layers_that_return_another_output_unchanged_have_no_row_unless_named() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.around, self.after = nn.Linear(2, 2), nn.Identity(), nn.Sequential()

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.after(self.conv(input) + self.around(input)))

    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), Residual(), Residual()).eval()
    data = torch.ones(2, 2)
    names = [row.name for row in activation_statistics(model, data)]
    # `after` is where the sum, no layer's output, can be seen.
    assert names == ["0", "2.conv", "2.after", "3.conv", "3.after"]
    (row,) = activation_statistics(model, data, layers=["2.around"])
    assert row.name == "2.around"
    assert "1" in [row.name for row in activation_statistics(model.train(), data)]


def test_a_model_without_modules_in_it_has_no_layer_to_name() -> None:
    with pytest.raises(UserError, match="unknown module '1'; there is none"):
        activation_statistics(nn.ReLU(), torch.randn(4, 3), layers=["1"])
