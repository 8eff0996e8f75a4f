"""An OpInfo and a ModuleInfo of MPELU, and what torch.testing has to check them with."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import reference
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close, make_tensor
from torch.testing._internal import composite_compliance
from torch.testing._internal.common_dtype import floating_types_and
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput
from torch.testing._internal.optests.aot_autograd import aot_autograd_check
from torch.testing._internal.optests.fake_tensor import fake_check
from torch.testing._internal.optests.make_fx import make_fx_check

import mpelu
from mpelu import MPELU

DTYPES = floating_types_and(torch.bfloat16, torch.float16)


def samples(
    info: OpInfo, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any
) -> Iterator[SampleInput]:
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    for shape, channels, options in [
        ((), 1, {}),
        ((7,), 1, {}),
        ((2, 3), 3, {}),
        ((2, 3, 5), 3, {}),
        ((2, 3, 5), 5, {"dim": -1}),
        ((2, 3, 4, 4), 1, {}),
        ((0, 3), 3, {}),
    ]:
        for low in (0.2, -2.0):  # the output suffices for backward, or the input is kept
            alpha = make(channels, low=low, high=low + 1.5)
            beta = make(channels, low=0.2, high=2.0)
            yield SampleInput(make(shape, exclude_zero=True), alpha, beta, **options)


def errors(info: OpInfo, device: str, **_: Any) -> Iterator[ErrorInput]:
    x, one = torch.ones(2, 3, device=device), torch.ones(1, device=device)
    for arguments, error, text in [
        ((x.int(), one, one), TypeError, "expected a floating point input"),
        ((x, torch.ones(2), torch.ones(2)), ValueError, "with 1 or 3 values"),
        ((x, one, torch.ones(3)), ValueError, "of the same shape"),
    ]:
        sample = SampleInput(arguments[0], *arguments[1:])
        yield ErrorInput(sample, error_type=error, error_regex=text)


def in_numpy(x: Any, alpha: Any, beta: Any, dim: int = 1) -> Any:
    shape = [1] * x.ndim
    if alpha.size > 1:
        shape[dim] = -1
    a, b = (np.asarray(p, np.float64).reshape(shape) for p in (alpha, beta))
    return np.where(x > 0, x, a * np.expm1(b * np.asarray(x, np.float64).clip(max=0)))


def by_slope(x: Tensor, slope: Tensor, rate: Tensor, **options: Any) -> Tensor:
    return mpelu.mpelu(x, slope=slope, rate=rate, **options)


def by_slope_in_numpy(x: Any, slope: Any, rate: Any, dim: int = 1) -> Any:
    return in_numpy(x, np.asarray(slope, np.float64) / rate, rate, dim)


describe = partial(
    OpInfo,
    dtypes=DTYPES,
    sample_inputs_func=samples,
    error_inputs_func=errors,
    supports_out=False,
    supports_forward_ad=True,
    supports_fwgrad_bwgrad=True,
    supports_inplace_autograd=True,
)
OPERATORS = {
    "alpha, beta": describe("mpelu", op=mpelu.mpelu, ref=in_numpy),
    "slope, rate": describe("mpelu by slope", op=by_slope, ref=by_slope_in_numpy),
}
OPERATOR = OPERATORS["alpha, beta"]


@pytest.fixture(params=OPERATORS)
def operator(request: pytest.FixtureRequest) -> OpInfo:
    return OPERATORS[request.param]


def each(dtype: torch.dtype, requires_grad: bool = False) -> list[SampleInput]:
    torch.manual_seed(0)
    return list(OPERATOR.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def arguments(sample: SampleInput) -> tuple[Tensor, ...]:
    return (sample.input, *sample.args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_equal_the_reference(operator: OpInfo, backend: str, dtype: torch.dtype) -> None:
    for sample in each(dtype):
        got = operator(sample.input, *sample.args, **sample.kwargs)
        x, alpha, beta = (t.double().numpy() for t in arguments(sample))
        assert operator.ref is not None
        expected = torch.as_tensor(operator.ref(x, alpha, beta, **sample.kwargs)).to(dtype)
        assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_strides_and_views_do_not_matter(
    operator: OpInfo, backend: str, dtype: torch.dtype
) -> None:
    for sample in each(dtype, requires_grad=True):
        other = sample.transform(lambda t: noncontiguous_like(t) if isinstance(t, Tensor) else t)
        results = []
        for one in (sample, other):
            y = operator(one.input, *one.args, **one.kwargs)
            results.append((y, *torch.autograd.grad(y.sum(), arguments(one))))
        assert_close(results[1], results[0])


def test_errors_are_as_described() -> None:
    for error in OPERATOR.error_inputs("cpu"):
        sample = error.sample_input
        with pytest.raises(error.error_type, match=error.error_regex):
            OPERATOR(sample.input, *sample.args, **sample.kwargs)


def test_gradcheck_of_every_sample(operator: OpInfo, backend: str) -> None:
    for sample in each(torch.float64, requires_grad=True):
        run = partial(operator.op, **sample.kwargs)
        assert gradcheck(
            run,
            arguments(sample),
            check_forward_ad=True,
            check_batched_grad=True,
            check_batched_forward_grad=True,
        )
        assert gradgradcheck(run, arguments(sample), check_fwd_over_rev=True)


def test_gradcheck_in_place(operator: OpInfo, backend: str) -> None:
    for sample in each(torch.float64, requires_grad=True):
        run = partial(operator.op, inplace=True, **sample.kwargs)
        assert gradcheck(lambda x, a, b, run=run: run(x.clone(), a, b), arguments(sample))


@pytest.mark.parametrize("dynamic", [False, True])
def test_aot_autograd_agrees_with_eager(operator: OpInfo, backend: str, dynamic: bool) -> None:
    for sample in each(torch.float32, requires_grad=True):
        if sample.input.numel():
            aot_autograd_check(operator.op, arguments(sample), sample.kwargs, dynamic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck_of_every_sample(operator: OpInfo, backend: str, dtype: torch.dtype) -> None:
    for sample in each(dtype, requires_grad=True):
        options = {**sample.kwargs, "by_slope": operator.op is by_slope}
        torch.library.opcheck(
            torch.ops.mpelu.mpelu.default, arguments(sample), options, rtol=1e-2, atol=1e-2
        )


def test_fake_tensors_agree(operator: OpInfo, backend: str) -> None:
    for sample in each(torch.float32):
        fake_check(operator.op, arguments(sample), sample.kwargs)
        make_fx_check(operator.op, arguments(sample), sample.kwargs, "fake")


def test_subclasses_see_plain_operations(operator: OpInfo) -> None:
    """torch's check of composite operators: with arguments wrapped in every combination."""
    for sample in each(torch.float32, requires_grad=True):
        composite_compliance.check_with_mode(
            operator.op, arguments(sample), sample.kwargs, assert_equal_fn=assert_close
        )
        composite_compliance.check_forward_ad_formula(
            operator.op, arguments(sample), sample.kwargs, assert_equal_fn=assert_close
        )


def module_samples(
    info: ModuleInfo, device: str, dtype: torch.dtype, requires_grad: bool, training: bool, **_: Any
) -> list[ModuleInput]:
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)

    def exact(module: MPELU, parameters: list[Tensor], x: Tensor) -> Tensor:
        if module.dim != 1:
            x = x.movedim(module.dim, 1)
        first, second = (p.detach().double() for p in parameters)
        if module.coordinates == "slope":
            first = first / second
        y = reference.forward(x, first, second).to(x.dtype)
        return y if module.dim == 1 else y.movedim(1, module.dim)

    return [
        ModuleInput(FunctionInput(), FunctionInput(make((4, 3))), reference_fn=exact),
        ModuleInput(FunctionInput(3, 0.25), FunctionInput(make((4, 3, 5))), reference_fn=exact),
        ModuleInput(
            FunctionInput(5, -1.0, 2.0, dim=-1), FunctionInput(make((4, 3, 5))), reference_fn=exact
        ),
        ModuleInput(FunctionInput(3), FunctionInput(make((2, 3, 4, 4))), reference_fn=exact),
        ModuleInput(
            FunctionInput(3, slope=[0.25, -1.0, 1.0], rate=0.5),
            FunctionInput(make((2, 3, 4, 4))),
            reference_fn=exact,
        ),
    ]


MODULE = ModuleInfo(MPELU, module_inputs_func=module_samples, dtypes=DTYPES)


def modules(dtype: torch.dtype) -> Iterator[tuple[MPELU, Tensor, Any]]:
    for sample in MODULE.module_inputs_func(MODULE, "cpu", dtype, True, True):
        given = sample.constructor_input
        module = MODULE.module_cls(*given.args, **given.kwargs, device="cpu", dtype=dtype)
        yield module, sample.forward_input.args[0], sample.reference_fn


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_modules_equal_their_reference(backend: str, dtype: torch.dtype) -> None:
    for module, x, exact in modules(dtype):
        assert {p.dtype for p in module.parameters()} == {dtype}
        y = module(x)
        assert y.dtype == dtype
        assert_close(y, exact(module, x))
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.eval()):
            assert torch.equal(other(x), y)
        y.sum().backward()
        assert all(p.grad is not None and p.grad.dtype == dtype for p in module.parameters())


def test_gradcheck_of_modules(backend: str) -> None:
    for module, x, _ in modules(torch.float64):
        names = [name for name, _ in module.named_parameters()]

        def run(x: Tensor, *values: Tensor, module: MPELU = module, names: Any = names) -> Tensor:
            state = dict(zip(names, values, strict=True))
            y: Tensor = torch.func.functional_call(module, state, (x,))
            return y

        assert gradcheck(run, (x, *module.parameters()))
        assert gradgradcheck(run, (x, *module.parameters()))


def test_modules_keep_the_memory_format(backend: str) -> None:
    for module, x, _ in modules(torch.float32):
        if x.dim() == 4:
            x = x.detach().to(memory_format=torch.channels_last)
            assert module(x).is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(module(x), module(x.contiguous()))
