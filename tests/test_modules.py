"""The module: parameters, their start, the bound on beta, special cases."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mpelu import MPELU
from mpelu.modules import MIN_BETA


def test_defaults_follow_prelu():
    shared, wise = MPELU(), MPELU(8, alpha=0.25, beta=2.0)
    assert shared.alpha.shape == shared.beta.shape == (1,)
    assert wise.alpha.tolist() == [0.25] * 8
    assert wise.beta.tolist() == [2.0] * 8
    assert [name for name, _ in wise.named_parameters()] == ["alpha", "beta"]
    assert repr(wise) == "MPELU(num_parameters=8)"
    assert repr(MPELU(inplace=True)) == "MPELU(num_parameters=1, inplace=True)"


def test_initial_values_for_each_channel_and_reset():
    alpha = torch.tensor([0.5, 1.0, 2.0])
    module = MPELU(3, alpha=alpha, beta=[1.0, 0.5, 0.1], dtype=torch.float64)
    alpha.zero_()  # the module has its own copy
    assert module.alpha.dtype == torch.float64
    with torch.no_grad():
        module.alpha.fill_(7)
        module.beta.fill_(7)
    module.reset_parameters()
    assert_close(module.alpha.detach(), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    assert_close(module.beta.detach(), torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_parameters": 0}, "expected num_parameters >= 1, got 0"),
        ({"num_parameters": 2.5}, "expected num_parameters >= 1, got 2.5"),
        ({"beta": 0.0}, "expected beta >= 1e-06, got 0"),
        ({"beta": -1.0}, "expected beta >= 1e-06, got -1"),
        ({"alpha": float("nan")}, "expected finite alpha, got nan"),
        ({"beta": float("inf")}, "expected finite beta, got inf"),
        ({"num_parameters": 3, "alpha": torch.ones(2)}, "a number or 3 values .* got 2"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MPELU(**arguments)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=3.0, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.5),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.5, weight_decay=0.5),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.5),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_beta_stays_positive_and_comes_back(optimizer, compiled):
    module = copy.deepcopy(MPELU(4, alpha=1.0))
    run = torch.compile(module, backend="aot_eager") if compiled else module
    beta = dict(module.named_parameters())["beta"]
    x = -torch.rand(64, 4, generator=torch.Generator().manual_seed(0))

    def step(update, direction):
        """Lower or raise beta: f falls as beta grows."""
        module.zero_grad()
        (direction * run(x)).mean(0).sum().backward()
        update.step()
        with torch.no_grad():
            module.alpha.fill_(1.0)  # only beta is looked at

    update = OPTIMIZERS[optimizer](module.parameters())
    for _ in range(20):
        step(update, -1)
        assert (beta > 0).all()
    assert (beta < 0.01).all()
    update = OPTIMIZERS[optimizer](module.parameters())  # without the old momentum
    for _ in range(5):
        step(update, 1)
    assert (beta > 0.1).all()


def test_only_what_the_optimizer_steps_is_touched():
    """Else a graph of another network, still to be gone back through, would be spoilt."""
    one, other = MPELU(), MPELU()
    loss = other(torch.randn(3)).sum()
    (one.beta * 3).backward()
    torch.optim.SGD(one.parameters(), lr=1.0).step()
    assert one.beta.item() == pytest.approx(MIN_BETA)
    loss.backward()


def test_beta_changed_by_hand_is_put_back_at_its_next_use():
    module = MPELU(2)
    with torch.no_grad():
        module.beta.fill_(-5)
    y = module(torch.full((1, 2), -3.0))
    assert_close(y.detach(), torch.full((1, 2), -3.0 * MIN_BETA))
    assert (module.beta == MIN_BETA).all()
    y.sum().backward()
    assert_close(module.beta.grad, torch.full((2,), -3.0))


def test_the_bound_holds_under_compile_and_transforms_too():
    module = MPELU(2)
    x = torch.full((1, 2), -3.0)
    values = {"alpha": torch.ones(2), "beta": torch.full((2,), -5.0)}
    gradient = torch.func.grad(lambda p: torch.func.functional_call(module, p, (x,)).sum())(values)
    assert_close(gradient["beta"], torch.full((2,), -3.0))
    y = torch.func.functional_call(module, values, (x,))
    assert_close(y, torch.full((1, 2), -3.0 * MIN_BETA))
    with torch.no_grad():
        module.beta.fill_(-5)
    y = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    assert_close(y.detach(), torch.full((1, 2), -3.0 * MIN_BETA))
    y.sum().backward()
    assert_close(module.beta.grad, torch.full((2,), -3.0))


def test_a_beta_in_memory_that_cannot_be_written():
    module = MPELU(2)
    module.load_state_dict({"alpha": torch.ones(2), "beta": torch.ones(()).expand(2)}, assign=True)
    assert module(torch.randn(3, 2)).shape == (3, 2)


def test_one_module_in_two_places_of_a_graph():
    module = MPELU()
    with torch.no_grad():
        module.beta.fill_(-1)
    x = torch.randn(5, requires_grad=True)
    module(module(x) - 1).sum().backward()  # no "modified by an inplace operation"
    assert x.grad.isfinite().all()


GRID = torch.linspace(-5, 5, 1001)


def test_relu_is_exact():
    assert torch.equal(MPELU.relu()(GRID), nn.ReLU()(GRID))
    x = GRID.clone().requires_grad_()
    MPELU.relu()(x).sum().backward()
    assert torch.equal(x.grad, (GRID > 0).float())


@pytest.mark.parametrize("alpha", [1.0, 0.3, 2.0])
def test_elu_is_exact(alpha):
    assert_close(MPELU.elu(alpha=alpha)(GRID), nn.ELU(alpha)(GRID), rtol=1e-6, atol=0)


@pytest.mark.parametrize("slope", [0.25, 0.01, 1.0])
@pytest.mark.parametrize("beta", [0.01, 1e-4])
def test_prelu_is_within_the_stated_error(slope, beta):
    error = (MPELU.prelu(slope=slope, beta=beta)(GRID) - nn.LeakyReLU(slope)(GRID)).abs()
    bound = slope * beta * GRID**2 / 2
    assert (error <= bound + 1e-6).all()
    assert error.max() > 0.9 * bound.max() - 1e-6  # the bound says something


def test_numbers_in_the_docstrings():
    def off(module, y, target):
        return abs(module(torch.tensor([y])).item() - target)

    assert off(MPELU.prelu(), -1.0, -0.25) == pytest.approx(0.00125, rel=0.01)
    assert off(MPELU.prelu(), -5.0, -1.25) == pytest.approx(0.031, rel=0.02)
    paper = MPELU(alpha=25.6302, beta=0.01)
    negative = GRID[GRID < 0]
    assert off(paper, -5.0, -1.25) < 1e-5
    assert (paper(negative) - 0.25 * negative).abs().max().item() == pytest.approx(0.0078, rel=0.01)
    identity = MPELU.identity()
    error = (identity(GRID) - GRID).abs()
    assert (error <= torch.where(GRID < 0, 0.02 * GRID.abs() + 0.0049 * GRID**2, 0) + 1e-6).all()
    assert off(identity, -1.0, -1.0) == pytest.approx(0.025, rel=0.01)
    assert off(identity, -5.0, -5.0) == pytest.approx(0.22, rel=0.01)


def test_copies_pickle_and_state_dict():
    module = MPELU(3, alpha=0.5)
    x = torch.randn(2, 3)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), module(x))
        assert other.alpha is not module.alpha
        other.reset_parameters()
    fresh = MPELU(3)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(x), module(x))


def test_meta_device():
    with torch.device("meta"):
        module = MPELU(3, alpha=0.5)
    assert module(torch.empty(2, 3, device="meta")).shape == (2, 3)
    module.to_empty(device="cpu").reset_parameters()
    assert module.alpha.tolist() == [0.5] * 3


def test_module_to_half_precision(backend):
    module = MPELU(3).bfloat16()
    y = module(torch.randn(2, 3, 4).bfloat16())
    y.float().sum().backward()
    assert y.dtype == module.alpha.grad.dtype == torch.bfloat16
