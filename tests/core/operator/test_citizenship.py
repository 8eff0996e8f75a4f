"""The operator in torch's company: compile, export, transforms, autocast, DDP, ONNX, ..."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import mpelu
from mpelu import MPELU


def parameters(
    channels: int, dtype: torch.dtype = torch.float64, sign: float = 1.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    alpha = sign * (0.5 + torch.rand(channels, generator=generator, dtype=dtype))
    beta = 0.5 + torch.rand(channels, generator=generator, dtype=dtype)
    return alpha.requires_grad_(), beta.requires_grad_()


def small_net(inplace: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), MPELU(4, inplace=inplace), nn.Conv2d(4, 2, 3), MPELU())


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["saved output", "saved input"])
def test_gradcheck_and_gradgradcheck(sign: float) -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    arguments = (x, *parameters(4, sign=sign))
    assert torch.autograd.gradcheck(
        mpelu.mpelu,
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(mpelu.mpelu, arguments)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["saved output", "saved input"])
def test_second_derivatives_where_another_path_requires_grad(backend: str, sign: float) -> None:
    """An opaque backward would silently leave out its own share of the Hessian."""
    x = torch.randn(3, 4, 5, requires_grad=True)
    weight = torch.randn(3, 4, 5, requires_grad=True)
    a, b = parameters(4, torch.float32, sign)

    def hessian_products(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        (g,) = torch.autograd.grad((function(x, a, b) * weight).sum(), x, create_graph=True)
        return torch.autograd.grad((g**2).sum(), (x, weight, a, b))

    exact = hessian_products(mpelu.kernels.eager.forward)
    for got, expected in zip(hessian_products(mpelu.mpelu), exact, strict=True):
        assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_second_derivative_is_finite_in_saturation() -> None:
    x = torch.tensor([-1e3, -50.0, -1.0, 2.0], requires_grad=True)
    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    gradients = torch.autograd.grad(mpelu.mpelu(x, a, b).sum(), (x, a, b), create_graph=True)
    second = torch.autograd.grad(torch.stack([g.sum() for g in gradients]).sum(), (x, a, b))
    assert all(g.isfinite().all() for g in second)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["saved output", "saved input"])
def test_registered_operators_pass_opcheck(backend: str, sign: float) -> None:
    a, b = parameters(4, torch.float32, sign)
    x = torch.randn(3, 4, 5, requires_grad=True)
    torch.library.opcheck(torch.ops.mpelu.mpelu.default, (x, a, b))
    plain = [t.detach() for t in (torch.randn(3, 4, 5), x, a, b)]
    torch.library.opcheck(torch.ops.mpelu.mpelu_backward.default, (*plain, 1))


def test_functional_transforms() -> None:
    module = MPELU(4, alpha=0.5)
    values = {name: p.detach() for name, p in module.named_parameters()}
    x = torch.randn(6, 3, 4, 5)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(module, values, (x,))
        return y.sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, x)
    for i in range(6):
        _, ga, gb = reference.gradients(torch.ones(3, 4, 5), x[i], *values.values())
        assert_close(each["alpha"][i].double(), ga, rtol=1e-5, atol=1e-5)
        assert_close(each["beta"][i].double(), gb, rtol=1e-5, atol=1e-5)
    assert_close(torch.vmap(module)(x), module(x.flatten(0, 1)).view_as(x))
    tangent = torch.func.jvp(module, (x[0],), (torch.ones(3, 4, 5),))[1]
    exact, _, _ = reference.gradients(torch.ones(3, 4, 5), x[0], *values.values())
    assert_close(tangent.double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.func.hessian(lambda x: module(x).sum())(torch.randn(2, 4)).shape == (2, 4, 2, 4)


@pytest.mark.parametrize("inplace", [False, True])
def test_compile_of_a_network(inplace: bool) -> None:
    model = small_net(inplace)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(2, 3, 8, 8)
    y = compiled(x)
    y.square().sum().backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    expected = model(x)
    expected.square().sum().backward()
    assert_close(y, expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert_close(got[name], parameter.grad, rtol=1e-4, atol=1e-4)


def test_the_operator_itself_compiles(backend: str) -> None:
    a, b = parameters(4, torch.float32)
    x = torch.randn(3, 4, 5, requires_grad=True)
    compiled = torch.compile(
        lambda x: torch.ops.mpelu.mpelu(x, a, b), fullgraph=True, backend="aot_eager"
    )
    y = compiled(x)
    grads = torch.autograd.grad(y.sum(), (x, a, b))
    for got, expected in zip(grads, reference.gradients(torch.ones(3, 4, 5), x, a, b), strict=True):
        assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strict", [True, False])
def test_export_to_plain_operations(strict: bool) -> None:
    model = small_net().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    x = torch.randn(4, 3, 8, 8)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=strict)
    assert not any("mpelu" in str(node.target) for node in program.graph.nodes)
    other = torch.randn(7, 3, 8, 8)
    assert_close(program.module()(other), model(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export")
@pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning")
def test_onnx_is_equal_in_onnxruntime(tmp_path: Path, dynamo: bool) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = MPELU(4, alpha=[98.0, 1.0, 0.25, -2.0], beta=[0.01, 1.0, 1.0, 3.0]).eval()
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, (torch.randn(2, 4, 50),), path, dynamo=dynamo, verbose=False)
    assert {node.domain for node in onnx.load(path).graph.node} == {""}
    magnitudes = torch.logspace(-8, 2, 50)
    x = torch.cat([-magnitudes, magnitudes]).view(2, 1, 50).expand(2, 4, 50).contiguous()
    session = runtime.InferenceSession(path)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_close(torch.from_numpy(y), model(x).detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(backend: str, dtype: torch.dtype) -> None:
    model = small_net()
    activation = model[1]
    assert isinstance(activation, MPELU)
    with torch.autocast("cpu", dtype):
        y = model(torch.randn(2, 3, 8, 8))
    y.float().sum().backward()
    assert y.dtype == dtype
    assert activation.alpha.grad is not None
    assert activation.alpha.grad.dtype == torch.float32
    assert activation.alpha.grad.isfinite().all()


def test_activation_checkpointing(backend: str) -> None:
    model = small_net()
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    (got,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(got, expected)


def test_parametrized_and_swapped_parameters(backend: str) -> None:
    """Where alpha and beta aren't among the module's own parameters."""

    class Double(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return 2 * value

    module, x = MPELU(3), -torch.rand(2, 3)
    expected = MPELU(3, alpha=2.0)(x)
    nn.utils.parametrize.register_parametrization(module, "alpha", Double())
    assert_close(module(x), expected)


def test_fx_keeps_the_function_as_one_node() -> None:
    traced = torch.fx.symbolic_trace(small_net())
    calls = [node for node in traced.graph.nodes if node.target is mpelu.mpelu]
    assert len(calls) == 2
    x = torch.randn(2, 3, 8, 8)
    assert_close(traced(x), small_net()(x))


def test_fake_tensors_and_dispatch_modes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode():
        assert MPELU(4)(torch.randn(2, 4)).shape == (2, 4)
        assert mpelu.mpelu(torch.randn(4), torch.ones(1), torch.ones(1), inplace=True).shape == (4,)
    module, x = MPELU(4), torch.randn(2, 4)
    assert_close(make_fx(module)(torch.randn(2, 4))(x), module(x))
    with FlopCounterMode(display=False):
        assert MPELU(4)(torch.ones(2, 4)).shape == (2, 4)


def _train_rank(
    rank: int, port: int, results: SimpleQueue[tuple[int, dict[str, list[Any]]]]
) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(small_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        optimizer.zero_grad()
        model(images[rank::2]).square().mean().backward()
        optimizer.step()
    state = {name: value.tolist() for name, value in model.module.state_dict().items()}
    results.put((rank, state))
    torch.distributed.barrier()
    # On the way out, gloo's threads and the reducer sometimes wait for each other or abort.
    os._exit(0)


def test_distributed_data_parallel() -> None:
    """Two processes with half of the batch each learn what one learns with all of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=_train_rank, args=(r, port, results)) for r in range(2)]
    for process in processes:
        process.start()
    states = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert states[0] == states[1]

    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert_close(torch.tensor(states[0][name]), value, rtol=1e-4, atol=1e-5)
