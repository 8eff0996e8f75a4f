"""Values and gradients of the operator against float64, on every way it runs."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from ways import Run, needs_native

import mpelu
from mpelu.kernels import registry

SETTINGS = [
    (1.0, 1.0),
    (0.25, 1.0),
    (98.0, 0.01),
    (3.0, 0.5),
    (-2.0, 1.0),
    (0.0, 1.0),
    (1e-4, 20.0),
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def negatives(count: int = 4096) -> torch.Tensor:
    """From -200 to where numbers end, evenly in the exponent."""
    return -torch.logspace(2.3, -20, count, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("alpha", "beta"), SETTINGS)
def test_forward_is_within_four_units_in_the_last_place(
    run: Run, dtype: torch.dtype, alpha: float, beta: float
) -> None:
    x = torch.cat([negatives(), -negatives()]).to(dtype)
    a, b = torch.tensor([alpha]).to(dtype), torch.tensor([beta]).to(dtype)
    result = run(x, a, b)
    assert result.dtype == dtype
    exact = reference.forward(x, a, b)
    assert reference.units_in_last_place(result, exact).max() <= 4
    assert torch.equal(result[x > 0], x[x > 0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("alpha", "beta"), SETTINGS)
def test_input_gradient(run: Run, dtype: torch.dtype, alpha: float, beta: float) -> None:
    x = torch.cat([negatives(), -negatives()]).to(dtype).requires_grad_()
    a, b = torch.tensor([alpha]).to(dtype), torch.tensor([beta]).to(dtype)
    grad = torch.linspace(-2, 2, x.numel(), dtype=dtype)
    (result,) = torch.autograd.grad(run(x, a, b), x, grad)
    exact, _, _ = reference.gradients(grad, x, a, b)
    assert torch.equal(result[x > 0], grad[x > 0])
    info = torch.finfo(dtype)
    bound = 4 * info.eps * abs(alpha * beta) * grad.double().abs() + info.tiny * info.eps
    assert ((result.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.25, 1.0), (98.0, 0.01), (-2.0, 3.0)])
def test_parameter_gradients_of_a_million_elements(run: Run, alpha: float, beta: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 4, 125, 125, generator=generator)
    grad = torch.rand(x.shape, generator=generator)  # positive: nothing cancels
    a = torch.full((4,), alpha, requires_grad=True)
    b = torch.full((4,), beta, requires_grad=True)
    result = torch.autograd.grad(run(x, a, b), (a, b), grad)
    _, *exact = reference.gradients(grad, x, a, b)
    for got, expected in zip(result, exact, strict=True):
        assert got.dtype == torch.float32
        assert ((got.double() - expected) / expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("beta", [1e-6, 0.01, 1.0, 5.0])
@pytest.mark.parametrize("alpha", [1.0, 0.3, 98.0])
@pytest.mark.parametrize("low", [0.0, 4.0, 5.0], ids=["0-5", "4-5", "5"])
def test_parameter_gradients_in_half_precision(
    backend: str, dtype: torch.dtype, alpha: float, beta: float, low: float
) -> None:
    generator = torch.Generator().manual_seed(2)
    depth = low + (5 - low) * torch.rand(16, 2, 256, generator=generator)  # beta |y|
    x = -(depth / max(beta, 1e-3)).to(dtype)
    grad = torch.rand(x.shape, generator=generator).to(dtype)
    a = torch.full((2,), alpha, requires_grad=True)  # float32 parameters, as under autocast
    b = torch.full((2,), beta, requires_grad=True)
    result = torch.autograd.grad(mpelu.mpelu(x, a, b), (a, b), grad)
    _, *exact = reference.gradients(grad, x, a, b)
    for got, expected in zip(result, exact, strict=True):
        assert got.dtype == torch.float32
        assert ((got.double() - expected) / expected).abs().max() < 0.01


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.0, 98.0])
@pytest.mark.parametrize("depth", [(0, 5), (8, 10)])
def test_parameter_gradients_in_saturation(
    backend: str, alpha: float, depth: tuple[int, int]
) -> None:
    """beta |y| of 8 to 10: the output differs from -alpha by a few hundred roundings."""
    generator = torch.Generator().manual_seed(7)
    low, high = depth
    x = -(low + (high - low) * torch.rand(1_000_000, generator=generator))
    grad = torch.rand(x.shape, generator=generator)
    a = torch.tensor([alpha], requires_grad=True)
    b = torch.ones(1, requires_grad=True)
    result = torch.autograd.grad(mpelu.mpelu(x, a, b), (a, b), grad)
    _, *exact = reference.gradients(grad, x, a, b)
    for got, expected in zip(result, exact, strict=True):
        assert ((got.double() - expected) / expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(run: Run, dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 100.0, 6e4, -6e4], dtype=dtype)
    x.requires_grad_()
    y = run(x, torch.tensor([2.0], dtype=dtype), torch.tensor([0.5], dtype=dtype))
    expected = torch.tensor([math.nan, math.inf, -2, 0, 0, 100, 6e4, -2], dtype=dtype)
    assert_close(y, expected, equal_nan=True, rtol=0, atol=0)
    (gx,) = torch.autograd.grad(y, x, torch.ones_like(x))
    assert_close(gx[1:], torch.tensor([1, 0, 1, 1, 1, 1, 0], dtype=dtype))  # alpha beta = 1 at 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha", [2.0, 0.0, -2.0])
def test_infinities_leave_parameter_gradients_finite(
    run: Run, dtype: torch.dtype, alpha: float
) -> None:
    x = torch.tensor([math.inf, -math.inf, -1.0, 1e4], dtype=dtype)
    a = torch.tensor([alpha], dtype=dtype, requires_grad=True)
    b = torch.tensor([1.0], dtype=dtype, requires_grad=True)
    ga, gb = torch.autograd.grad(run(x, a, b), (a, b), torch.ones_like(x))
    expected_alpha = torch.tensor([-1 + math.expm1(-1.0)]).double()
    expected_beta = torch.tensor([-alpha * math.exp(-1.0)]).double()
    assert_close(ga.double(), expected_alpha, rtol=0.02, atol=1e-6)
    assert_close(gb.double(), expected_beta, rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, -1.5])
def test_alpha_of_any_sign(run: Run, alpha: float) -> None:
    x = torch.linspace(-3, 3, 61).requires_grad_()
    a = torch.tensor([alpha], requires_grad=True)
    b = torch.ones(1, requires_grad=True)
    grad = torch.linspace(1, 2, 61)
    y = run(x, a, b)
    assert_close(y.double(), reference.forward(x, a, b))
    result = torch.autograd.grad(y, (x, a, b), grad)
    for got, expected in zip(result, reference.gradients(grad, x, a, b), strict=True):
        assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


def test_channels_of_one_size_are_not_mixed_up(run: Run) -> None:
    x = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    a, b = torch.tensor([0.5, 1.0, 2.0, 4.0]), torch.tensor([2.0, 1.0, 0.5, 0.1])
    assert_close(run(x, a, b).double(), reference.forward(x, a, b))


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 3, 0), (0,), (0, 3)])
def test_empty(run: Run, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    channels = 3 if len(shape) > 1 else 1
    a = torch.ones(channels, requires_grad=True)
    b = torch.ones(channels, requires_grad=True)
    y = run(x, a, b)
    assert y.shape == x.shape
    grads = torch.autograd.grad(y, (x, a, b), torch.zeros_like(y))
    assert [g.shape for g in grads] == [x.shape, a.shape, b.shape]
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("shape", [(2, 5, 6, 7), (2, 5, 3, 6, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_channels_last_stays(backend: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).to(dtype).to(memory_format=format).requires_grad_()
    a, b = torch.rand(5) + 0.5, torch.rand(5) + 0.5
    y = mpelu.mpelu(x, a, b)
    assert y.is_contiguous(memory_format=format)
    (gx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert gx.is_contiguous(memory_format=format)
    assert_close(y.double(), reference.forward(x, a, b), rtol=1e-2, atol=1e-2)


class Strides(NamedTuple):
    """Any rank, sizes and strides: permuted, sliced, expanded; shared or channel-wise."""

    shape: list[int]
    order: list[int]
    step: int
    expanded: bool
    channel_wise: bool
    positive_alpha: bool
    seed: int

    def tensors(
        self, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Input, alpha, beta and an incoming gradient."""
        generator = torch.Generator().manual_seed(self.seed)
        base = torch.randn([n * self.step for n in self.shape], generator=generator).to(dtype)
        x = base[tuple(slice(None, None, self.step) for _ in self.shape)].permute(self.order)
        if self.expanded and x.dim():
            x = x.select(-1, 0).unsqueeze(-1).expand(*x.shape)
        channels = x.size(1) if x.dim() > 1 and self.channel_wise else 1
        alpha = torch.randn(channels, generator=generator)
        alpha = alpha.abs() + 0.01 if self.positive_alpha else alpha
        beta = torch.rand(channels, generator=generator) * 3 + 0.01
        grad = torch.randn(x.shape, generator=generator).to(dtype)
        return x.requires_grad_(), alpha.requires_grad_(), beta.requires_grad_(), grad


@st.composite
def strides(draw: st.DrawFn) -> Strides:
    shape = draw(st.lists(st.integers(1, 9), min_size=0, max_size=5))
    order = draw(st.permutations(range(len(shape))))
    step = draw(st.sampled_from([1, 1, 2]))
    expanded, channel_wise, positive_alpha = (draw(st.booleans()) for _ in range(3))
    return Strides(shape, order, step, expanded, channel_wise, positive_alpha, draw(SEEDS))


SEEDS = st.integers(0, 2**31)


@given(strides(), st.sampled_from(DTYPES), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_shape_and_stride(case: Strides, dtype: torch.dtype, without_native: bool) -> None:
    x, alpha, beta, grad = case.tensors(dtype)
    with pytest.MonkeyPatch.context() as patch:
        if without_native:
            patch.setattr(registry, "KERNELS", {})
        y = mpelu.mpelu(x, alpha, beta)
        grads = torch.autograd.grad(y, (x, alpha, beta), grad)
    dense = torch.empty_like(x).stride()
    assert all(
        got == expected
        for got, expected, size in zip(y.stride(), dense, x.shape, strict=True)
        if size > 1
    )
    half = dtype in (torch.bfloat16, torch.float16)
    tolerance, floor = (0.02, 5.0) if half else (1e-5, 1.0)
    assert_close(y.double(), reference.forward(x, alpha, beta), rtol=tolerance, atol=tolerance)
    exact = reference.gradients(grad, x, alpha, beta)
    sizes = reference.gradients(grad.abs(), x, alpha, beta)  # before anything cancels
    for got, expected, size in zip(grads, exact, sizes, strict=True):
        assert ((got.double() - expected).abs() <= tolerance * (size.abs() + floor)).all()


@given(
    st.integers(1, 40), st.integers(1, 70), st.integers(1, 70), st.sampled_from([0.5, -0.5, 0.0])
)
@settings(max_examples=150, deadline=None)
def test_every_path_through_the_kernel(outer: int, channels: int, inner: int, alpha: float) -> None:
    """Planes and rows, whole and broken vectors, saved output and saved input."""
    needs_native()
    generator = torch.Generator().manual_seed(outer * 4900 + channels * 70 + inner)
    x = torch.randn(outer, channels, inner, generator=generator).requires_grad_()
    grad = torch.randn(outer, channels, inner, generator=generator)
    a = alpha * (1 + torch.rand(channels, generator=generator))
    b = 0.5 + torch.rand(channels, generator=generator)
    a.requires_grad_()
    b.requires_grad_()
    grads = torch.autograd.grad(mpelu.mpelu(x, a, b), (x, a, b), grad)
    for got, expected in zip(grads, reference.gradients(grad, x, a, b), strict=True):
        # Sums of hundreds of terms may cancel: relative to the largest gradient.
        largest = max(1.0, expected.abs().max().item())
        assert_close(got.double(), expected, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("shape", [(3, 70_001), (64, 4096), (200, 5000), (8, 4096, 2, 2)])
@pytest.mark.parametrize("alpha", [0.5, -0.5])
def test_wide_rows(backend: str, shape: tuple[int, ...], alpha: float) -> None:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(shape, generator=generator).requires_grad_()
    grad = torch.randn(shape, generator=generator)
    a = (alpha * (1 + torch.rand(shape[1], generator=generator))).requires_grad_()
    b = (0.5 + torch.rand(shape[1], generator=generator)).requires_grad_()
    y = mpelu.mpelu(x, a, b)
    assert_close(y.double(), reference.forward(x, a, b))
    grads = torch.autograd.grad(y, (x, a, b), grad)
    for got, expected in zip(grads, reference.gradients(grad, x, a, b), strict=True):
        assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grad", ["expanded", "transposed", "other dtype"])
def test_gradients_that_come_in_another_layout(backend: str, grad: str) -> None:
    x = torch.randn(4, 3, 6, 6, requires_grad=True)
    a = torch.ones(3, requires_grad=True)
    b = torch.ones(3, requires_grad=True)
    g = {
        "expanded": torch.ones(()).expand(x.shape),
        "transposed": torch.randn(4, 3, 6, 6).transpose(2, 3),
        "other dtype": torch.randn(4, 3, 6, 6),
    }[grad]
    if grad == "other dtype":
        y = mpelu.mpelu(x.bfloat16(), a, b).float()
        rtol, atol = 0.05, 0.1
    else:
        y = mpelu.mpelu(x, a, b)
        rtol, atol = 1e-5, 1e-5
    grads = torch.autograd.grad(y, (x, a, b), g)
    for got, expected in zip(grads, reference.gradients(g, x, a, b), strict=True):
        assert_close(got.double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", [(2, 0), (0, 0), (2, 0, 3)])
def test_zero_channels(backend: str, shape: tuple[int, ...]) -> None:
    """As nn.functional.prelu: nothing comes out of nothing."""
    x, a, b = torch.rand(shape).requires_grad_(), *torch.rand(2, 0).requires_grad_().unbind()
    y = mpelu.mpelu(x, a, b)
    assert y.shape == shape
    gradients = torch.autograd.grad(y.sum(), (x, a, b))
    assert [g.shape for g in gradients] == [shape, (0,), (0,)]
    assert mpelu.mpelu(x * 1, a, b, inplace=True).shape == shape
    lazy = mpelu.LazyMPELU(dim=1)
    assert lazy(x).shape == shape
    assert repr(lazy) == "MPELU(num_parameters=0)"
    with pytest.raises(ValueError, match=r"with 1 or 3 values .* got 0"):
        mpelu.mpelu(torch.rand(2, 3), a, b)


@pytest.mark.parametrize("alpha", [0.7, -0.7])
def test_memory_that_is_copied_on_write_stays_shared(backend: str, alpha: float) -> None:
    shared = torch._lazy_clone
    is_shared = torch._C._is_cow_tensor  # type: ignore[attr-defined]
    x, g = torch.randn(2, 4, 3), torch.rand(2, 4, 3)
    a, b = torch.full((4,), alpha), torch.rand(4) + 0.5
    exact = reference.forward(x, a, b)
    expected = reference.gradients(g, x, a, b)
    for source in (x, x.transpose(0, 2).contiguous().transpose(0, 2), torch.cat([x, x])[2:]):
        inputs = [shared(t).requires_grad_() for t in (source, a, b)]
        first, second, third = inputs
        output, grad = mpelu.mpelu(first, second, third), shared(g)
        got = torch.autograd.grad(output, inputs, grad)
        assert_close(output.double(), exact, rtol=1e-5, atol=1e-6)
        for one, other in zip(got, expected, strict=True):
            assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
        if backend != "triton":  # which asks for an address to write to
            assert all(map(is_shared, (*inputs, grad)))
        before = source.clone()
        mpelu.mpelu(shared(source), a, b, inplace=True)
        assert torch.equal(source, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("alpha", "beta", "x", "grad"),
    [
        (1e4, 1.0, -1e-3, 1e35),
        (1e4, 1.0, -3.0, -1e35),
        (-1e4, 1.0, -1e-3, 1e35),
        (1e8, 1e-6, -1e-3, 1e34),
        (98.0, 0.01, -1e-2, 2e37),
        (1e29, 1.0, -1e-9, 1e10),
    ],
)
def test_gradients_are_finite_where_their_values_are(
    backend: str, dtype: torch.dtype, alpha: float, beta: float, x: float, grad: float
) -> None:
    """What the kernel sums up, the gradient times f, would be more than float32 holds."""
    parameters = torch.float64 if dtype == torch.float64 else torch.float32
    scale = 1e270 if dtype == torch.float64 else 1.0
    inputs = torch.tensor([[x, 2.0, -1e-4], [3.0, -1.0, x]], dtype=dtype)
    grads = torch.tensor([[grad, -grad, 0.0], [grad, 0.0, grad / 2]], dtype=dtype) * scale
    inputs.requires_grad_()
    a, b = (torch.tensor([v, 1.0, v], dtype=parameters, requires_grad=True) for v in (alpha, beta))
    got = torch.autograd.grad(mpelu.mpelu(inputs, a, b), (inputs, a, b), grads)
    expected = reference.gradients(grads, inputs, a, b)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 2e-5
    for one, other in zip(got, expected, strict=True):
        wanted = other.to(one.dtype)  # the last one may be too large itself
        scale = wanted[wanted.isfinite()].abs().max().item()
        assert_close(one, wanted, rtol=tolerance, atol=1e-6 * scale)


def test_bad_input_is_named() -> None:
    one = torch.ones(1)
    with pytest.raises(TypeError, match=r"expected a floating point input, got torch.int64"):
        mpelu.mpelu(torch.arange(3), one, one)
    with pytest.raises(TypeError, match=r"expected a floating point input, got torch.complex64"):
        mpelu.mpelu(torch.ones(3, dtype=torch.complex64), one, one)
    with pytest.raises(TypeError, match=r"expected a floating point alpha, got torch.int64"):
        mpelu.mpelu(torch.ones(3), torch.ones(1, dtype=torch.int64), one)
    message = r"with 1 or 4 values for an input of shape \[2, 4, 5\] with dim=1, got 5"
    with pytest.raises(ValueError, match=message):
        mpelu.mpelu(torch.ones(2, 4, 5), torch.ones(5), torch.ones(5))
    with pytest.raises(
        ValueError, match=r"with 1 value for an input of shape \[4\] with dim=1, got 4"
    ):
        mpelu.mpelu(torch.ones(4), torch.ones(4), torch.ones(4))
    with pytest.raises(ValueError, match=r"of the same shape, .* got \[4\] and \[1\]"):
        mpelu.mpelu(torch.ones(2, 4), torch.ones(4), one)
    with pytest.raises(ValueError, match=r"of the same shape, .* got \[\] and \[\]"):
        mpelu.mpelu(torch.ones(2, 4), torch.ones(()), torch.ones(()))


def test_another_device_is_named() -> None:
    meta = torch.ones(1, device="meta")
    with pytest.raises(ValueError, match="expected alpha on the input's device, cpu, got meta"):
        mpelu.mpelu(torch.ones(3), meta, meta)


def test_small_beta_keeps_its_digits(run: Run) -> None:
    """alpha 98, beta 0.01 at y = -1e-6: exp(x) - 1 in float32 would give 0."""
    y = run(torch.tensor([-1e-6]), torch.tensor([98.0]), torch.tensor([0.01]))
    assert y.item() == pytest.approx(-9.8e-7, rel=1e-6)
