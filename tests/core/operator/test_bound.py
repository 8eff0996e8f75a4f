"""beta below its bound: what is calculated, what is learned, and that nothing else happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.testing._internal.common_optimizers import optim_db
from ways import Run

import mpelu
from mpelu import MPELU
from mpelu.functional import MIN_BETA

# LBFGS takes a closure, SparseAdam sparse gradients, and Muon matrices alone.
OPTIMIZERS = [
    (info.optim_cls, options)
    for info in optim_db
    if info.optim_cls.__name__ not in ("LBFGS", "SparseAdam", "Muon")  # type: ignore[attr-defined]
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True})
    if not options.get("fused") or "cpu" in getattr(info, "supports_fused_on", ())
]
FAST = {"Adadelta": 100.0, "Adafactor": 0.1, "Rprop": 0.01}


@pytest.mark.parametrize("value", [-5.0, 0.0, 1e-7])
def test_it_is_calculated_with_the_bound_and_stays_as_it_is(run: Run, value: float) -> None:
    x, a = torch.tensor([[-3.0, 2.0]]), torch.tensor([2.0, 2.0])
    b = torch.full((2,), value)
    assert_close(run(x, a, b), torch.tensor([[-6.0 * MIN_BETA, 2.0]]), rtol=1e-5, atol=0)
    assert b.tolist() == torch.full((2,), value).tolist()
    assert b._version == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("alpha", [2.0, -2.0])
def test_the_gradient_passes_where_it_raises_beta(
    backend: str, dtype: torch.dtype, alpha: float
) -> None:
    x = torch.full((4, 3), -1.0, dtype=dtype)
    a = torch.full((3,), alpha)
    b = torch.tensor([-1.0, MIN_BETA, 1e-7], requires_grad=True)
    for direction in (1.0, -1.0):
        grad = torch.full_like(x, direction)
        (got,) = torch.autograd.grad(mpelu.mpelu(x, a, b), b, grad)
        full = -4.0 * alpha * direction  # alpha y e^(beta y) summed over four elements
        low = full if full < 0 else 0.0
        assert_close(got, torch.tensor([low, full, low]), rtol=1e-5, atol=0)
        (again,) = torch.autograd.grad(mpelu.mpelu(x, a, b), b, grad, create_graph=True)
        assert_close(again, got, rtol=1e-2, atol=0)


def _target_is_reached_from_below(module: MPELU, steps: int, update: Callable[[], object]) -> None:
    x = -torch.rand(64, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        module.zero_grad()
        (module(x) - torch.expm1(x)).square().sum().backward()
        update()
        with torch.no_grad():
            module.alpha.fill_(1.0)  # only beta is looked at


@pytest.mark.parametrize(
    ("optimizer", "options"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_beta_recovers_under_every_optimizer(
    optimizer: Callable[..., torch.optim.Optimizer], options: dict[str, bool]
) -> None:
    module = MPELU(4)
    with torch.no_grad():
        module.beta.fill_(-0.01)
    update = optimizer(module.parameters(), lr=FAST.get(optimizer.__name__, 0.005), **options)
    _target_is_reached_from_below(module, 100, update.step)
    assert (module.beta > 0.05).all()


def test_beta_recovers_under_lbfgs() -> None:
    module = MPELU(4)
    with torch.no_grad():
        module.beta.fill_(-0.01)
    x = -torch.rand(64, 4, generator=torch.Generator().manual_seed(0))
    update = torch.optim.LBFGS([module.beta], line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        update.zero_grad()
        value: torch.Tensor = (module(x) - torch.expm1(x)).square().sum()
        value.backward()
        return value

    for _ in range(5):
        update.step(loss)
    assert_close(module.beta.detach(), torch.ones(4), rtol=1e-3, atol=1e-3)


def test_beta_does_not_sink_further_than_the_step_that_took_it_below() -> None:
    module = MPELU(2, beta=0.01)
    update = torch.optim.SGD([module.beta], lr=0.1)
    x = torch.full((1, 2), -1.0)
    values = []
    for _ in range(5):
        module.zero_grad()
        (-module(x)).sum().backward()  # f falls as beta grows: beta is pushed down
        update.step()
        values.append(module.beta[0].item())
    assert values[0] < 0
    assert values[1:] == values[:1] * 4


@pytest.mark.parametrize(
    ("make", "lowest", "count"),
    [
        (partial(torch.optim.SGD, lr=0.1), -0.026, 1),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), -2.07, 7),
        (partial(torch.optim.Adam, lr=0.1), -0.73, 10),
    ],
    ids=["SGD", "momentum", "Adam"],
)
def test_how_far_optimizers_with_a_memory_take_beta(
    make: Callable[..., torch.optim.Optimizer], lowest: float, count: int
) -> None:
    module = MPELU(beta=0.5)
    update, x = make([module.beta]), torch.tensor([-1.0])

    def step(direction: int) -> float:
        module.zero_grad()
        (direction * module(x)).sum().backward()
        update.step()
        return module.beta.item()

    while step(-1) >= MIN_BETA:
        pass
    assert min(step(-1) for _ in range(20)) == pytest.approx(lowest, abs=0.01)
    assert next(n for n in range(1, 20) if step(1) >= MIN_BETA) == count


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_the_bound_holds_under_compile(backend: str, compiler: str) -> None:
    module = MPELU(2)
    with torch.no_grad():
        module.beta.fill_(-5)
    x = torch.full((1, 2), -3.0)
    y = torch.compile(module, backend=compiler, fullgraph=True)(x)
    assert_close(y.detach(), torch.full((1, 2), -3.0 * MIN_BETA))
    y.sum().backward()
    assert module.beta.grad is not None
    assert_close(module.beta.grad, torch.full((2,), -3.0))


def test_the_bound_holds_under_transforms_where_the_gradient_always_passes() -> None:
    module = MPELU(2)
    x = torch.full((1, 2), -3.0)
    values = {"alpha": torch.ones(2), "beta": torch.full((2,), -5.0)}

    def output(values: dict[str, torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(module, values, (x,))
        return result

    assert_close(output(values), torch.full((1, 2), -3.0 * MIN_BETA))
    for sign in (1.0, -1.0):
        gradient = torch.func.grad(lambda v, sign=sign: sign * output(v).sum())(values)
        assert_close(gradient["beta"], torch.full((2,), -3.0 * sign))


def test_one_module_in_two_places_of_a_graph() -> None:
    module = MPELU()
    with torch.no_grad():
        module.beta.fill_(-1)
    x = torch.randn(5, requires_grad=True)
    module(module(x) - 1).sum().backward()  # no "modified by an inplace operation"
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_state_of_the_version_that_put_beta_back_loads() -> None:
    saved = {"0.alpha": torch.tensor([0.3, 2.0]), "0.beta": torch.tensor([1e-6, 0.7])}
    model = nn.Sequential(MPELU(2))
    model.load_state_dict(saved)
    assert_close(model.state_dict(), saved)


def test_importing_registers_nothing_in_torch_optim() -> None:
    code = """
import torch
from torch.optim import optimizer
hooks = [name for name in vars(optimizer) if name.startswith("_global_optimizer")]
assert hooks
before = {name: dict(getattr(optimizer, name)) for name in hooks}
import mpelu
module = mpelu.MPELU(4)
module(torch.randn(2, 4)).sum().backward()
torch.optim.SGD(module.parameters(), lr=0.1).step()
assert {name: dict(getattr(optimizer, name)) for name in hooks} == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)
