"""Every network by name: it runs, learns, and says what is wrong with what it is given."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mpelu import models
from mpelu.models import residual

SMALL: dict[str, dict[str, Any]] = {
    "plain": {"width": 4, "fc_width": 32, "input_size": 64},
    "dsn": {"input_size": 9},
    "wide": {"width": 2},
}
"""By the first word of a name: options that make the network fit a test."""


def small(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    options = SMALL.get(name.split("-")[0], {})
    side: int = options.get("input_size", 9)
    return models.create(name, **options), torch.randn(3, 3, side, side)


@pytest.mark.parametrize("name", models.names())
def test_runs_forward_and_backward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = small(name)
    for module in network.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.momentum = 1.0  # so that one step gives statistics to evaluate with
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # No block of stochastic depth is left out.
    monkeypatch.setattr(torch, "rand", lambda *sizes, **options: torch.zeros(*sizes, **options))
    outputs = network(images)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    classes = {"plain": 1000, "elu": 100}.get(name.rpartition("-")[0], 10)
    assert all(output.shape == (3, classes) for output in outputs)
    sum(output.square().sum() for output in outputs).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # Without BN in the blocks the values grow until e^y is zero and beta without effect: the
        # paper's network diverges.
        assert parameter.grad.any() or name == "nopre-nobn-resnet-164", key

    # Rounding grows over a thousand layers: double precision.
    network.double().eval()
    images = images.double()
    with torch.no_grad():
        together = network(images)
        alone = network(images[:1])
        others = network(torch.cat([images[:1], 10 * images[1:].flip(0)]))
    assert together.shape == (3, classes)
    assert together.isfinite().all()
    tolerance = 1e-6 * together.abs().max().item()
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=tolerance)
    torch.testing.assert_close(together[:1], others[:1], rtol=0, atol=tolerance)


def test_names_are_distinct_and_all_build() -> None:
    assert len(set(models.names())) == len(models.names()) == 51


@pytest.mark.parametrize("name", ["resnet-8", "nopre-resnet-11", "plain-17", "wide-resnet-10-1"])
def test_other_depths(name: str) -> None:
    with torch.device("meta"):
        assert isinstance(models.create(name), nn.Module)


def test_deep_networks_can_be_copied_and_pickled() -> None:
    torch.manual_seed(0)
    network = models.create("stochastic-resnet-1202", width=1).eval()
    images = torch.randn(1, 3, 4, 4)
    expected = network(images)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(other(images), expected)


@pytest.mark.parametrize(
    "activation",
    ["relu", "leaky_relu", "prelu", "rrelu", "elu", "srelu", "mpelu", lambda _: nn.GELU()],
)
@pytest.mark.parametrize("name", ["nin", "plain-15", "nopre-resnet-20", "fitnet-19", "dsn"])
def test_activations(name: str, activation: str | Callable[[int], nn.Module]) -> None:
    options = SMALL.get(name.split("-")[0], {})
    with torch.device("meta"):
        network = models.create(name, activation=activation, **options)
        side: int = options.get("input_size", 9)
        assert network.eval()(torch.empty(2, 3, side, side)).size(0) == 2


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("num_classes", [1, 7])
@pytest.mark.parametrize("in_channels", [1, 5])
@pytest.mark.parametrize("shortcut", ["A", "B", "C", "conv"])
@pytest.mark.parametrize("name", ["resnet-8", "nopre-resnet-11", "preresnet-11"])
def test_edges(name: str, shortcut: str, in_channels: int, num_classes: int, width: int) -> None:
    network = models.create(
        name, shortcut=shortcut, in_channels=in_channels, num_classes=num_classes, width=width
    )
    output = network(torch.randn(2, in_channels, 5, 3))
    assert output.shape == (2, num_classes)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnt-110", {}, ["unknown network 'resnt-110'; did you mean", "'resnet-20'"]),
        ("resnet50", {}, ["unknown network 'resnet50'; did you mean", "'resnet-20'"]),
        ("resnet", {}, ["unknown network 'resnet'; expected a name like 'resnet-20'"]),
        ("wide-resnet-28", {}, ["expected a name like 'wide-resnet-16-8'"]),
        ("nin-3", {}, ["expected a name like 'nin'"]),
        ("resnet-21", {}, ["resnet-21", "CIFAR", "6n+2", "got 21", "closest: 20"]),
        ("resnet-18", {}, ["resnet-18", "CIFAR", "6n+2", "8, 14, 20, ...", "closest: 20"]),
        ("resnet-2", {}, ["8, 14, 20, ...", "got 2", "closest: 8"]),
        ("nopre-resnet-165", {}, ["9n+2", "got 165", "closest: 164"]),
        ("wide-resnet-27-10", {}, ["6n+4", "got 27", "closest: 28"]),
        ("wide-resnet-28-0", {}, ["widening", ">= 1", "got 0"]),
        ("highway-21", {}, ["19 or 32", "got 21", "closest: 19"]),
        ("plain-14", {}, [">= 15", "got 14"]),
        ("fitnet-11", {}, ["19", "got 11"]),
        ("elu-11", {}, ["18", "got 11"]),
        (
            "nin",
            {"activation": "mplu"},
            ["unknown activation 'mplu'; did you mean 'mpelu'? Choose "],
        ),
        ("nin", {"activation": 3}, ["name or a callable", "got 3"]),
        ("nin", {"activation": lambda _: "x"}, ["torch.nn.Module", "got 'x'"]),
        ("nin", {"activation": "relu", "alpha": 0.1}, ["alpha", "relu", "got 0.1"]),
        ("nin", {"activation": "elu", "beta": 0.1}, ["beta", "elu", "got 0.1"]),
        ("nin", {"activation": lambda _: nn.ReLU(), "alpha": 1}, ["alpha", "callable"]),
        ("fitnet-19", {"alpha": 1.0}, ["alpha", "got 1.0"]),
        ("nin", {"beta": 0.0}, ["beta", "got 0"]),
        ("all-cnn-c", {"width": 8}, ["all-cnn-c: unknown option 'width'; there are none"]),
        (
            "resnet-20",
            {"widht": 8},
            ["resnet-20: unknown option 'widht'; did you mean 'width'? Choose width, short"],
        ),
        (
            "resnet-20",
            {"shortcut": "D"},
            ["resnet-20: unknown shortcut 'D'; choose A, B, C or conv"],
        ),
        ("resnet-20", {"width": 0}, ["width", ">= 1", "got 0"]),
        ("resnet-20", {"num_classes": 0}, ["num_classes", "got 0"]),
        ("resnet-20", {"num_classes": True}, ["num_classes", "got True"]),
        ("resnet-20", {"in_channels": 2.5}, ["in_channels", "got 2.5"]),
        ("plain-15", {"input_size": 18}, ["input_size", ">= 19", "got 18"]),
        ("plain-15", {"fc_width": 0}, ["fc_width", "got 0"]),
        ("dsn", {"input_size": 3}, ["input_size", ">= 4", "got 3"]),
    ],
)
def test_errors_of_create(name: str, options: dict[str, Any], words: list[str]) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        models.create(name, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["vgg", "vgg-16", "imagenet", "", "-", "resnt-110", "a" * 200])
def test_an_unknown_network_is_told_in_a_short_line(name: str) -> None:
    with pytest.raises(ValueError, match="unknown network") as caught:
        models.create(name)
    assert len(str(caught.value)) < 140 + len(name)
    assert str(caught.value).endswith("`mpelu models` lists all")


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("vgg", ""),
        ("vgg-16", ""),
        ("imagenet", ""),
        ("highwy-19", "did you mean a name like 'highway-19'? "),
        ("fit-net-19", "did you mean a name like 'fitnet-19'? "),
    ],
)
def test_only_names_that_are_close_are_suggested(name: str, suggested: str) -> None:
    with pytest.raises(ValueError, match="unknown network") as caught:
        models.create(name)
    expected = f"unknown network {name!r}; {suggested}`mpelu models` lists all"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "options", "channels"),
    [
        ("resnet-50", {}, "16, 32, 64"),
        ("resnet-152", {"width": 4}, "4, 8, 16"),
        ("mpelu-resnet-50", {}, "16, 32, 64"),
        ("preresnet-101", {}, "64, 128, 256"),
    ],
)
def test_a_depth_of_torchvision_gives_a_warning(
    name: str, options: dict[str, Any], channels: str
) -> None:
    depth = name.rpartition("-")[2]
    with torch.device("meta"), pytest.warns(UserWarning, match="is the CIFAR") as caught:
        network = models.create(name, **options)
    (warning,) = caught
    assert str(warning.message) == (
        f"{name} is the CIFAR residual network of {depth} layers ({channels} channels), "
        f"not torchvision's ImageNet ResNet-{depth}"
    )
    assert warning.filename == __file__
    assert isinstance(network, residual.ResidualNetwork)
    outputs = set()
    for block in network.blocks:
        assert isinstance(block, residual.Block)
        last = [layer for layer in block.branch.children() if isinstance(layer, nn.Conv2d)][-1]
        outputs.add(last.out_channels)
    assert ", ".join(map(str, sorted(outputs))) == channels


def test_a_callable_must_not_hand_out_one_module_twice() -> None:
    shared = nn.PReLU()
    with pytest.raises(ValueError, match="the same PReLU twice"):
        models.create("resnet-8", activation=lambda _: shared)
    without_parameters = nn.ReLU()
    models.create("resnet-8", activation=lambda _: without_parameters)


SMALLEST = {"nin": 4, "dsn": 9, "all-cnn-c": 9, "highway-19": 4, "fitnet-19": 4, "plain-15": 64}


@pytest.mark.parametrize("name", [*SMALLEST, "resnet-8", "wide-resnet-10-1", "elu-18"])
def test_errors_of_images(name: str) -> None:
    with torch.device("meta"):
        network = models.create(name, **SMALL.get(name.split("-")[0], {})).eval()
        side = SMALLEST.get(name, 1)
        assert network(torch.empty(2, 3, side, side)).size(0) == 2
        refused = [(2, 1, side, side), (2, 4, side, side), (3, side, side), (2, 3, side)]
        if name in SMALLEST:
            refused += [(2, 3, side - 1, side), (2, 3, side, side - 1)]
        if name in ("plain-15", "dsn"):
            refused += [(2, 3, side + 1, side + 1)]
        for shape in refused:
            with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
                network(torch.empty(shape))
            assert f"{name}: expected images [batch, 3," in str(caught.value)
            assert f"{side}x{side}" in str(caught.value)
            assert f"got {list(shape)}" in str(caught.value)
