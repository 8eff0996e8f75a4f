"""Sizes of gradients, against backward()."""

import copy

import pytest
import torch
from refusals import refusal
from torch import nn
from torch.nn.functional import cross_entropy

import mpelu
from mpelu import models
from mpelu.lab.inspecting import measure_gradients
from mpelu.models.residual import ResidualNetwork

LABELS = torch.arange(4) % 3


def loss(output: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, LABELS)


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), mpelu.MPELU(5), nn.Dropout(0.3), nn.Linear(5, 3)
    )


def test_sizes_equal_those_of_backward(network: nn.Sequential) -> None:
    data = torch.randn(4, 6)
    found = measure_gradients(network.eval(), data, loss)
    expected = copy.deepcopy(network)
    outputs = []
    value = data
    for part in expected:
        value = part(value)
        value.retain_grad()
        outputs.append(value)
    loss(value).backward()
    assert found.loss == pytest.approx(loss(value).item())
    for name, parameter in expected.named_parameters():
        assert parameter.grad is not None
        assert found.parameters[name] == pytest.approx(parameter.grad.norm().item(), rel=1e-5)
    sizes = [output.grad.square().mean().item() for output in outputs]
    del sizes[3]  # dropout, which returns its input
    assert [layer.gradient for layer in found.layers] == pytest.approx(sizes, rel=1e-5)
    assert [layer.kind for layer in found.layers][:3] == ["linear", "norm", "activation"]


def test_in_place_gives_the_same() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.ELU(), nn.Linear(6, 3), nn.ELU(), nn.Linear(3, 3))
    other = copy.deepcopy(plain)
    for part in other:
        if isinstance(part, nn.ELU):
            part.inplace = True
    data = torch.randn(4, 6)
    kept = data.clone()
    one, two = measure_gradients(plain, data, loss), measure_gradients(other, data, loss)
    assert two.parameters == pytest.approx(one.parameters, rel=1e-6)
    sizes = [layer.gradient for layer in one.layers]
    assert [layer.gradient for layer in two.layers] == pytest.approx(sizes, rel=1e-6)
    assert torch.equal(data, kept)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(network: nn.Sequential, training: bool) -> None:
    network.train(training)
    first, last = network[0], network[4]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    first.bias.grad = torch.ones(5)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    measure_gradients(network, torch.ones(4, 6), loss)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert first.bias.grad.tolist() == [1.0] * 5
    assert last.weight.grad is None
    assert not any(module._forward_hooks for module in network.modules())


def test_frozen_layers_and_no_grad(network: nn.Sequential) -> None:
    network[0].requires_grad_(False)
    with torch.no_grad():
        found = measure_gradients(network.eval(), torch.ones(4, 6), loss)
    assert "0.weight" not in found.parameters
    size = found.layers[0].gradient
    assert size is not None
    assert size > 0


def test_what_the_loss_does_not_reach_has_none() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.aside = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            self.aside(input)
            return torch.as_tensor(self.used(input))

    found = measure_gradients(Two(), torch.ones(1, 2), torch.sum)
    assert {layer.name: layer.gradient is None for layer in found.layers} == {
        "aside": True, "used": False,
    }  # fmt: skip
    assert set(found.parameters) == {"used.weight", "used.bias"}


def test_recomputed_activations_count_once() -> None:
    torch.manual_seed(0)
    plain = models.create("resnet-8", width=4, num_classes=3)
    sparing = copy.deepcopy(plain)
    assert isinstance(sparing, ResidualNetwork)
    sparing.gradient_checkpointing = True
    data = torch.randn(4, 3, 8, 8)
    one, two = measure_gradients(plain, data, loss), measure_gradients(sparing, data, loss)
    assert [layer.call for layer in two.layers] == [1] * len(one.layers)
    sizes = [layer.gradient for layer in one.layers]
    assert [layer.gradient for layer in two.layers] == pytest.approx(sizes, rel=1e-5)


def test_bad_loss(network: nn.Module) -> None:
    with refusal("loss", "[4, 3]", kind=ValueError):
        measure_gradients(network, torch.ones(4, 6), lambda output: output)
    with refusal("1.5", kind=ValueError):
        measure_gradients(network, torch.ones(4, 6), lambda output: 1.5)  # type: ignore[arg-type,return-value]
