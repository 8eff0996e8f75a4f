"""The plain ImageNet networks: sizes of maps and Caffe's pyramid bins."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mpelu import models
from mpelu.models.plain import SpatialPyramid, bins, levels


def convolution_sizes(depth: int) -> list[int]:
    with torch.device("meta"):
        network = models.create(f"plain-{depth}", batch_norm=False)
        images = torch.empty(1, 3, 224, 224)
    sizes: list[int] = []
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.MaxPool2d)):
            module.register_forward_hook(lambda _, __, output: sizes.append(output.size(-1)))
    network(images)
    return sizes


@pytest.mark.parametrize("depth", [15, 30, 52])
def test_map_sizes(depth: int) -> None:
    expected = [109, 37, 36, 37, 36, 37, 19, 18, 19, 18, 19, 18, 19]
    assert convolution_sizes(depth) == expected + list(range(20, 20 + depth - 14))


@pytest.mark.parametrize("depth", [15, 30, 52])
def test_layers(depth: int) -> None:
    with torch.device("meta"):
        network = models.create(f"plain-{depth}", activation="elu")
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(nn.Conv2d) == depth - 3
    assert [m.out_features for m in network.modules() if isinstance(m, nn.Linear)] == [
        4096,
        4096,
        1000,
    ]
    assert kinds.count(nn.ELU) == depth - 1
    norms = depth - 1 if depth == 15 else 0
    assert kinds.count(nn.BatchNorm2d) + kinds.count(nn.BatchNorm1d) == norms
    assert kinds.count(nn.Dropout) == (0 if depth == 15 else 2)
    pyramid = next(m for m in network.modules() if isinstance(m, SpatialPyramid))
    assert (pyramid.size, pyramid.levels) == (depth + 5, (1, 2, 4, 8))


def test_batch_norm_and_dropout_can_be_chosen() -> None:
    with torch.device("meta"):
        network = models.create("plain-30", batch_norm=True, dropout=0.25)
        bare = models.create("plain-15", batch_norm=False, dropout=0.0)
    norms = [m for m in network.modules() if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d))]
    assert len(norms) == 29
    assert all(norm.momentum == 0.001 and not norm.affine for norm in norms)
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.25, 0.25]
    assert not any(isinstance(m, (nn.BatchNorm2d, nn.Dropout)) for m in bare.modules())


def test_published_bins() -> None:
    assert [bins(20, count) for count in (1, 2, 4, 8)] == [(20, 0), (10, 0), (5, 0), (3, 2)]
    assert [bins(35, count) for count in (1, 2, 4, 8)] == [(35, 0), (18, 1), (9, 1), (5, 3)]


def brute_force(image: torch.Tensor, count: int) -> torch.Tensor:
    """Caffe's max pooling, window by window: clipped to the map, padding left out."""
    size = image.size(-1)
    side = -(-size // count)
    padding = (side * count - size + 1) // 2
    assert padding < side, "Caffe refuses"
    output = torch.empty(image.size(0), count, count)
    for row in range(count):
        for column in range(count):
            top, left = row * side - padding, column * side - padding
            window = image[
                :, max(top, 0) : min(top + side, size), max(left, 0) : min(left + side, size)
            ]
            output[:, row, column] = window.flatten(1).max(1).values
    return output


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_pyramid_is_caffes(size: int, seed: int) -> None:
    image = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))
    taken = []
    expected = []
    for count in (1, 2, 4, 8):
        try:
            level = torch.stack([brute_force(sample, count) for sample in image])
        except AssertionError:
            continue
        taken.append(count)
        expected.append(level.flatten(1))
    assert levels(size) == tuple(taken)
    assert torch.equal(SpatialPyramid(size)(image), torch.cat(expected, 1))


def test_pyramid_is_not_adaptive_pooling() -> None:
    image = torch.randn(1, 4, 20, 20, generator=torch.Generator().manual_seed(0))
    adaptive = nn.AdaptiveMaxPool2d(8)(image).flatten(1)
    assert not torch.equal(SpatialPyramid(20)(image)[:, -4 * 64 :], adaptive)


@pytest.mark.parametrize("input_size", [19, 32, 64])
def test_small_images(input_size: int) -> None:
    network = models.create("plain-30", width=2, fc_width=8, input_size=input_size, num_classes=5)
    output = network(torch.randn(2, 3, input_size, input_size))
    assert output.shape == (2, 5)
    assert output.isfinite().all()


def test_initial_weights() -> None:
    torch.manual_seed(0)
    network = models.create("plain-15", alpha=0.25, width=32, fc_width=256, input_size=64)
    last = [m for m in network.modules() if isinstance(m, nn.Conv2d)][-1]
    fan_in = 128 * 2 * 2
    assert last.weight.std().item() == pytest.approx(
        (2 / (fan_in * (1 + 0.25**2))) ** 0.5, rel=0.02
    )
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert [m.weight.std().item() for m in linear] == pytest.approx([0.01] * 3, rel=0.02)
    for bias in (last.bias, *(m.bias for m in linear)):
        assert bias is not None
        assert (bias == 0).all()
