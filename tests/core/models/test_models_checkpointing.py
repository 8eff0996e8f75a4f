"""Gradient checkpointing: the same numbers in less memory."""

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpelu import models

NAMES = ["nopre-resnet-47", "preresnet-47", "mpelu-resnet-b-32", "stochastic-resnet-32"]


def network_of(name: str, checkpointing: bool, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return models.create(name, width=4, gradient_checkpointing=checkpointing, **options)


def two_steps(network: nn.Module) -> list[torch.Tensor]:
    """Losses of two steps, and gradients after the second."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(torch.randn(4, 3, 8, 8)), torch.arange(4))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.grad for p in network.parameters() if p.grad is not None)]


@pytest.mark.parametrize("activation", ["mpelu", "rrelu"])
@pytest.mark.parametrize("name", NAMES)
def test_bit_equal(name: str, activation: str) -> None:
    plain = network_of(name, False, activation=activation)
    checkpointed = network_of(name, True, activation=activation)
    expected, got = two_steps(plain), two_steps(checkpointed)
    assert len(expected) == len(got) > 2
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    states = plain.state_dict(), checkpointed.state_dict()
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key


def test_batch_statistics_are_updated_once_a_step() -> None:
    network = network_of("nopre-resnet-47", True)
    two_steps(network)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {int(m.num_batches_tracked) for m in norms if m.num_batches_tracked is not None} == {2}


def test_eval_without_gradients_is_untouched() -> None:
    images = torch.randn(2, 3, 8, 8)
    outputs = []
    for checkpointing in (False, True):
        network = network_of("nopre-resnet-20", checkpointing).eval()
        with torch.no_grad():
            outputs.append(network(images))
    assert torch.equal(*outputs)


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors alive at a time, of those made while it's on."""

    def __init__(self, there_already: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in there_already}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor.untyped_storage())
        return output

    def see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def peak_bytes(depth: int, checkpointing: bool) -> int:
    """Of activations: parameters, their gradients and statistics are there from the start."""
    network = network_of(f"nopre-resnet-{depth}", checkpointing)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    images = torch.randn(8, 3, 8, 8)
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    live = LiveBytes([images, *network.parameters(), *network.buffers(), *gradients])
    with live:
        network(images).sum().backward()
    return live.peak


def test_memory_grows_like_the_square_root_of_depth() -> None:
    # 4 and 36 blocks to a stage: 9 times as deep, so 3 times as much memory.
    shallow, deep = 9 * 4 + 2, 9 * 36 + 2
    assert peak_bytes(deep, False) / peak_bytes(shallow, False) > 8
    assert peak_bytes(deep, True) / peak_bytes(shallow, True) < 3.3
    assert peak_bytes(deep, True) < peak_bytes(deep, False) / 5
