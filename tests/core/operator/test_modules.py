"""The module: parameters, their start, the channel dimension, special cases."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any, SupportsIndex

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import mpelu
from mpelu import MPELU, modules


def test_defaults_follow_prelu() -> None:
    shared, wise = MPELU(), MPELU(8, alpha=0.25, beta=2.0)
    assert shared.alpha.shape == shared.beta.shape == (1,)
    assert wise.alpha.tolist() == [0.25] * 8
    assert wise.beta.tolist() == [2.0] * 8
    assert [name for name, _ in wise.named_parameters()] == ["alpha", "beta"]


def test_repr_shows_the_values() -> None:
    assert repr(MPELU(8, alpha=0.25)) == "MPELU(num_parameters=8, alpha=0.25, beta=1)"
    several = MPELU(2, alpha=[-1.0, 2.5], beta=[0.5, 0.01], dim=-1, inplace=True)
    values = "alpha=-1..2.5, beta=0.01..0.5"
    assert repr(several) == f"MPELU(num_parameters=2, {values}, dim=-1, inplace=True)"
    with torch.device("meta"):
        assert repr(MPELU(2)) == "MPELU(num_parameters=2)"


@pytest.mark.parametrize("count", [np.int64(4), np.int32(4), torch.tensor(4), True])
def test_the_number_of_parameters_may_be_any_integer(count: SupportsIndex) -> None:
    assert MPELU(count).alpha.shape == (int(count),)


def test_initial_values_for_each_channel_and_reset() -> None:
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
        ({"rate": -0.1}, "expected rate >= 0, got -0.1"),
        ({"slope": float("inf")}, "expected finite slope, got inf"),
        ({"alpha": 1.0, "rate": 1.0}, "expected either alpha and beta or slope and rate, got both"),
        ({"num_parameters": 3, "alpha": torch.ones(2)}, "a number or 3 values .* got 2"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MPELU(**arguments)


@pytest.mark.parametrize("value", ["x", [1.0, "x", 2.0], [[1.0], [2.0, 3.0]], 10**400])
@pytest.mark.parametrize("name", ["alpha", "beta", "slope", "rate"])
def test_an_initial_value_that_is_no_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^MPELU: expected {name} to be a number or a sequence"):
        MPELU(3, **{name: value})


@pytest.mark.parametrize(
    ("shape", "dim", "hint"),
    [((2, 10, 64), 1, -1), ((64, 10, 5), 1, 0), ((64,), 1, -1), ((2, 64, 64), 0, -1)],
)
def test_the_dimension_that_fits_is_suggested(shape: tuple[int, ...], dim: int, hint: int) -> None:
    with pytest.raises(ValueError, match=rf"with dim={dim}, got 64; set dim={hint}$"):
        MPELU(64, dim=dim)(torch.zeros(shape))
    assert MPELU(64, dim=hint)(torch.zeros(shape)).shape == shape
    with pytest.raises(ValueError, match=r"got 64$"):
        MPELU(64)(torch.zeros(2, 10, 63))


def test_a_beta_in_memory_that_cannot_be_written() -> None:
    module = MPELU(2)
    module.load_state_dict({"alpha": torch.ones(2), "beta": torch.ones(()).expand(2)}, assign=True)
    assert module(torch.randn(3, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    ("shape", "dim"), [((2, 7, 5), -1), ((2, 7, 5), 2), ((5,), 0), ((5,), -1), ((5, 3), 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_channels_in_any_dimension(
    backend: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    module = MPELU(5, torch.linspace(0.5, 2, 5), torch.linspace(2, 0.1, 5), dim=dim)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    grad = torch.randn(shape, generator=generator).to(dtype)
    y = module(x)
    got = torch.autograd.grad(y, (x, module.alpha, module.beta), grad)
    moved = x.detach().movedim(dim, -1).reshape(-1, 5).requires_grad_()
    last = MPELU(5, module.alpha.detach(), module.beta.detach())
    expected = torch.autograd.grad(
        last(moved), (moved, last.alpha, last.beta), grad.movedim(dim, -1).reshape(-1, 5)
    )
    bound = 1e-2 if dtype == torch.bfloat16 else None
    back = expected[0].view(x.movedim(dim, -1).shape).movedim(-1, dim)
    assert_close(got[0], back, rtol=bound, atol=bound)
    for left, right in zip(got[1:], expected[1:], strict=True):
        assert_close(left, right, rtol=1e-4, atol=1e-4)


def test_tokens_are_not_copied(backend: str) -> None:
    """[batch, length, channels] is read as rows, also where it is a transposed view."""
    module = MPELU(64, dim=-1)
    x = torch.randn(2, 64, 10).transpose(1, 2)
    assert module(x).stride() == x.stride()


def test_a_dimension_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"shape \[5\] with dim=1, got 5"):
        MPELU(5)(torch.ones(5))
    with pytest.raises(ValueError, match=r"shape \[2, 5\] with dim=-3, got 5"):
        MPELU(5, dim=-3)(torch.ones(2, 5))


def test_numbers_for_alpha_and_beta(backend: str) -> None:
    x = torch.linspace(-3, 3, 7).requires_grad_()
    assert_close(mpelu.mpelu(x, 1.0, 1.0), nn.functional.elu(x))
    assert mpelu.mpelu(x, 2, 1.0).requires_grad
    beta = torch.tensor([0.5, 2.0], requires_grad=True)
    y = mpelu.mpelu(torch.full((3, 2), -1.0), 2.0, beta)
    assert_close(y, 2 * torch.expm1(-beta).expand(3, 2))
    y.sum().backward()
    assert beta.grad is not None
    assert mpelu.mpelu(x.double(), 0.3, 1.0).double()[0] == 0.3 * math.expm1(-3.0)


def test_modules_pickled_before_there_was_a_dim() -> None:
    module = MPELU(3)
    state = module.__getstate__()  # type: ignore[no-untyped-call]
    del state["dim"]
    old = MPELU.__new__(MPELU)
    old.__setstate__(state)
    assert_close(old(torch.randn(2, 3)).shape, torch.Size([2, 3]))


def test_torchscript() -> None:
    """Deprecated, but scripted models are still around."""
    module = MPELU(4, [98.0, 1.0, 0.25, -2.0], [0.01, 1.0, 1.0, 3.0])
    scripted = torch.jit.script(nn.Sequential(nn.Identity(), module))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(5, 4, 3).to(dtype)
        assert_close(scripted(x), module(x))
    assert_close(torch.jit.script(MPELU())(torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_torchscript_differentiates_infinite_input(dtype: torch.dtype) -> None:
    x = torch.tensor([[-math.inf, -1.0], [math.inf, 2.0], [-1e4, 0.0]], dtype=dtype)
    module = MPELU(2, [0.5, -2.0], [1.5, 1e-6], dtype=torch.float64)
    expected = [*_gradients(module, x)]
    scripted = torch.jit.script(module)
    for _ in range(3):  # the first two calls are profiled
        for got, wanted in zip(_gradients(scripted, x), expected, strict=True):
            assert_close(got, wanted, rtol=0.02 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def _gradients(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.clone().requires_grad_()
    output = module(x)
    parameters = dict(module.named_parameters())
    grads = torch.autograd.grad(
        output, (x, parameters["alpha"], parameters["beta"]), torch.ones_like(output)
    )
    return output, *grads


def test_beta_below_its_bound_recovers_in_torchscript() -> None:
    module = MPELU()
    with torch.no_grad():
        module.beta.fill_(-0.01)
    scripted = torch.jit.script(module)
    optimizer = torch.optim.SGD(scripted.parameters(), 0.1)
    x = torch.tensor([-1.0, -2.0])
    assert_close(scripted(x), module(x))
    for _ in range(20):
        optimizer.zero_grad()
        (scripted(x) + 0.5).square().sum().backward()
        optimizer.step()
    assert module.beta.item() > 0.1


@pytest.mark.parametrize("shape", [(4, 1), (4, 7), (8,), ()])
def test_torchscript_refuses_other_channels_as_eager_does(shape: tuple[int, ...]) -> None:
    module, x = MPELU(8), torch.randn(shape)
    with pytest.raises(ValueError, match="mpelu: expected"):
        module(x)
    with pytest.raises(torch.jit.Error, match="mpelu: expected 8 channels in dimension 1"):
        torch.jit.script(module)(x)


def test_torchscript_works_in_place_where_the_module_does() -> None:
    module = MPELU(8, inplace=True)
    scripted = torch.jit.script(module)
    x = torch.randn(4, 8)
    gradients = []
    for each in (scripted, MPELU(8)):
        given = x.clone().requires_grad_()
        hidden = given * 1
        output = each(hidden)
        assert torch.equal(hidden, output) == (each is scripted)
        output.square().sum().backward()
        assert given.grad is not None
        gradients.append(given.grad)
    assert_close(gradients[0], gradients[1])


GRID = torch.linspace(-5, 5, 1001)


def test_relu_is_exact() -> None:
    assert torch.equal(MPELU.relu()(GRID), nn.ReLU()(GRID))
    x = GRID.clone().requires_grad_()
    MPELU.relu()(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, (GRID > 0).float())


@pytest.mark.parametrize("alpha", [1.0, 0.3, 2.0])
def test_elu_is_exact(alpha: float) -> None:
    exact = nn.ELU(alpha)(GRID.double()).float()  # some versions of torch round it badly
    assert_close(MPELU.elu(alpha=alpha)(GRID), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("slope", [0.25, 0.01, 1.0, -0.5])
def test_prelu_leaky_relu_and_identity_are_exact(slope: float) -> None:
    x, y = GRID.clone().requires_grad_(), GRID.clone().requires_grad_()
    theirs = nn.PReLU(init=slope)
    expected = theirs(y)
    expected.sum().backward()
    for ours in (MPELU.prelu(slope=slope), MPELU.leaky_relu(negative_slope=slope)):
        x.grad = None
        output = ours(x)
        assert torch.equal(output, expected)
        output.sum().backward()
        assert_close(x.grad[x != 0], y.grad[y != 0])  # type: ignore[index]
        assert_close(ours.slope.grad, theirs.weight.grad)
    assert torch.equal(MPELU.identity()(GRID), GRID)
    assert torch.equal(MPELU.leaky_relu()(GRID), nn.LeakyReLU()(GRID))


def test_numbers_in_the_docstrings() -> None:
    def off(module: MPELU, y: float, target: float) -> float:
        value: float = module(torch.tensor([y])).item()
        return abs(value - target)

    prelu, identity = MPELU(alpha=25.6302, beta=0.01), MPELU(alpha=98.0, beta=0.01)
    negative = GRID[GRID < 0]
    assert off(prelu, -5.0, -1.25) < 1e-5
    assert (prelu(negative) - 0.25 * negative).abs().max().item() == pytest.approx(0.0078, rel=0.01)
    assert off(identity, -1.0, -1.0) == pytest.approx(0.025, rel=0.01)
    assert off(identity, -5.0, -5.0) == pytest.approx(0.22, rel=0.01)


def test_a_steep_alpha_warns_once() -> None:
    modules._warn_of_steep_alpha.cache_clear()
    text = r"an initial alpha above 3 .* MPELU\(slope=..., rate="
    with pytest.warns(UserWarning, match=text) as said:
        MPELU(2, alpha=[1.0, 3.1])
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MPELU(alpha=98.0)
        MPELU(alpha=3.0)


def test_copies_pickle_and_state_dict() -> None:
    module = MPELU(3, alpha=0.5)
    x = torch.randn(2, 3)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), module(x))
        assert other.alpha is not module.alpha
        other.reset_parameters()
    fresh = MPELU(3)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(x), module(x))


def test_meta_device() -> None:
    with torch.device("meta"):
        module = MPELU(3, alpha=0.5)
    assert module(torch.empty(2, 3, device="meta")).shape == (2, 3)
    module.to_empty(device="cpu").reset_parameters()
    assert module.alpha.tolist() == [0.5] * 3


def test_module_to_half_precision(backend: str) -> None:
    module = MPELU(3).bfloat16()
    y = module(torch.randn(2, 3, 4).bfloat16())
    y.float().sum().backward()
    assert module.alpha.grad is not None
    assert y.dtype == module.alpha.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm1d(4)])
def test_mpelu_is_prelu_inside_elu(norm: nn.Module) -> None:
    """Equations 1 and 2 of the paper, with one alpha and beta for all channels."""
    alpha, beta = 0.7, 1.9
    norm = norm.double()
    x = torch.randn(64, 4, dtype=torch.float64)
    inside = F.prelu(norm(x), torch.tensor([beta], dtype=torch.float64))
    found = mpelu.MPELU(alpha=alpha, beta=beta, dtype=torch.float64)(norm(x))
    assert_close(found, F.elu(inside, alpha))
