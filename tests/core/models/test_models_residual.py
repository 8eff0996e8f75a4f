"""Residual networks: each variant does what its design says."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mpelu
from mpelu import models
from mpelu.models.residual import Block, ResidualNetwork


def small(name: str, **options: Any) -> ResidualNetwork:
    torch.manual_seed(0)
    network = models.create(name, width=4, **options)
    assert isinstance(network, ResidualNetwork)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
            if isinstance(module, mpelu.MPELU):
                module.alpha.uniform_(0.1, 1.0, generator=generator)
                module.beta.uniform_(0.5, 1.5, generator=generator)
    return network


class Reference:
    """Plays the modules of a network in the order the test writes out."""

    def __init__(self, network: ResidualNetwork) -> None:
        self.network = network
        wanted = (nn.Conv2d, nn.BatchNorm2d, mpelu.MPELU, nn.ReLU, nn.ELU)
        self.left = [m for m in network.modules() if isinstance(m, wanted)]

    def play(self, x: torch.Tensor, kinds: str) -> torch.Tensor:
        for kind in kinds:
            module = self.left.pop(0)
            if kind == "c":
                assert isinstance(module, nn.Conv2d)
                assert module.bias is None
                padding = module.kernel_size[0] // 2
                x = F.conv2d(x, module.weight, None, module.stride, padding)
            elif kind == "b":
                assert isinstance(module, nn.BatchNorm2d)
                assert (module.eps, module.momentum) == (1e-5, 0.1)
                x = F.batch_norm(x, None, None, module.weight, module.bias, training=True)
            elif isinstance(module, mpelu.MPELU):
                x = mpelu.mpelu(x, module.alpha, module.beta)
            else:
                x = module(x)
        return x


VARIANTS = [
    # name, stem, before, branch, after, tail
    ("resnet-20", "cba", "", "cbacb", "a", ""),
    ("elu-resnet-20", "cba", "", "cbacb", "a", ""),
    ("mpelu-resnet-a-20", "cba", "", "cbacb", "a", ""),
    ("mpelu-resnet-b-20", "cba", "", "cbacb", "a", ""),
    ("mpelu-resnet-20", "cba", "", "cbacb", "", ""),
    ("preresnet-20", "c", "ba", "cbacbac", "", "ba"),
    ("mpelu-preresnet-20", "cba", "ba", "cbacbac", "", "ba"),
    ("mpelu-only-preresnet-bn-20", "cba", "a", "cbacbacb", "", "ba"),
    ("mpelu-only-preresnet-20", "cba", "a", "cbacbac", "", "ba"),
    ("nopre-bn-resnet-20", "cba", "", "cbacbacb", "", "ba"),
    ("nopre-resnet-20", "cba", "", "cbacbac", "", "ba"),
    ("nopre-nobn-resnet-20", "cba", "", "cacac", "", "ba"),
    ("nopre-nobn1-resnet-20", "ca", "", "cbacbac", "", "ba"),
    ("nopre-nobn1-nobnend-resnet-20", "ca", "", "cbacbac", "", "a"),
    ("wide-resnet-16-2", "c", "ba", "cbac", "", "ba"),
]


@pytest.mark.parametrize(("name", "stem", "before", "branch", "after", "tail"), VARIANTS)
def test_order_of_layers(
    name: str, stem: str, before: str, branch: str, after: str, tail: str
) -> None:
    network = small(name)
    images = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    output = network(images)

    reference = Reference(network)
    x = reference.play(images, stem)
    for block in network.blocks:
        assert isinstance(block, Block)
        ready = reference.play(x, before)
        residual = reference.play(ready, branch)
        if residual.shape == x.shape:
            shortcut = x
        elif isinstance(block.shortcut, nn.Conv2d):
            shortcut = reference.play(ready, "c")
        else:
            zeros = torch.zeros(x.size(0), residual.size(1) - x.size(1), *residual.shape[2:])
            shortcut = torch.cat([x[:, :, ::2, ::2], zeros], 1)
        x = reference.play(shortcut + residual, after)
    x = reference.play(x, tail)
    expected = network.classifier(F.avg_pool2d(x, x.size(-1)).flatten(1))
    assert not reference.left
    torch.testing.assert_close(output, expected)


def test_widths_strides_and_kernels_of_the_bottleneck() -> None:
    with torch.device("meta"):
        network = models.create("nopre-resnet-164")
    assert isinstance(network, ResidualNetwork)
    assert len(network.blocks) == 54
    for stage in range(3):
        width = 16 * 2**stage
        for index in range(18):
            block = network.blocks[18 * stage + index]
            assert isinstance(block, Block)
            assert isinstance(block.branch, nn.Sequential)
            convolutions = [m for m in block.branch if isinstance(m, nn.Conv2d)]
            assert [c.out_channels for c in convolutions] == [width, width, 4 * width]
            assert [c.kernel_size[0] for c in convolutions] == [1, 3, 1]
            stride = 2 if stage and not index else 1
            assert [c.stride[0] for c in convolutions] == [stride, 1, 1]
            assert isinstance(block.shortcut, nn.Identity if index else nn.Conv2d)
            if isinstance(block.shortcut, nn.Conv2d):
                assert block.shortcut.stride[0] == stride


def test_starts_of_alpha_and_beta() -> None:
    def starts(name: str, **options: Any) -> set[tuple[float, float]]:
        modules = models.create(name, **options).modules()
        return {
            (round(m.alpha[0].item(), 4), round(m.beta[0].item(), 4))
            for m in modules
            if isinstance(m, mpelu.MPELU)
        }

    assert starts("mpelu-resnet-a-20") == {(1.0, 1.0)}
    assert starts("nopre-resnet-20") == {(0.25, 1.0)}
    assert starts("nopre-resnet-20", alpha=1.0, beta=0.5) == {(1.0, 0.5)}
    assert starts("mpelu-resnet-b-20") == {(1.0, 1.0), (98.0, 0.01)}
    network = models.create("mpelu-resnet-b-20")
    assert isinstance(network, ResidualNetwork)
    for block in network.blocks:
        assert isinstance(block, Block)
        (after,) = block.after.children()
        assert isinstance(after, mpelu.MPELU)
        assert (after.alpha == 98).all()
        inner = [m for m in block.branch.modules() if isinstance(m, mpelu.MPELU)]
        assert all((m.alpha == 1).all() for m in inner)


def test_another_activation_replaces_all_of_them() -> None:
    kinds = [type(m) for m in models.create("mpelu-resnet-b-20", activation="elu").modules()]
    assert kinds.count(nn.ELU) == 19
    assert mpelu.MPELU not in kinds


@pytest.mark.parametrize("activation", ["mpelu", "prelu", "srelu"])
def test_each_place_has_an_activation_of_its_own(activation: str) -> None:
    network = models.create("resnet-20", activation=activation)
    smallest = models.create("resnet-8", activation=activation)
    assert isinstance(smallest, ResidualNetwork)
    *_, last = smallest.stem.children()
    kind = type(last)
    found = [m for m in network.modules() if isinstance(m, kind)]
    assert len(found) == 19
    storages = [p.data_ptr() for m in found for p in m.parameters()]
    assert len(set(storages)) == len(storages)
    first = next(found[-1].parameters())
    assert first.shape == (64,)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    network = models.create("nopre-resnet-20", width=64, alpha=0.5, beta=0.5)
    assert isinstance(network, ResidualNetwork)
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 1 + 18 + 3
    for module in convolutions:
        fan_out = module.out_channels * module.kernel_size[0] ** 2
        expected = (2 / (fan_out * (1 + 0.25**2))) ** 0.5
        assert module.weight.std().item() == pytest.approx(expected, rel=0.1)
    bound = (4 * 256) ** -0.5
    assert network.classifier.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert (network.classifier.bias == 0).all()


def test_stochastic_depth_survival() -> None:
    with torch.device("meta"):
        network = models.create("stochastic-resnet-110")
    assert isinstance(network, ResidualNetwork)
    survivals = [block.survival for block in network.blocks]
    assert survivals == pytest.approx([1 - 0.5 * index / 54 for index in range(1, 55)])


def test_stochastic_depth_is_its_expectation_in_eval() -> None:
    torch.manual_seed(0)
    branch = nn.Conv2d(2, 2, 1)
    nothing = nn.Sequential()
    block = Block(nothing, branch, nn.Identity(), nothing, shared=False, survival=0.7)
    x = torch.randn(1, 2, 4, 4)
    outputs = torch.stack([block(x) for _ in range(2000)])
    kept = (outputs != x).flatten(1).any(1)
    assert torch.equal(outputs[kept], (x + branch(x)).expand(int(kept.sum()), *x.shape))
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.05)
    torch.testing.assert_close(block.eval()(x), x + 0.7 * branch(x))
