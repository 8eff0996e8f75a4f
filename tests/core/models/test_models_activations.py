"""Activations by name."""

import pytest
import torch
from torch import nn

import mpelu
from mpelu.activations.parametric import SReLU
from mpelu.models.parts import activation_spec


@pytest.mark.parametrize(
    ("name", "alpha", "beta", "slope"),
    [
        ("relu", None, None, 0.0),
        ("leaky_relu", 0.1, None, 0.1),
        ("leaky_relu", None, None, 0.01),
        ("prelu", None, None, 0.25),
        ("elu", None, None, 1.0),
        ("elu", 0.5, None, 0.5),
        ("srelu", None, None, 0.2),
        ("mpelu", 0.25, None, 0.25),
        ("mpelu", 98.0, 0.01, 0.98),
    ],
)
def test_slope_is_the_derivative_below_zero(
    name: str, alpha: float | None, beta: float | None, slope: float
) -> None:
    activation = activation_spec(name, alpha, beta)
    assert activation.slope == pytest.approx(slope)
    x = torch.full((1, 2), -1e-6, requires_grad=True)
    activation.make(2)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [pytest.approx([slope, slope], abs=1e-5)]


def test_rrelu_slope_is_that_of_eval() -> None:
    activation = activation_spec("rrelu")
    assert activation.slope is not None
    assert activation.make(2).eval()(torch.tensor(-1.0)).item() == pytest.approx(-activation.slope)


def test_parameters_are_channel_wise() -> None:
    for name, count in (("prelu", 1), ("mpelu", 2), ("srelu", 4)):
        parameters = list(activation_spec(name).make(5).parameters())
        assert [tuple(p.shape) for p in parameters] == [(5,)] * count


def test_each_call_makes_a_new_module() -> None:
    activation = activation_spec("mpelu", 0.5, 2.0)
    first, second = activation.make(3), activation.make(3)
    assert isinstance(first, mpelu.MPELU)
    assert first is not second
    assert first.alpha.tolist() == [0.5] * 3
    assert first.beta.tolist() == [2.0] * 3


def test_callable() -> None:
    assert isinstance(activation_spec(lambda channels: nn.Linear(channels, 1)).make(3), nn.Linear)


def s_shaped(x: float, tr: float, ar: float, tl: float, al: float) -> float:
    if x >= tr:
        return tr + ar * (x - tr)
    if x <= tl:
        return tl + al * (x - tl)
    return x


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_srelu(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = SReLU(3).double()
    values = torch.tensor(
        [[0.7, 0.5, -0.3, 0.2], [1.0, 2.0, -1.0, -0.5], [0.1, 0.0, 0.0, 1.5]], dtype=torch.float64
    )
    ordered = (
        module.right_threshold,
        module.right_slope,
        module.left_threshold,
        module.left_slope,
    )
    with torch.no_grad():
        for parameter, column in zip(ordered, values.T, strict=True):
            parameter.copy_(column)
    x = 2 * torch.randn(shape, dtype=torch.float64)
    output = module(x)
    for index in torch.cartesian_prod(*(torch.arange(size) for size in shape)):
        at = tuple(index.tolist())
        assert output[at].item() == pytest.approx(s_shaped(x[at].item(), *values[at[1]].tolist()))
    x.requires_grad_()
    assert torch.autograd.gradcheck(module, x)
