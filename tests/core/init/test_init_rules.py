"""Rules for one weight against torch.nn.init, formulas and the variances they promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mpelu import MPELU, init, moments

RULES: list[Callable[..., Tensor]] = [
    init.taylor_normal_,
    init.exact_normal_,
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    st.floats(0, 100),
    st.floats(0.01, 10),
    st.sampled_from(["fan_in", "fan_out"]),
    st.sampled_from([(8, 5), (6, 4, 3), (6, 4, 3, 2), (4, 2, 3, 3, 3)]),
)
@settings(deadline=None)
def test_taylor_is_kaiming_with_slope_alpha_beta(
    alpha: float, beta: float, mode: Literal["fan_in", "fan_out"], shape: tuple[int, ...]
) -> None:
    ours = init.taylor_normal_(torch.empty(shape), alpha, beta, mode, generator=seeded())
    theirs = nn.init.kaiming_normal_(torch.empty(shape), alpha * beta, mode, generator=seeded())
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_taylor_with_alpha_zero_is_msra() -> None:
    for mode in ("fan_in", "fan_out"):
        msra = nn.init.kaiming_normal_(torch.empty(64, 32, 3, 3), mode=mode, generator=seeded())
        ours = init.taylor_normal_(torch.empty(64, 32, 3, 3), 0.0, 1.0, mode, seeded())
        assert torch.equal(ours, msra)


def test_methods_for_other_activations_are_torchs_functions() -> None:
    layer = nn.Linear(64, 32)
    first = layer.weight.detach()
    for method, expected in (
        ("xavier", nn.init.xavier_normal_(torch.empty(32, 64), generator=seeded())),
        ("gaussian", nn.init.normal_(torch.empty(32, 64), std=0.01, generator=seeded())),
    ):
        init.initialize_(nn.Sequential(layer), method=method, generator=seeded())
        torch.testing.assert_close(first, expected, rtol=1e-6, atol=0)


def test_average_takes_the_mean_of_the_fans() -> None:
    ours = init.taylor_normal_(torch.empty(100, 50), 1.0, 1.0, "average", seeded())
    base = torch.empty(100, 50).normal_(generator=seeded())
    torch.testing.assert_close(ours, base * math.sqrt(1 / 75))


def test_exact_uses_the_second_moment() -> None:
    ours = init.exact_normal_(torch.empty(10, 40), 3.0, 0.5, variance=2.0, generator=seeded())
    std = math.sqrt(2.0 / (40 * moments(3.0, 0.5, 2.0)[1].item()))
    torch.testing.assert_close(ours, torch.empty(10, 40).normal_(0, std, generator=seeded()))


@pytest.mark.parametrize("rule", [init.taylor_normal_, init.exact_normal_])
def test_equal_channels_are_as_one_number(rule: Callable[..., Tensor]) -> None:
    shared = rule(torch.empty(8, 6), 0.5, 2.0, generator=seeded())
    by_channel = rule(
        torch.empty(8, 6), torch.full((6,), 0.5), torch.full((6,), 2.0), generator=seeded()
    )
    torch.testing.assert_close(shared, by_channel)


def test_taylor_sums_over_the_input_channels() -> None:
    alpha, beta = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, 1.0, 0.5])
    ours = init.taylor_normal_(torch.empty(4, 3, 5), alpha, beta, generator=seeded())
    std = math.sqrt(2 / (5 * (1 + 2 + 3.25)))
    torch.testing.assert_close(ours, torch.empty(4, 3, 5).normal_(0, std, generator=seeded()))


def _layers() -> list[nn.Module]:
    return [
        nn.Linear(600, 500),
        nn.Conv1d(200, 400, 3),
        nn.Conv2d(64, 400, 3),
        nn.Conv3d(32, 400, 3),
        nn.Conv2d(256, 512, 3, groups=8),
        nn.ConvTranspose1d(256, 400, 3),
        nn.ConvTranspose2d(64, 400, 3),
        nn.ConvTranspose2d(256, 512, 3, groups=8),
        nn.ConvTranspose3d(32, 200, 2),
    ]


@pytest.mark.parametrize("layer", _layers(), ids=lambda layer: str(layer).split(", bias")[0])
def test_exact_keeps_the_variance_through_each_kind_of_layer(layer: Any) -> None:
    groups, is_transposed = getattr(layer, "groups", 1), "Transpose" in type(layer).__name__
    channels = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    alpha, beta = torch.rand(channels, generator=seeded()) * 3, torch.rand(channels) + 0.1
    init.exact_normal_(
        layer.weight, alpha, beta, generator=seeded(1), groups=groups, transposed=is_transposed
    )
    nn.init.zeros_(layer.bias)
    dims = layer.weight.dim() - 2
    x = torch.randn(64, channels, *[5] * dims, generator=seeded(2))
    with torch.no_grad():
        out = layer(MPELU(channels, alpha, beta)(x))
    middle = (..., *[slice(2, 5)] * dims)
    inside = out[middle] if is_transposed else out
    assert inside.var().item() == pytest.approx(1, rel=0.1)


def test_rules_leave_no_trace_in_autograd() -> None:
    weight = nn.Parameter(torch.empty(4, 4))
    for rule in RULES:
        assert rule(weight) is weight
        assert weight.grad_fn is None
        assert weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    weight = init.taylor_normal_(torch.empty(256, 256, dtype=dtype))
    assert weight.float().std().item() == pytest.approx(1 / 16, rel=0.05)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.zeros(3), ValueError, "at least two dimensions, got shape"),
        (torch.zeros(3, 3, dtype=torch.int64), TypeError, "floating point tensor, got torch.int64"),
        (torch.zeros(3, 3, device="meta"), ValueError, "meta device"),
        (torch.zeros(0, 3), ValueError, "with elements"),
        ([[1.0]], TypeError, "got list"),
        (nn.LazyLinear(3).weight, ValueError, "lazy"),
    ],
)
def test_bad_tensors(
    rule: Callable[..., Tensor], tensor: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        rule(tensor)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: init.taylor_normal_(w, mode="fan"), "one of"),
        (lambda w: init.taylor_normal_(w, beta=0.0), "beta .*got 0"),
        (lambda w: init.exact_normal_(w, beta=-1.0), "beta .*got -1"),
        (lambda w: init.exact_normal_(w, variance=0.0), "variance "),
        (lambda w: init.exact_normal_(w, alpha=math.inf), "alpha"),
        (lambda w: init.taylor_normal_(w, alpha=torch.ones(3)), "1 or 4 values"),
        (lambda w: init.taylor_normal_(w, groups=3), "groups .*got 3"),
    ],
)
def test_bad_arguments_leave_the_weight_alone(
    call: Callable[[Tensor], Tensor], message: str
) -> None:
    weight = torch.ones(4, 4)
    with pytest.raises(ValueError, match=message):
        call(weight)
    assert torch.equal(weight, torch.ones(4, 4))


@pytest.mark.parametrize(
    ("activation", "method", "expected"),
    [
        ("relu", "taylor", math.sqrt(2)),
        ("relu", "msra", math.sqrt(2)),
        ("relu", "exact", math.sqrt(2)),
        ("elu", "taylor", 1.0),
        ("elu", "msra", math.sqrt(2)),
        ("elu", "exact", 1 / math.sqrt(0.6449454174929239)),
        ("elu", "xavier", 1.0),
        ("leaky_relu", "msra", math.sqrt(2 / 1.0001)),
        ("selu", "exact", 1.0),
        ("linear", "taylor", 1.0),
        ("silu", "taylor", 1.67653247),  # by E[f^2]: its tangents lie inside of it
        (MPELU(4, 0.25, 2.0), "taylor", math.sqrt(2 / 1.25)),
        (nn.PReLU(3, init=0.5), "msra", math.sqrt(2 / 1.25)),
    ],
)
def test_gain(activation: str | nn.Module, method: str, expected: float) -> None:
    assert init.gain(activation, method) == pytest.approx(expected, rel=1e-6)


def test_gain_agrees_with_torch_where_torch_has_one() -> None:
    for slope in (0.0, 0.1, 1.0):
        theirs = nn.init.calculate_gain("leaky_relu", slope)
        assert init.gain(nn.LeakyReLU(slope)) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("relu", "kaiming"), ValueError, "one of"),
        (("rely",), ValueError, "name of an elementwise activation, got 'rely'"),
        ((nn.Softmax(1),), ValueError, "got Softmax"),
        ((nn.Linear(2, 2),), ValueError, "got Linear"),
        ((3,), TypeError, "got int"),
    ],
)
def test_bad_gain(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        init.gain(*arguments)


def test_the_papers_residuals() -> None:
    bounds = [init.residual_bound(1.0, 1.0, 1.0, deviations) for deviations in (1, 2, 3)]
    assert bounds == [0.5, 2.0, 4.5]
    shares = [100 * init.residual_share(bound, 1.0, 1.0) for bound in bounds]
    assert shares == pytest.approx([84.135, 97.725, 99.865], abs=1e-3)
    # The paper reads the share at -0.14, of the threshold -0.1414 that it derives.
    assert 100 * init.residual_share(0.14**2 / 2, 1.0, 1.0) == pytest.approx(55.57, abs=5e-3)
    assert 100 * init.residual_share(0.01, 1.0, 1.0) == pytest.approx(55.62, abs=5e-3)


@given(st.floats(0.01, 10), st.floats(0.01, 3), st.floats(0.1, 4))
@settings(deadline=None, max_examples=50)
def test_residuals_stay_under_their_bound(alpha: float, beta: float, variance: float) -> None:
    sigma = math.sqrt(variance)
    for deviations in (1, 2, 3):
        bound = init.residual_bound(alpha, beta, variance, deviations)
        y = torch.linspace(-deviations * sigma, 0, 100, dtype=torch.float64)
        residual = alpha * (torch.expm1(beta * y) - beta * y)
        assert residual.abs().max().item() <= bound * (1 + 1e-9)
        share = init.residual_share(bound, alpha, beta, variance)
        expected = torch.special.ndtr(torch.tensor(float(deviations))).item()
        assert share == pytest.approx(expected, rel=1e-6)


def test_residuals_without_a_negative_part() -> None:
    assert init.residual_share(0.0, 0.0, 1.0) == 1.0
    with pytest.raises(ValueError, match="residual "):
        init.residual_share(-1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="variance "):
        init.residual_bound(1.0, 1.0, 0.0)
