"""torch.func and forward-mode AD, compiled or not; and what raw operators refuse."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache

import pytest
import reference
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

import mpelu
from mpelu import MPELU

DTYPES = [torch.float32, torch.bfloat16, torch.float64]
ALPHA, BETA = [0.5, 2.0, -1.0], [1.0, 0.3, 2.0]


def module(dtype: torch.dtype) -> MPELU:
    return MPELU(3, ALPHA, BETA, dtype=dtype)


def loss(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return mpelu.mpelu(x, alpha, beta).square().sum()


TRANSFORMS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "jvp": lambda x, a, b: torch.func.jvp(
        mpelu.mpelu, (x, a, b), (torch.ones_like(x), torch.ones_like(a), torch.ones_like(b))
    ),
    "jacfwd": lambda x, a, b: torch.func.jacfwd(mpelu.mpelu, (0, 1, 2))(x, a, b),
    "jacrev": lambda x, a, b: torch.func.jacrev(mpelu.mpelu, (0, 1, 2))(x, a, b),
    "grad": lambda x, a, b: torch.func.grad(loss, (0, 1, 2))(x, a, b),
    "vmap": lambda x, a, b: torch.func.vmap(mpelu.mpelu, (0, None, None))(x[:, None], a, b),
    "vmap of grad": lambda x, a, b: torch.func.vmap(
        torch.func.grad(loss, (0, 1, 2)), (0, None, None)
    )(x[:, None], a, b),
    "hessian": lambda x, a, b: torch.func.hessian(loss, (0, 1, 2))(x, a, b),
}


@cache
def has_compiled_jacobians() -> bool:
    """torch 2.8 and older can't trace jacfwd and hessian of any function of two arguments."""
    jacobian = torch.func.jacfwd(torch.mul, (0, 1))
    try:
        torch.compile(jacobian, backend="eager", fullgraph=True)(torch.ones(2), torch.ones(2))
    except torch._dynamo.exc.Unsupported:
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_compiled_transforms_equal_eager_ones(name: str, dtype: torch.dtype) -> None:
    if name in ("jacfwd", "hessian") and not has_compiled_jacobians():
        pytest.skip("this torch cannot compile jacfwd of any function")
    m = module(dtype)
    x = torch.tensor([[1.0, -1.0, -0.3], [-2.0, 0.5, 0.1]], dtype=dtype)
    arguments = (x, m.alpha.detach(), m.beta.detach())
    expected = TRANSFORMS[name](*arguments)
    got = torch.compile(TRANSFORMS[name], fullgraph=True)(*arguments)
    assert_close(got, expected)
    flat = torch.utils._pytree.tree_leaves(expected)
    assert any(tensor.any() for tensor in flat)


def test_the_eager_jvp_is_the_derivative() -> None:
    m = module(torch.float32)
    x = torch.randn(4, 3)
    tangent = torch.func.jvp(m, (x,), (torch.ones_like(x),))[1]
    exact, _, _ = reference.gradients(torch.ones_like(x), x, m.alpha, m.beta)
    assert_close(tangent.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_dual_numbers(compiled: bool) -> None:
    """Compiled by Dynamo alone: AOTAutograd has no forward mode, for torch's own modules either."""
    m = module(torch.float32)
    run = torch.compile(m, backend="eager", fullgraph=True) if compiled else m
    x = torch.tensor([[1.0, -1.0, -0.3]])
    with forward_ad.dual_level():
        try:
            y = run(forward_ad.make_dual(x, torch.ones_like(x)))
        except torch._dynamo.exc.Unsupported:
            pytest.skip("this torch refuses dual tensors in compiled code")
        tangent = forward_ad.unpack_dual(y).tangent
        exact, _, _ = reference.gradients(torch.ones_like(x), x, m.alpha, m.beta)
        assert_close(tangent.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_per_sample_gradients_of_a_network(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), MPELU(3), torch.nn.Linear(3, 1)).to(dtype)
    values = {name: p.detach() for name, p in model.named_parameters()}

    def cost(values: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model, values, (x[None],))
        return y.square().sum()

    each = torch.func.vmap(torch.func.grad(cost), (None, 0))
    x = torch.randn(5, 4, dtype=dtype)
    bound = 0.05 if dtype == torch.bfloat16 else None
    got = torch.compile(each, fullgraph=True)(values, x)
    assert_close(got, each(values, x), rtol=bound, atol=bound)


def test_jacobian_with_batched_gradients(backend: str) -> None:
    """autograd's own batching, which no transform announces."""
    m = module(torch.float32)
    x = torch.randn(2, 3)
    batched = torch.autograd.functional.jacobian(m, x, vectorize=True)
    assert_close(batched, torch.autograd.functional.jacobian(m, x))


DENSE = torch.randn(2, 3, 4, 5)
IN_MEMORY = {
    "contiguous": DENSE,
    "channels_last": DENSE.contiguous(memory_format=torch.channels_last),
    "transposed": DENSE.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0),
    "sliced": torch.randn(2, 6, 4, 10)[:, ::2, :, ::2],
    "expanded": DENSE[:1].expand(2, 3, 4, 5),
    "negative": torch._neg_view(DENSE),
    "bfloat16": DENSE.bfloat16(),
}


@pytest.mark.parametrize("layout", IN_MEMORY)
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["keeps output", "keeps input"])
def test_batched_gradients_equal_a_loop(backend: str, layout: str, sign: float) -> None:
    """In every layout, also where the incoming gradients have another; below beta's bound too."""
    x = IN_MEMORY[layout].detach().requires_grad_()
    a = torch.tensor([0.5, sign, 2.0], requires_grad=True)
    b = torch.tensor([1.0, 0.5, -1.0], requires_grad=True)
    y = mpelu.mpelu(x, a, b)
    plain = torch.randn(4, *y.shape).to(y.dtype)
    bound = 1e-2 if y.dtype is torch.bfloat16 else None  # its last digit
    last = plain.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3)
    for grads in (plain, last, plain[:1].expand_as(plain)):
        loop = [torch.autograd.grad(y, (x, a, b), g, retain_graph=True) for g in grads]
        expected = tuple(map(torch.stack, zip(*loop, strict=True)))

        def each(g: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(y, (x, a, b), g, retain_graph=True)

        batched = torch.autograd.grad(y, (x, a, b), grads, retain_graph=True, is_grads_batched=True)
        assert_close(batched, expected, rtol=bound, atol=bound)
        assert_close(torch.vmap(each)(grads), expected, rtol=bound, atol=bound)

    def some(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return mpelu.mpelu(x, a, b)[:, :, 1, :2].flatten()

    jacobian: Callable[..., object] = torch.autograd.functional.jacobian
    each_row = jacobian(some, (x, a, b))
    assert_close(jacobian(some, (x, a, b), vectorize=True), each_row, rtol=bound, atol=bound)


def test_a_tensor_that_escaped_from_a_transform(backend: str) -> None:
    escaped: list[Tensor] = []

    def total(x: Tensor) -> Tensor:
        escaped.append(x)
        return x.sum()

    torch.func.grad(total)(torch.tensor([[-1.0, 1.0, 2.0]]))
    assert_close(module(torch.float32)(escaped[0])[0, 1:], torch.tensor([1.0, 2.0]))


def test_a_view_with_the_negative_bit(backend: str) -> None:
    x = torch.tensor([[-1.0, 2.0, -3.0]])
    m = module(torch.float32)
    with torch.no_grad():
        expected = m(-x)
        assert torch.equal(m(torch._neg_view(x)), expected)
        view = torch._neg_view(x.clone())
        assert mpelu.mpelu(view, m.alpha, m.beta, inplace=True) is view
        assert torch.equal(view, expected)
        minus = torch._neg_view(-m.alpha.detach())
        assert torch.equal(mpelu.mpelu(x, minus, m.beta), m(x))
    y = m(x.requires_grad_())
    (got,) = torch.autograd.grad(y, x, torch._neg_view(torch.ones_like(y)), retain_graph=True)
    assert torch.equal(got, -torch.autograd.grad(y, x, torch.ones_like(y))[0])


def test_other_layouts_are_refused_in_words() -> None:
    dense = torch.ones(2, 3)
    with pytest.raises(TypeError, match=r"expected a dense input, .*mkldnn; convert it with"):
        module(torch.float32)(dense.to_mkldnn())
    with pytest.raises(TypeError, match="expected a dense input"):
        module(torch.float32)(dense.to_sparse())


def test_in_place_on_slices_costs_at_most_two_copies_more(backend: str) -> None:
    """One kernel serves slices too: the same bits as out of place."""
    base = torch.randn(4, 6, 8)
    m = MPELU(3, ALPHA, BETA)
    for part in (base[:, ::2], base[:, :3], base.transpose(0, 1)[:3].transpose(0, 1)):
        with torch.no_grad():
            expected = m(part)
            copy = base.clone()
            view = copy.as_strided(part.shape, part.stride(), part.storage_offset())
            mpelu.mpelu(view, m.alpha, m.beta, inplace=True)
        assert torch.equal(view, expected)
        assert (copy != base).sum() == (expected != part).sum()


CALLS = """
operator, backward = torch.ops.mpelu.mpelu, torch.ops.mpelu.mpelu_backward
x, one, four = -torch.ones(2, 3), torch.ones(1), torch.ones(4)
calls = {
    "more values than channels": lambda: operator(x, torch.ones(64), torch.ones(64)),
    "other values than channels": lambda: operator(x, four, four),
    "beta shorter than alpha": lambda: operator(torch.ones(2, 4), four, torch.ones(2)),
    "alpha shorter than beta": lambda: operator(torch.ones(2, 1), one, four),
    "no values": lambda: operator(x, torch.ones(0), torch.ones(0)),
    "a number as alpha": lambda: operator(x, torch.ones(()), torch.ones(())),
    "no such dimension": lambda: operator(x, torch.ones(3), torch.ones(3), 5),
    "no such dimension from the end": lambda: operator(x, torch.ones(3), torch.ones(3), -3),
    "bool": lambda: operator(x > 0, one, one),
    "int": lambda: operator(x.int(), one, one),
    "complex": lambda: operator(x.cfloat(), one, one),
    "int alpha": lambda: operator(x, one.int(), one),
    "complex beta": lambda: operator(x, one, one.cfloat()),
    "meta alpha": lambda: operator(x, one.to("meta"), one),
    "sparse": lambda: operator(x.to_sparse(), one, one),
    "mkldnn": lambda: operator(x.to_mkldnn(), one, one),
    "backward: values": lambda: backward(x, x, four, four, 1, False, True),
    "backward: gradient": lambda: backward(torch.ones(1), x, one, one, 1, False, True),
    "backward: int gradient": lambda: backward(x.int(), x, one, one, 1, False, True),
    "backward: meta gradient": lambda: backward(x.to("meta"), x, one, one, 1, False, True),
    "backward: dimension": lambda: backward(x, x, torch.ones(3), torch.ones(3), 7),
}
"""


def test_raw_operators_refuse_what_does_not_fit() -> None:
    """In a process of its own: a wrong size used to end it with a signal."""
    code = (
        "import torch, mpelu.functional\n"
        + textwrap.dedent(CALLS)
        + textwrap.dedent(
            """
        for name, call in calls.items():
            try:
                call()
            except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
                print(name, "->", str(error).splitlines()[0])
            else:
                print(name, "was accepted")
        """
        )
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "was accepted" not in result.stdout
    assert result.stdout.count("->") == 21


def test_parameters_swapped_between_forward_and_backward(backend: str) -> None:
    """`.data` moves no version counter: sizes and dtypes are looked at once more."""
    m = MPELU(3)
    y = m(-torch.rand(2, 3))
    m.alpha.data, m.beta.data = torch.ones(2), torch.ones(2)
    with pytest.raises((ValueError, RuntimeError)):
        y.sum().backward()


def test_values_written_through_data_are_seen(backend: str) -> None:
    """A cache by version counters would miss them."""
    m = MPELU(2)
    x = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    m(x)
    m.alpha.data.fill_(-1.0)
    y = m(x)
    grads = torch.autograd.grad(y.sum(), (x, m.alpha, m.beta))
    exact = reference.gradients(torch.ones(1, 2), x, m.alpha, m.beta)
    for got, expected in zip(grads, exact, strict=True):
        assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
