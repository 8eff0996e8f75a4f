"""Slope and rate: values and gradients against mpmath, on every way they run, and the module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from mpmath import mpf
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close
from ways import INTERPRETED, Run, needs_native

import mpelu
from mpelu import MPELU, LazyMPELU
from mpelu.kernels import eager, native

SLOPES = (0.0, 1e-6, 0.25, 1.0, 98.0, -1.0)
RATES = (0.0, 1e-8, 1e-4, 0.01, 1.0, 10.0, 50.0)
INPUTS = torch.cat([-torch.logspace(-8, 2, 121), torch.tensor([0.0, 1e-3, 1.0, 100.0])])
INF, NAN = math.inf, math.nan
EAGER = ["triton"] if INTERPRETED else ["avx512", "avx2", "portable", "eager"]


def call(input: Tensor, slope: Tensor, rate: Tensor) -> Tensor:
    return mpelu.mpelu(input, slope=slope, rate=rate)


_compiled = torch.compile(call, fullgraph=True, dynamic=False)


@pytest.fixture(params=EAGER if INTERPRETED else [*EAGER, "compiled native", "compiled formula"])
def way(request: pytest.FixtureRequest) -> Iterator[Run]:
    """call(input, slope, rate) in one of the ways it runs."""
    if request.param in ("avx512", "avx2", "portable", "compiled native"):
        needs_native()
    elif request.param != "triton":
        request.getfixturevalue("eager_only")
    before = None
    if request.param in ("avx512", "avx2", "portable"):
        before = native.library.mpelu_instructions()
        if not native.library.mpelu_select(request.param.encode()):
            pytest.skip(f"this CPU has no {request.param}")
    yield _compiled if "compiled" in request.param else call
    if before is not None:
        native.library.mpelu_select(before)


@cache
def exact(slope: float, rate: float, dtype: torch.dtype) -> Any:
    """Output, and gradients of input, slope and rate, for each of INPUTS."""
    s, b = (mpf(torch.tensor(v, dtype=dtype).item()) for v in (slope, rate))
    rows = []
    with mpmath.workdps(50):
        for value in INPUTS.to(dtype).tolist():
            y = mpf(value)
            if y > 0:
                rows.append([y, 1, 0, 0])
                continue
            t = b * y
            part = mpmath.expm1(t) / b if b else y
            # ((t - 1) e^t + 1) / t^2; 50 digits serve where t isn't 0
            curve = ((t - 1) * mpmath.exp(t) + 1) / t**2 if t else mpf(1) / 2
            rows.append([s * part, s * mpmath.exp(t), part, s * y**2 * curve])
        return np.array([[float(v) for v in row] for row in rows]).T


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("rate", RATES)
def test_values_and_gradients_against_mpmath(
    way: Run, slope: float, rate: float, dtype: torch.dtype
) -> None:
    if INTERPRETED and dtype == torch.float64:
        pytest.skip("there is no GPU kernel for float64")
    count = len(INPUTS)  # a channel for each input, so that nothing is summed up
    x = INPUTS.to(dtype, copy=True)[None].requires_grad_()
    s, b = (torch.full((count,), v, dtype=dtype, requires_grad=True) for v in (slope, rate))
    output = way(x, s, b)
    got = [output[0], *torch.autograd.grad(output, (x, s, b), torch.ones_like(output))]
    wanted = exact(slope, rate, dtype)
    info = torch.finfo(dtype)
    error = np.abs(got[0].detach().double().numpy() - wanted[0])
    last_place = np.exp2(np.floor(np.log2(np.maximum(np.abs(wanted[0]), info.tiny)))) * info.eps
    is_normal = np.abs(rate * INPUTS.double().numpy()) >= info.tiny
    assert (error <= 4 * last_place)[is_normal | (rate == 0)].all()
    if rate == 0:  # PReLU, to the bit
        assert torch.equal(output[0], torch.where(x[0] > 0, x[0], s * x[0]))
    for values, expected in zip(got[1:], wanted[1:], strict=True):
        largest = np.abs(expected).max()
        error = np.abs(values.double().flatten().numpy() - expected).max()
        assert error <= (1e-5 if dtype == torch.float32 else 1e-13) * largest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("slope", [0.25, -1.0, 0.0])
@pytest.mark.parametrize("rate", [0.0, 1e-4, 1.0, 10.0])
def test_half_precision(way: Run, slope: float, rate: float, dtype: torch.dtype) -> None:
    x = (-torch.linspace(0, 8, 4096)[None]).to(dtype).requires_grad_()
    s, b = (torch.tensor([v], requires_grad=True) for v in (slope, rate))
    grad = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    output = way(x, s, b)
    got = torch.autograd.grad(output, (x, s, b), grad)
    wide = [t.detach().double().requires_grad_() for t in (x, s, b)]
    expected_output = eager.forward(wide[0], wide[1], wide[2], 1, True)
    expected = torch.autograd.grad(expected_output, wide, grad.double())
    eps = torch.finfo(dtype).eps
    assert_close(output.double(), expected_output, rtol=2 * eps, atol=1e-6)
    assert_close(got[0].double(), expected[0], rtol=2 * eps, atol=1e-6)
    for one, other in zip(got[1:], expected[1:], strict=True):
        assert one.dtype == torch.float32
        assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "slope", "rate", "expected"),
    [
        (INF, 0.25, 2.0, [INF, 1, 0, 0]),
        (-INF, 0.25, 2.0, [-0.125, 0, -0.5, 0.0625]),
        (-INF, -0.25, 2.0, [0.125, 0, -0.5, -0.0625]),
        (-1e30, 0.25, 2.0, [-0.125, 0, -0.5, 0.0625]),
        (0.0, 3.0, 2.0, [0, 3, 0, 0]),
        (-0.0, 3.0, 0.0, [0, 3, 0, 0]),
        (-2.0, 0.25, 0.0, [-0.5, 0.25, -2, 0.5]),
        (-2.0, 0.0, 0.0, [0, 0, -2, 0]),
        (-1e30, 0.25, 0.0, [-0.25e30, 0.25, -1e30, INF]),
        (NAN, 0.25, 2.0, [NAN] * 4),
        (2.0, NAN, 2.0, [2, 1, 0, 0]),
    ],
)
def test_special_values(
    backend: str, x: float, slope: float, rate: float, expected: list[float]
) -> None:
    values = [torch.tensor([v], requires_grad=True) for v in (x, slope, rate)]
    y = call(*values)
    got = [y.item(), *(g.item() for g in torch.autograd.grad(y, values, torch.ones(1)))]
    assert_close(
        torch.tensor(got), torch.tensor(expected).float(), rtol=1e-5, atol=1e-6, equal_nan=True
    )


def test_minus_infinity_at_rate_zero(way: Run) -> None:
    """As in nn.PReLU; the rate's own gradient is infinite there."""
    for slope in (0.25, -0.25):
        x = torch.tensor([-INF, -1.0, 2.0])
        output = way(x, torch.tensor([slope]), torch.zeros(1))
        assert torch.equal(output, torch.nn.functional.prelu(x, torch.tensor([slope])))


@pytest.mark.parametrize(("slope", "rate"), [(0.5, 1.0), (-0.5, 1.0), (-0.5, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize(
    "shape",
    [(3, 5, 70), (300, 10), (7, 3, 2, 2), (2, 16, 5000), (4099,), (5, 1001), (3, 3, 7, 7), (2, 9)],
)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("way", EAGER, indirect=True)  # compiled code calls the same kernels
def test_every_path_and_every_bit(
    way: Run, shape: tuple[int, ...], slope: float, rate: float, inplace: bool
) -> None:
    """Planes and rows, whole and broken vectors, bits that cross the bytes of other spans."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator).requires_grad_()
    grad = torch.randn(shape, generator=generator)
    channels = shape[1] if len(shape) > 1 else 1
    s = (slope * (1 + torch.rand(channels, generator=generator))).requires_grad_()
    b = (rate * (1 + torch.rand(channels, generator=generator))).requires_grad_()
    output = mpelu.mpelu(x * 1, slope=s, rate=b, inplace=True) if inplace else way(x, s, b)
    got = torch.autograd.grad(output, (x, s, b), grad)
    wide = [t.detach().double().requires_grad_() for t in (x, s, b)]
    expected = eager.forward(wide[0], wide[1], wide[2], 1, True)
    assert_close(output.double(), expected, rtol=1e-6, atol=1e-7)
    exact = torch.autograd.grad(expected, wide, grad.double())
    for one, other in zip(got, exact, strict=True):
        largest = max(1.0, other.abs().max().item())
        assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("by_slope", [False, True])
@pytest.mark.parametrize("layout", ["images", "channels_last", "matrix", "slice"])
def test_bits_do_not_depend_on_threads_or_on_who_reads_them(by_slope: bool, layout: str) -> None:
    needs_native()
    x = torch.randn(37, 6, 33, 31)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "matrix":
        x = torch.randn(5003, 33)
    elif layout == "slice":
        x = x[:, :, ::2]
    first = torch.randn(x.shape[1])
    second = torch.rand(x.shape[1]) + 0.5
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            done = native.forward(x, first, second, 1, by_slope)
            assert done is not None
            output, bits = done
            assert isinstance(bits, Tensor)
            results.append((output, bits[: x.numel() // 8]))
    finally:
        torch.set_num_threads(threads)
    for output, bits in results:
        assert torch.equal(output, results[0][0])
        assert torch.equal(bits, eager.pack(x)[: x.numel() // 8])
    kept = native.forward(x, first, second, 1, by_slope)
    assert kept is not None
    assert isinstance(kept[1], Tensor)
    assert torch.equal(eager.unpack(kept[1], kept[0]), x > 0)


def test_hooks_may_change_the_memory_format_of_what_is_kept(backend: str) -> None:
    x = torch.randn(2, 5, 4, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    module = MPELU(5, alpha=[1.0, -1.0, 0.5, -0.5, 2.0])
    expected = torch.autograd.grad(module(x).square().sum(), (x, module.alpha, module.beta))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        y = module(x)
    got = torch.autograd.grad(y.square().sum(), (x, module.alpha, module.beta))
    assert_close(got, expected)


@pytest.mark.parametrize("start", [{"alpha": 0.0}, {"slope": 0.0}])
def test_a_compiled_scale_of_zero_learns(start: dict[str, float]) -> None:
    """Its input is kept behind the bits, which compiled code can't know beforehand."""
    needs_native()
    x = torch.randn(3, 4, 5)
    compiled, plain = MPELU(4, **start), MPELU(4, **start)  # type: ignore[arg-type]
    run = torch.compile(compiled, fullgraph=True)
    for other in (x, x.transpose(0, 2).contiguous().transpose(0, 2)):
        compiled.zero_grad()
        plain.zero_grad()
        run(other).square().sum().backward()
        (run(other) * x).sum().backward()
        plain(other).square().sum().backward()
        (plain(other) * x).sum().backward()
        for one, two in zip(compiled.parameters(), plain.parameters(), strict=True):
            assert_close(one.grad, two.grad)
        assert next(compiled.parameters()).grad.abs().min() > 0.01  # type: ignore[union-attr]


def test_a_hook_that_drops_the_input_behind_the_bits_is_an_error() -> None:
    needs_native()
    x, zero, one = torch.randn(3, 4), torch.zeros(4, requires_grad=True), torch.ones(4)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        y, _ = torch.ops.mpelu.mpelu_with_bits(x, zero, one)
    with pytest.raises(RuntimeError, match="a hook for saved tensors kept the bits alone"):
        y.sum().backward()


def test_the_operator_with_bits_passes_opcheck(backend: str) -> None:
    x = torch.randn(3, 4, 5, requires_grad=True)
    for sign in (1.0, -1.0, 0.0):
        for by_slope in (False, True):
            s, b = ((torch.rand(4) + 0.5) * v for v in (sign, 1.0))
            arguments = (x, s.requires_grad_(), b.requires_grad_(), 1, by_slope)
            tests = ("test_schema", "test_autograd_registration", "test_faketensor")
            torch.library.opcheck(
                torch.ops.mpelu.mpelu_with_bits.default, arguments, test_utils=tests
            )


@pytest.mark.parametrize("value", [-5.0, 0.0, -1e-9])
def test_a_rate_below_zero_counts_as_zero(way: Run, value: float) -> None:
    x, s, b = torch.tensor([[-3.0, 2.0]]), torch.tensor([2.0, 2.0]), torch.full((2,), value)
    assert_close(way(x, s, b), torch.tensor([[-6.0, 2.0]]))
    assert b.tolist() == torch.full((2,), value).tolist()


@pytest.mark.parametrize("slope", [2.0, -2.0])
def test_the_gradient_passes_where_it_raises_the_rate(backend: str, slope: float) -> None:
    x, s = torch.full((4, 3), -1.0), torch.full((3,), slope)
    b = torch.tensor([-1.0, 0.0, -1e-7], requires_grad=True)
    for direction in (1.0, -1.0):
        grad = torch.full_like(x, direction)
        (got,) = torch.autograd.grad(call(x, s, b), b, grad)
        full = 2.0 * slope * direction  # slope y^2 / 2 summed over four elements
        low = min(full, 0.0)
        assert_close(got, torch.tensor([low, full, low]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("slope", [1.0, -0.5, 0.0])
@pytest.mark.parametrize("rate", [1.0, 1e-4, 0.05])
def test_gradcheck_at_small_rates(backend: str, slope: float, rate: float) -> None:
    x = torch.tensor([[-3.0, -0.5, 2.0, -1e-3, -40.0]], dtype=torch.float64).requires_grad_()
    s, b = (torch.full((5,), v, dtype=torch.float64, requires_grad=True) for v in (slope, rate))
    assert gradcheck(call, (x, s, b), check_forward_ad=True)
    assert gradgradcheck(call, (x, s, b))


def test_numbers_and_what_does_not_go_together() -> None:
    x = torch.linspace(-3, 3, 7)
    assert_close(mpelu.mpelu(x, slope=1.0, rate=1.0), nn.functional.elu(x))
    one = torch.ones(1)
    for options in ({"slope": one}, {"rate": one}, {"alpha": one, "slope": one, "rate": one}, {}):
        with pytest.raises(TypeError, match="expected either alpha and beta or slope and rate"):
            mpelu.mpelu(x, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected slope and rate of the same shape"):
        mpelu.mpelu(x, slope=one, rate=torch.ones(2))


# --- The module ----------------------------------------------------------------------------------


def first(model: nn.Sequential) -> MPELU:
    module = model[0]
    assert isinstance(module, MPELU)
    return module


def test_coordinates_show_in_repr_and_state() -> None:
    module = MPELU(8, slope=0.25, rate=0.0)
    assert repr(module) == "MPELU(num_parameters=8, slope=0.25, rate=0)"
    assert list(module.state_dict()) == ["slope", "rate"]
    assert module.coordinates == "slope"
    assert MPELU(8).coordinates == MPELU.relu().coordinates == MPELU.elu().coordinates == "paper"
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_both_coordinates_can_be_read_from_both() -> None:
    paper, slope = MPELU(2, alpha=[2.0, -0.5], beta=[0.5, 3.0]), MPELU(2, slope=0.25, rate=[0.5, 0])
    assert_close([paper.slope, paper.rate], [torch.tensor([1.0, -1.5]), torch.tensor([0.5, 3.0])])
    assert_close(
        [slope.alpha, slope.beta], [torch.tensor([0.5, 0.25e6]), torch.tensor([0.5, 1e-6])]
    )
    assert slope.alpha.requires_grad


def test_a_state_dict_of_the_other_coordinates_is_converted() -> None:
    alpha, beta = torch.randn(1000), torch.rand(1000) + 1e-3
    beta[0] = -1.0  # counts as 1e-6
    state = {"0.alpha": alpha, "0.beta": beta}
    model = nn.Sequential(MPELU(1000, slope=0.1))
    model.load_state_dict(state)
    assert list(state) == ["0.alpha", "0.beta"]
    product = alpha.double() * beta.double().clamp(min=1e-6)
    assert_close(first(model).slope.detach().double(), product, rtol=2.0**-23, atol=0)
    assert_close(first(model).rate.detach(), beta.clamp(min=1e-6))
    x = torch.randn(3, 1000)
    back = MPELU(1000)
    back.load_state_dict(first(model).state_dict())
    assert_close(back(x), model(x))
    assert_close(back.alpha.detach(), alpha, rtol=2.0**-22, atol=0)
    lazy = LazyMPELU(slope=0.5)
    lazy.load_state_dict({"alpha": alpha, "beta": beta})
    assert_close(lazy(x), model(x))


def test_a_rate_that_alpha_and_beta_cannot_express_is_refused() -> None:
    model = nn.Sequential(MPELU(3))
    with pytest.raises(RuntimeError, match=r"\t0.rate is below 1e-06, which alpha and beta can't"):
        model.load_state_dict(nn.Sequential(MPELU.prelu(3)).state_dict())
    assert first(model).alpha.tolist() == [1.0] * 3


def test_lazy_modules_have_coordinates_too() -> None:
    lazy = LazyMPELU(slope=0.1, rate=0.0)
    assert repr(lazy) == "LazyMPELU(num_parameters=?, slope=0.1, rate=0)"
    lazy(torch.randn(2, 6))
    assert type(lazy) is MPELU
    assert lazy.slope.tolist() == pytest.approx([0.1] * 6)
    with pytest.raises(ValueError, match="expected rate >= 0"):
        LazyMPELU(rate=-1.0)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_torchscript(rate: float) -> None:
    module = MPELU(3, slope=[0.25, -1.0, 98.0], rate=rate)
    scripted = torch.jit.script(module)
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(4, 3).to(dtype)
        assert_close(scripted(x), module(x))
        grads = []
        for each in (scripted, module):
            y = each(x)
            parameters = dict(each.named_parameters())
            pair = (parameters["slope"], parameters["rate"])
            grads.append(torch.autograd.grad(y.square().sum(), pair))
        assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)


def test_programs_for_others_have_plain_operations() -> None:
    module = MPELU(3, slope=[0.25, -1.0, 98.0], rate=[0.0, 1.0, 0.01])
    x = torch.cat([-torch.logspace(-6, 2, 50), torch.randn(50)])[:, None].expand(100, 3)
    program = torch.export.export(module, (x,))
    assert not any("mpelu" in str(node.target) for node in program.graph.nodes)
    assert_close(program.module()(x), module(x))
    traced: Callable[[Tensor], Tensor] = torch.jit.trace(module, (x,))
    assert_close(traced(x), module(x))


def test_networks_of_identities_learn_where_the_papers_start_does_not() -> None:
    """The start of (B): its gradient of beta is alpha times as large."""
    torch.manual_seed(0)
    x, weight = torch.randn(256, 16), torch.randn(16, 16) / 4
    target = torch.tanh(x @ weight)

    def loss_after(make: Callable[[], MPELU]) -> float:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 16), make(), nn.Linear(16, 16), make())
        update = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for _ in range(100):
            update.zero_grad()
            loss = (model(x) - target).square().mean()
            loss.backward()
            update.step()
        return float(loss.item())

    assert loss_after(lambda: MPELU.identity(16)) < 0.05
    paper = loss_after(lambda: MPELU(16, alpha=98.0, beta=0.01))
    assert not paper < 0.1
