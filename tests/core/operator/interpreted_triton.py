"""The Triton kernels in Triton's interpreter; `tests/test_triton.py` runs this in a process.

By hand: TRITON_INTERPRET=1 MPELU_BACKEND=triton python -m pytest tests/interpreted_triton.py
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import pytest
import reference
import torch
from torch import Tensor
from ways import INTERPRETED

import mpelu
from mpelu.kernels import gpu, registry
from mpelu.kernels import triton as kernels
from mpelu.kernels.layout import Tiling

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
assert INTERPRETED, "expected TRITON_INTERPRET=1 and MPELU_BACKEND=triton"


class Layout(NamedTuple):
    shape: tuple[int, ...]
    dim: int = 1
    shared: bool = False
    channels_last: bool = False
    alpha: float | None = None


LAYOUTS = {
    "odd sizes": Layout((3, 5, 7, 11)),
    "planes of odd size": Layout((3, 3, 13, 17)),
    "more tiles than a program takes": Layout((70, 3, 66)),
    "more rows than a program takes": Layout((1300, 40)),
    "one channel": Layout((4, 1, 9, 9)),
    "one element": Layout((1, 1)),
    "C == H == W": Layout((2, 9, 9, 9)),
    "C == H == W, channels_last": Layout((2, 9, 9, 9), channels_last=True),
    "channels_last": Layout((3, 5, 7, 11), channels_last=True),
    "dim=-1": Layout((3, 17, 70), dim=-1),
    "dim=0": Layout((6, 130), dim=0),
    "shared": Layout((3, 5, 7, 11), shared=True),
    "shared, more than one program": Layout((9, 1001), shared=True),
    "one long row": Layout((1, 1001)),
    "alpha = 0": Layout((3, 5, 70), alpha=0.0),
    "negative alpha": Layout((3, 5, 70), alpha=-0.7),
    "negative alpha, matrix": Layout((300, 10), alpha=-0.7),
}


def arguments(layout: Layout, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = (3 * torch.randn(layout.shape, generator=generator)).to(dtype)
    grad = torch.randn(layout.shape, generator=generator).to(dtype)
    if layout.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    channels = 1 if layout.shared else layout.shape[layout.dim]
    a, b = 0.2 + torch.rand(2, channels, generator=generator)
    if layout.alpha is not None:
        a.fill_(layout.alpha)
    return x.requires_grad_(), grad, a.requires_grad_(), b.requires_grad_()


def gradients(
    layout: Layout, x: Tensor, grad: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    y = mpelu.mpelu(x, a, b, dim=layout.dim)
    return y, torch.autograd.grad(y, (x, a, b), grad)


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels' calls, so that no test passes by the formula."""
    calls: list[str] = []
    for name in ("forward", "backward"):
        real = getattr(kernels, name)

        def counted(*args: object, name: str = name, real: object = real) -> object:
            result = real(*args)  # type: ignore[operator]
            if result is not None:
                calls.append(name)
            return result

        monkeypatch.setattr(kernels, name, counted)
    return calls


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_output_and_gradients_against_float64(
    name: str, dtype: torch.dtype, launches: list[str]
) -> None:
    layout = LAYOUTS[name]
    x, grad, a, b = arguments(layout, dtype)
    y, (gx, ga, gb) = gradients(layout, x, grad, a, b)
    assert launches == ["forward", "backward"]
    assert y.stride() == x.stride()
    assert gx.stride() == x.stride()
    moved = [t.detach().movedim(layout.dim, 1 if t.dim() > 1 else 0) for t in (x, grad)]
    exact = reference.forward(moved[0], a, b)
    assert reference.units_in_last_place(y.movedim(layout.dim, 1), exact).max() <= 4
    ex, ea, eb = reference.gradients(moved[1], moved[0], a, b)
    eps = torch.finfo(dtype).eps
    error = (gx.movedim(layout.dim, 1).double() - ex).abs()
    if dtype == torch.float32:
        assert error.max() <= 1e-5 * ex.abs().max()
    slope = (a * b).abs().max().item()
    bound = torch.where(moved[0] > 0, 0.0, 4 * eps * slope * moved[1].double().abs())
    assert (error <= bound).all()
    for got, expected in ((ga, ea), (gb, eb)):
        assert (got.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_batch(dtype: torch.dtype) -> None:
    layout = Layout((0, 4, 5))
    y, (gx, ga, gb) = gradients(layout, *arguments(layout, dtype))
    assert y.shape == gx.shape == (0, 4, 5)
    assert ga.tolist() == gb.tolist() == [0.0] * 4


def test_tensors_without_memory_never_reach_the_kernels(launches: list[str]) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    y = mpelu.mpelu(x, 1.0, 1.0)
    assert launches == ["forward"]
    torch.sgn(y).sum().backward()  # with a gradient that is a zero tensor
    assert x.grad is not None
    assert not x.grad.any()
    assert not mpelu.mpelu(torch._efficientzerotensor((2, 3)), 1.0, 1.0).any()
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="expected tensors with memory, got one of shape"):
        mpelu.mpelu(x, 1.0, 1.0)
    assert launches == ["forward"]


@pytest.mark.parametrize("name", ["more tiles than a program takes", "shared", "channels_last"])
def test_two_backward_passes_are_equal_to_the_bit(name: str) -> None:
    first, second = (
        gradients(LAYOUTS[name], *arguments(LAYOUTS[name], torch.float32))[1] for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["planes of odd size", "more rows than a program takes"])
def test_wide_offsets_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a tensor of more than 2^31 elements."""
    values = arguments(LAYOUTS[name], torch.float32)
    y, narrow = gradients(LAYOUTS[name], *values)
    monkeypatch.setattr(Tiling, "is_wide", True)
    z, wide = gradients(LAYOUTS[name], *values)
    assert all(torch.equal(a, b) for a, b in zip((y, *narrow), (z, *wide), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_parameters_of_another_dtype(dtype: torch.dtype) -> None:
    x, grad, a, b = arguments(Layout((3, 5, 70)), torch.float32)
    a, b = (t.detach().to(dtype).requires_grad_() for t in (a, b))
    y, (_, *got) = gradients(Layout((3, 5, 70)), x, grad, a, b)
    _, *exact = reference.gradients(grad, x, a, b)
    assert y.dtype == torch.float32
    for value, expected in zip(got, exact, strict=True):
        assert value.dtype == dtype
        error = (value.double() - expected).abs().max() / expected.abs().max()
        assert error <= 1e-5 + torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", ["expanded", "transposed", "another dtype"])
def test_gradients_in_another_layout(kind: str) -> None:
    x, grad, a, b = arguments(Layout((4, 5, 6)), torch.float32)
    if kind == "expanded":
        grad = torch.tensor(0.7).expand(4, 5, 6)
    elif kind == "transposed":
        grad = torch.randn(6, 5, 4).transpose(0, 2)
    layout = Layout((4, 5, 6))
    if kind == "another dtype":  # autograd casts; the raw operator takes it as it is
        got = torch.ops.mpelu.mpelu_backward(grad.double(), x.detach(), a, b, 1)
    else:
        got = gradients(layout, x, grad, a, b)[1]
    for value, expected in zip(got, reference.gradients(grad, x, a, b), strict=True):
        assert (value.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_slices_of_parameters_and_input(launches: list[str]) -> None:
    base, pairs = torch.randn(6, 4, 10), torch.rand(4, 2) + 0.5
    x, a, b = base[::2, :, 1:9], pairs[:, 0], pairs[:, 1]
    y = mpelu.mpelu(x, a, b)
    assert launches == ["forward"]
    assert reference.units_in_last_place(y, reference.forward(x, a, b)).max() <= 4


def test_the_input_is_kept_whatever_alpha_is() -> None:
    """What is kept doesn't depend on values, which would have to come from the device."""
    for alpha in (1.0, -1.0):
        x = torch.randn(3, 2, requires_grad=True)
        y = mpelu.mpelu(x, torch.full((2,), alpha), torch.ones(2))
        assert y.grad_fn is not None
        assert y.grad_fn.saved_tensors[0].data_ptr() == x.data_ptr()  # type: ignore[attr-defined]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that nobody has told to trust the kernel."""
    monkeypatch.delenv("MPELU_BACKEND")
    monkeypatch.setattr(gpu, "_verdicts", {})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_self_check_passes(unchecked: None, dtype: torch.dtype) -> None:
    found = gpu.verdict(torch.device("cpu"), dtype)
    assert found == (kernels, "agreed with the formula in the self-check")


def test_while_a_graph_is_captured_nothing_is_checked(
    unchecked: None, monkeypatch: pytest.MonkeyPatch, launches: list[str]
) -> None:
    """The formula serves, and the next call outside the capture runs the check."""
    x, grad, a, b = arguments(Layout((3, 5, 70)), torch.float32)
    monkeypatch.setattr(gpu, "_is_capturing", lambda device: True)
    gradients(Layout((3, 5, 70)), x, grad, a, b)
    assert launches == []
    assert gpu._verdicts == {}
    monkeypatch.setattr(gpu, "_is_capturing", lambda device: False)
    gradients(Layout((3, 5, 70)), x, grad, a, b)
    assert gpu._verdicts[x.device, x.dtype].kernel is kernels


BREAKS = {
    "wrong constant": ("_LOG2_E", 1.4427),  # 1 part in 10^6: more than float32's rounding
    "sums not finished": ("finish_kernel", kernels.forward_kernel),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_kernel_is_refused_and_the_numbers_stay_right(
    name: str, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, *BREAKS[name])
    x, grad, a, b = arguments(Layout((3, 5, 70)), torch.float32)
    with pytest.warns(
        RuntimeWarning, match="failed its self-check on cpu for torch.float32"
    ) as got:
        y, (gx, ga, gb) = gradients(Layout((3, 5, 70)), x, grad, a, b)
    assert len(got) == 1
    assert reference.units_in_last_place(y, reference.forward(x, a, b)).max() <= 4
    for value, exact in zip((gx, ga, gb), reference.gradients(grad, x, a, b), strict=True):
        assert (value.double() - exact).abs().max() <= 1e-5 * exact.abs().max()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough
        mpelu.mpelu(x, a, b)
    assert mpelu.kernels.backend().name == "eager"
    assert registry.KERNELS["cpu"][torch.float32] is gpu
