"""LazyMPELU: channels from the first input, in the places that build activations without them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mpelu
from mpelu import MPELU, LazyMPELU


@pytest.mark.parametrize(
    ("shape", "dim", "channels"),
    [
        ((2, 3), None, 3),
        ((2, 3, 4, 4), None, 3),
        ((2, 5, 3), -1, 3),
        ((2, 3, 5), 1, 3),
        ((3,), 0, 3),
    ],
)
def test_channels_come_from_the_first_input(
    shape: tuple[int, ...], dim: int | None, channels: int
) -> None:
    lazy = LazyMPELU(alpha=0.25, beta=2.0, dim=dim, dtype=torch.float64)
    y = lazy(torch.randn(shape, dtype=torch.float64))
    assert type(lazy) is MPELU
    assert lazy.num_parameters == channels
    assert y.shape == shape
    expected = MPELU(channels, 0.25, 2.0, dim=dim or 1, dtype=torch.float64)
    assert_close(lazy.state_dict(), expected.state_dict())
    lazy.reset_parameters()
    assert lazy.alpha.tolist() == [0.25] * channels


def test_three_dimensions_are_refused_without_a_dim() -> None:
    lazy = LazyMPELU()
    with pytest.raises(ValueError, match=r"input \[2, 3, 5\] may be .*; pass dim=1 or dim=-1"):
        lazy(torch.randn(2, 3, 5))
    with pytest.raises(ValueError, match=r"channels in dimension 1, got \[5\]"):
        lazy(torch.randn(5))
    assert lazy(torch.randn(2, 4)).shape == (2, 4)  # still to be had


def test_a_state_dict_loads_without_an_input() -> None:
    trained = nn.Sequential(nn.Linear(4, 3), MPELU(3, alpha=[0.1, 0.2, 0.3]))
    fresh = nn.Sequential(nn.Linear(4, 3), LazyMPELU())
    fresh.load_state_dict(trained.state_dict())
    x = torch.randn(5, 4)
    assert_close(fresh(x), trained(x))
    assert type(fresh[1]) is MPELU
    assert fresh[1].num_parameters == 3
    assert_close(fresh.state_dict(), trained.state_dict())


def test_before_the_first_input() -> None:
    lazy = LazyMPELU(alpha=0.5, inplace=True)
    assert repr(lazy) == "LazyMPELU(num_parameters=?, alpha=0.5, beta=1, inplace=True)"
    for other in (copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy)), lazy.to(torch.float64)):
        other(torch.randn(2, 6, dtype=torch.float64))
        assert other.alpha.shape == (6,)
    with pytest.raises(ValueError, match="expected beta >= 1e-06"):
        LazyMPELU(beta=-1.0)
    with pytest.raises(TypeError, match="positional"):  # the channels, by mistake
        LazyMPELU(64)  # type: ignore[call-arg]


def test_it_learns_in_a_compiled_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), LazyMPELU(), nn.Linear(8, 1))
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    model(x)
    update = torch.optim.SGD(mpelu.param_groups(model, lr=0.1), lr=0.1)
    torch.compile(model, backend="aot_eager")(x).square().mean().backward()
    activation = model[1]
    assert isinstance(activation, MPELU)
    before = activation.alpha.detach().clone()
    update.step()
    assert (activation.alpha.detach() != before).all()


class ConvNormActivation(nn.Sequential):
    """As torchvision builds its blocks: the activation gets `inplace` and nothing else."""

    def __init__(self, inputs: int, outputs: int, activation_layer: type[nn.Module]) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, bias=False),
            nn.BatchNorm2d(outputs),
            activation_layer(inplace=True),
        )


def test_blocks_of_torchvisions_kind() -> None:
    model = nn.Sequential(ConvNormActivation(3, 8, LazyMPELU), ConvNormActivation(8, 4, LazyMPELU))
    model(torch.randn(2, 3, 9, 9)).sum().backward()
    assert [m.num_parameters for m in model.modules() if isinstance(m, MPELU)] == [8, 4]


def test_torchvision() -> None:
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    block = torchvision.ops.Conv2dNormActivation(3, 8, activation_layer=LazyMPELU)
    assert block(torch.randn(2, 3, 9, 9)).shape == (2, 8, 9, 9)
    assert block[2].num_parameters == 8


def test_timm() -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    layers = pytest.importorskip("timm.layers", reason="timm is older than 0.9")
    assert isinstance(layers.create_act_layer(LazyMPELU, inplace=True), LazyMPELU)
    tokens = layers.Mlp(16, 32, act_layer=lambda: LazyMPELU(dim=-1))
    assert tokens(torch.randn(2, 5, 16)).shape == (2, 5, 16)
    assert tokens.act.num_parameters == 32
    model = timm.create_model("resnet18", act_layer=LazyMPELU, num_classes=4)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    widths = {m.num_parameters for m in model.modules() if isinstance(m, MPELU)}
    assert widths == {64, 128, 256, 512}


def test_transformers() -> None:
    activations = pytest.importorskip(
        "transformers.activations", reason="transformers is not installed"
    )
    activations.ACT2FN["mpelu"] = (LazyMPELU, {"dim": -1})
    try:
        activation = activations.ACT2FN["mpelu"]
        assert activation(torch.randn(2, 5, 16)).shape == (2, 5, 16)
        assert activation.num_parameters == 16
        assert activations.ACT2FN["mpelu"] is not activation
    finally:
        del activations.ACT2FN["mpelu"]
