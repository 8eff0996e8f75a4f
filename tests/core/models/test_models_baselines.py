"""The networks of other papers: details that counts don't show."""

import pytest
import torch
from torch import nn

from mpelu import models
from mpelu.models.cifar import DeeplySupervised, Highway, Maxout
from mpelu.models.parts import activation_spec


def sizes(name: str, side: int = 32) -> list[tuple[int, int]]:
    """Channels and side of the output of each convolution and pooling layer."""
    with torch.device("meta"):
        network = models.create(name).eval()
        images = torch.empty(1, 3, side, side)
    found: list[tuple[int, int]] = []
    kinds = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
    for module in network.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(
                lambda _, __, output: found.append((output.size(1), output.size(2)))
            )
    network(images)
    return found


def test_all_cnn_c_averages_a_6x6_map() -> None:
    first = [(96, 32), (96, 32), (96, 16), (192, 16), (192, 16), (192, 8)]
    assert sizes("all-cnn-c") == [*first, (192, 6), (192, 6), (10, 6)]


@pytest.mark.parametrize(("side", "after_pooling"), [(28, (14, 7)), (32, (16, 8))])
def test_nin_sizes(side: int, after_pooling: tuple[int, int]) -> None:
    first, second = after_pooling
    assert sizes("nin", side) == [
        *((width, side) for width in (192, 160, 96)),
        (96, first),
        *((192, first) for _ in range(3)),
        (192, second),
        (192, second),
        (192, second),
        (10, second),
    ]


def test_elu_18_stacks() -> None:
    found = sizes("elu-18")
    # A layer's output, and its size halved by the pooling after each stack.
    assert [side for _, side in found] == [
        *(32, 16),
        *(16, 17, 18, 19, 10),
        *(10, 11, 12, 13, 7),
        *(7, 8, 9, 5),
        *(5, 6, 7, 4),
        *(4, 5, 3),
        *(3, 2),
        2,
    ]
    with torch.device("meta"):
        network = models.create("elu-18")
    assert sum(isinstance(m, nn.ELU) for m in network.modules()) == 18
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
    ]


def test_fitnet_is_max_pooled_to_one_value() -> None:
    assert sizes("fitnet-19")[-1] == (256, 8)
    assert [side for _, side in sizes("fitnet-19")] == [32] * 5 + [16] * 7 + [8] * 7


def test_maxout() -> None:
    x = torch.randn(2, 6, 3, 3)
    expected = torch.stack([x[:, 2 * c : 2 * c + 2].amax(1) for c in range(3)], 1)
    assert torch.equal(Maxout(2)(x), expected)
    assert Maxout(5)(torch.randn(4, 10)).shape == (4, 2)


def test_highway_carries_its_input_where_the_gate_is_shut() -> None:
    torch.manual_seed(0)
    layer = Highway(3, activation_spec("relu"))
    x = torch.randn(2, 3, 5, 5)
    gate = torch.sigmoid(layer.gate(x))
    expected = x + gate * (torch.relu(layer.transform(x)) - x)
    torch.testing.assert_close(layer(x), expected)
    with torch.no_grad():
        assert layer.gate.bias is not None
        layer.gate.bias.fill_(-1e4)
    assert torch.equal(layer(x), x)


def test_highway_gates_start_nearly_shut() -> None:
    network = models.create("highway-19")
    layers = [m for m in network.modules() if isinstance(m, Highway)]
    assert len(layers) == 14
    for layer in layers:
        assert layer.gate.bias is not None
        assert layer.transform.bias is not None
        assert (layer.gate.bias == -2).all()
        assert (layer.transform.bias == 0).all()


def test_dsn_companions_see_convolutions_before_the_activation() -> None:
    torch.manual_seed(0)
    network = models.create("dsn", input_size=8)
    assert isinstance(network, DeeplySupervised)
    images = torch.randn(2, 3, 8, 8)
    output, *companions = network(images)
    assert [tuple(o.shape) for o in (output, *companions)] == [(2, 10)] * 4
    expected = network.companions[0](network.convolutions[0](images))
    assert torch.equal(companions[0], expected)
    assert isinstance(network.eval()(images), torch.Tensor)
