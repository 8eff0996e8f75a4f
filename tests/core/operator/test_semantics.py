"""What docs/semantics.md says: special values, what is kept, derivatives, determinism."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.testing import assert_close
from ways import Run, needs_native

import mpelu
from mpelu import MPELU
from mpelu.lab import load_network

WEIGHTS = Path(__file__).parents[3] / "docs/results/weights"
NAMES = ("resnet-20-relu", "resnet-20-mpelu")
INF, NAN = math.inf, math.nan


def gradients(run: Run, x: float, alpha: float, beta: float) -> list[float]:
    """Output, and gradients of input, alpha and beta, for one element."""
    values = [torch.tensor([v], requires_grad=True) for v in (x, alpha, beta)]
    y = run(values[0], values[1], values[2])
    return [y.item(), *(g.item() for g in torch.autograd.grad(y, values, torch.ones(1)))]


@pytest.mark.parametrize(
    ("x", "alpha", "expected"),
    [
        # input, alpha -> output, gradients of input, alpha and beta (beta = 0.5)
        (INF, 2.0, [INF, 1, 0, 0]),
        (-INF, 2.0, [-2, 0, -1, 0]),
        (-1e30, 2.0, [-2, 0, -1, 0]),
        (0.0, 3.0, [0, 1.5, 0, 0]),  # the derivative at 0 is alpha beta, the one from the left
        (-0.0, 3.0, [0, 1.5, 0, 0]),
        (2.0, 0.0, [2, 1, 0, 0]),
        (-2.0, 0.0, [0, 0, math.expm1(-1), 0]),  # ReLU, but alpha still learns
        (-2.0, -1.0, [-math.expm1(-1), -0.5 * math.exp(-1), math.expm1(-1), 2 * math.exp(-1)]),
    ],
)
def test_special_values(run: Run, x: float, alpha: float, expected: list[float]) -> None:
    got = gradients(run, x, alpha, 0.5)
    assert_close(torch.tensor(got), torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [2.0, -2.0, 1e-21])
def test_minus_infinity(backend: str, alpha: float) -> None:
    """Where the input is kept, e^(beta y) stops at 2^-126."""
    output, x, a, b = gradients(mpelu.mpelu, -INF, alpha, 0.5)
    assert output == torch.tensor(-alpha).item()
    assert a == -1
    if backend == "native" and alpha == 1e-21:
        assert x == pytest.approx(2.0**-126 * alpha * 0.5)
        assert b == pytest.approx(-1.03e-36 * alpha / 0.5, rel=0.01)
    else:
        assert x == b == 0


@pytest.mark.parametrize("program", ["traced", "exported"])
def test_a_nan_input_has_no_gradient_in_programs_for_others(program: str) -> None:
    module, example = MPELU(2), (torch.ones(1, 2),)
    other: Callable[[torch.Tensor], torch.Tensor] = {
        "traced": lambda: torch.jit.trace(module, example),  # type: ignore[no-untyped-call]
        "exported": lambda: torch.export.export(module, example).module(),
    }[program]()
    x = torch.tensor([[NAN, 1.0]], requires_grad=True)
    y: torch.Tensor = other(x)
    assert y.isnan().tolist() == [[True, False]]
    (got,) = torch.autograd.grad(y.sum(), x)
    assert got.tolist() == [[0.0, 1.0]]


def test_nan_goes_through(run: Run) -> None:
    x, one = torch.tensor([NAN, 1.0]), torch.ones(1)
    assert run(x, one, one).isnan().tolist() == [True, False]


def test_gradients_of_nan_are_nan(backend: str) -> None:
    assert all(math.isnan(value) for value in gradients(mpelu.mpelu, NAN, 2.0, 0.5))


def test_an_infinite_gradient_of_a_positive_input_leaves_the_parameters_alone(run: Run) -> None:
    x = torch.tensor([1.0, -1.0])
    a, b = torch.tensor([2.0], requires_grad=True), torch.tensor([0.5], requires_grad=True)
    ga, gb = torch.autograd.grad(run(x, a, b), (a, b), torch.tensor([INF, 1.0]))
    assert_close(ga, torch.tensor([math.expm1(-0.5)]))
    assert_close(gb, torch.tensor([-2 * math.exp(-0.5)]))


def test_infinite_alpha(backend: str) -> None:
    """-inf below zero, with gradients that show it; positive inputs are not affected."""
    assert gradients(mpelu.mpelu, 2.0, INF, 0.5) == [2, 1, 0, 0]
    got = gradients(mpelu.mpelu, -2.0, INF, 0.5)
    assert got == [-INF, INF, pytest.approx(math.expm1(-1)), -INF]
    assert math.isnan(gradients(mpelu.mpelu, 0.0, INF, 0.5)[0])  # inf times zero


def test_nan_parameters(run: Run) -> None:
    one, nan, x = torch.ones(1), torch.tensor([NAN]), torch.tensor([-1.0, 1.0])
    for y in (run(x, nan, one), run(x, one, nan)):
        assert y.isnan().tolist() == [True, False]


@pytest.mark.parametrize("depth", [14.0, 10.0])
def test_gradient_of_beta_from_a_saturated_output(backend: str, depth: float) -> None:
    """At beta y = -14 the output holds beta's gradient to 7 %; the gradient is 1e-5 there."""
    x = torch.full((1000,), -depth) - torch.linspace(0, 0.1, 1000)
    a, b = torch.ones(1), torch.ones(1, requires_grad=True)
    (got,) = torch.autograd.grad(mpelu.mpelu(x, a, b).mean(), b)
    exact = (x.double() * x.double().exp()).mean().item()
    assert got.item() == pytest.approx(exact, rel=0.07 if depth > 12 else 2e-3)


def test_what_is_kept_follows_the_values(backend: str) -> None:
    """In the middle of a training too: the output, then bits with it, then the input."""
    module = MPELU(2)
    x = torch.randn(3, 2, requires_grad=True)

    def kept() -> list[int]:
        addresses: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            addresses.append(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs.append(module(x))
        return [
            each
            for each in addresses
            if each not in (module.alpha.data_ptr(), module.beta.data_ptr())
        ]

    outputs: list[torch.Tensor] = []
    for alpha, count in ((1.0, 1), (-0.1, 2), (0.0, 1)):
        with torch.no_grad():
            module.alpha[1] = alpha
        addresses = kept()
        assert addresses[0] == (outputs[-1] if alpha else x).data_ptr()
        assert len(addresses) == count


def kept_bytes(model: torch.nn.Module, x: torch.Tensor) -> int:
    """What autograd keeps, each storage once, without the input and the parameters."""
    storages: dict[int, int] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # called from compiled code
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    for tensor in (x, *model.parameters()):
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    del output
    return sum(storages.values())


def test_a_trained_network_keeps_what_it_keeps_with_relu(backend: str) -> None:
    if backend == "triton":
        pytest.skip("on a GPU the input is always kept")
    relu, trained = (load_network(WEIGHTS / name).model.train() for name in NAMES)
    x = torch.randn(2, 3, 32, 32)
    activations = [module for module in trained.modules() if isinstance(module, MPELU)]
    negative = [int((module.alpha <= 0).sum()) for module in activations]
    assert sum(negative) == 380
    assert sum(module.num_parameters for module in activations) == 688
    assert [count > 0 for count in negative].count(True) == 18
    assert len(activations) == 19
    as_relu = kept_bytes(relu, x)
    assert 1.01 < kept_bytes(trained, x) / as_relu < 1.02  # a bit for 32
    for module in activations:
        torch.nn.init.ones_(module.alpha)
    assert kept_bytes(trained, x) / as_relu == pytest.approx(1, abs=0.001)


def partitioned_bytes(model: torch.nn.Module, x: torch.Tensor) -> int:
    """What a compiled model hands from forward to backward, without input and parameters."""
    found: list[int] = []

    def count(graph: torch.fx.GraphModule, _: object) -> Any:
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        kept = {node for node in outputs[1:] if node is not None and node.op != "placeholder"}
        found.append(sum(v.numel() * v.element_size() for v in (n.meta["val"] for n in kept)))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=count,
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch.compile(model, backend=backend, fullgraph=True)(x)
    return found[0]


def test_a_compiled_trained_network_keeps_what_it_keeps_with_relu() -> None:
    needs_native()
    relu, trained = (load_network(WEIGHTS / name).model.train() for name in NAMES)
    x = torch.randn(2, 3, 32, 32)
    assert partitioned_bytes(trained, x) / partitioned_bytes(relu, x) <= 1.04


@pytest.mark.parametrize("alpha", [1.0, -1.0, 0.0])
def test_changes_in_place_before_backward(backend: str, alpha: float) -> None:
    """What is kept must stay: the output as after nn.ReLU, or the input."""
    module = MPELU(alpha=alpha)
    for changed in ("output", "input"):
        x = torch.randn(3).requires_grad_() * 1
        y = module(x)
        (y if changed == "output" else x).add_(1)
        if (changed == "output") == (alpha != 0):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
        else:
            y.sum().backward()


def test_a_subnormal_exponent_costs_digits(run: Run) -> None:
    alpha, beta = 1e4, 1e-4
    x = -torch.logspace(-44, -30, 10001)
    exact = alpha * torch.expm1(torch.tensor(beta).double() * x.double())
    error = (run(x, torch.tensor([alpha]), torch.tensor([beta])).double() - exact).abs()
    assert (error <= 4 * 2.0**-23 * exact.abs() + 2 * alpha * 2.0**-149).all()


def test_results_do_not_depend_on_batch_or_run(backend: str) -> None:
    module = MPELU(5, torch.linspace(0.1, 2, 5), torch.linspace(2, 0.1, 5))
    x = torch.randn(64, 5, 9, 9)
    whole = module(x)
    assert torch.equal(torch.cat([module(part) for part in x.split(7)]), whole)
    assert torch.equal(module(x), whole)
    with torch.no_grad():
        assert torch.equal(mpelu.mpelu(x.clone(), module.alpha, module.beta, inplace=True), whole)


FORK = """
import os, torch, mpelu
torch.set_num_threads(1)
module = mpelu.MPELU(4)
module(torch.randn(64, 4, 64, 64))
if (child := os.fork()) == 0:
    module(torch.randn(64, 4, 64, 64))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_use_on_one_thread() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)
