"""Whatever reads an MPELU reads it in slope and rate as in alpha and beta."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mpelu
from mpelu import MPELU, models
from mpelu.activations import describe, learnable_parameters

PAIRS = [(1.0, 1.0), (0.25, 1.0), (-0.5, 2.0), (98.0, 0.01)]


def both(alpha: float, beta: float, **options: Any) -> tuple[MPELU, MPELU]:
    paper = MPELU(4, alpha, beta, **options)
    return paper, MPELU(4, slope=alpha * beta, rate=beta, **options)


@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (0.5, 4.0)])
def test_moments_and_slopes(alpha: float, beta: float, mean: float, variance: float) -> None:
    one, other = (describe(each) for each in both(alpha, beta))
    assert one is not None
    assert other is not None
    for found, expected in (
        *zip(other.moments(mean, variance), one.moments(mean, variance), strict=True),
        (other.at_zero()[1], one.at_zero()[1]),
    ):
        assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=1e-5, atol=1e-7)


def test_a_rate_of_zero_has_the_moments_of_prelu() -> None:
    found, prelu = describe(MPELU.prelu(4, 0.3)), describe(nn.PReLU(4, 0.3))
    assert found is not None
    assert prelu is not None
    assert found.moments() == prelu.moments()
    mixed = MPELU(2, slope=0.3, rate=[0.0, 1.0])
    values = describe(mixed)
    exact = describe(MPELU(slope=0.3, rate=1.0))
    assert values is not None
    assert exact is not None
    second = values.moments()[1]
    assert isinstance(second, torch.Tensor)
    assert_close(second[0].item(), float(prelu.moments()[1]), rtol=1e-5, atol=0)
    assert_close(second[1].item(), float(exact.moments()[1]), rtol=1e-6, atol=0)


def test_parameters_and_their_groups() -> None:
    model = nn.Sequential(nn.Linear(4, 4), MPELU(4, slope=0.25, rate=0.0), nn.PReLU(4))
    assert [(each.name, each.kind, each.label) for each in learnable_parameters(model)] == [
        ("1.slope", "scale", "slope of MPELU"),
        ("1.rate", "rate", "rate of MPELU"),
        ("2.weight", "slope", "slope of PReLU"),
    ]
    adamw = torch.optim.AdamW
    groups = mpelu.param_groups(model, lr=1e-3, weight_decay=0.05, optimizer=adamw)
    shape = [model[1].slope, model[1].rate]
    (own,) = [group for group in groups if any(each is shape[0] for each in group["params"])]
    assert [id(each) for each in own["params"]] == [id(each) for each in shape]
    assert (own["lr"], own["weight_decay"]) == (pytest.approx(0.005), 0.0)


@pytest.mark.parametrize("method", ["exact", "taylor", "critical", "deep", "lsuv"])
def test_initialization(method: str) -> None:
    """Both networks get the same weights, and "deep" gives both the same shapes."""
    networks = []
    for coordinates in ("paper", "slope"):
        torch.manual_seed(0)
        model = models.create("plain-15", width=8, fc_width=16, input_size=19, num_classes=10,
                              batch_norm=False, coordinates=coordinates)  # fmt: skip
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(8, 3, 19, 19, generator=torch.Generator().manual_seed(2))
        mpelu.init.initialize_(model, images, method, generator=generator)
        networks.append(model)
    one, other = networks
    for name, weight in one.named_parameters():
        if not name.endswith(("alpha", "beta")):
            assert_close(dict(other.named_parameters())[name], weight, rtol=1e-4, atol=1e-6)
    shapes = [
        [(each.slope, each.rate) for each in network.modules() if isinstance(each, MPELU)]
        for network in networks
    ]
    assert_close(shapes[1], shapes[0], rtol=1e-5, atol=1e-6)


def test_a_call_of_the_function_is_read() -> None:
    class Net(nn.Module):
        def __init__(self, by_slope: bool) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8)
            self.by_slope = by_slope

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            y = mpelu.mpelu(y, slope=0.5, rate=2.0) if self.by_slope else mpelu.mpelu(y, 0.25, 2.0)
            return self.last(y)  # type: ignore[no-any-return]

    stds = [
        [row.std for row in mpelu.init.initialize_(Net(each), method="exact").rows]
        for each in (False, True)
    ]
    assert stds[1] == pytest.approx(stds[0])


@pytest.mark.parametrize("name", ["mpelu-resnet-a-8", "mpelu-resnet-b-8", "nopre-resnet-11", "nin"])
def test_networks_of_the_paper_start_at_the_same_function(name: str) -> None:
    torch.manual_seed(0)
    paper = models.create(name)
    torch.manual_seed(0)
    slope = models.create(name, coordinates="slope")
    assert {each.coordinates for each in slope.modules() if isinstance(each, MPELU)} == {"slope"}
    images = torch.randn(2, 3, 32, 32)
    for network in (paper, slope):
        network.eval()
    assert_close(slope(images), paper(images), rtol=1e-4, atol=1e-4)
    restored = copy.deepcopy(paper)
    restored.load_state_dict(slope.state_dict())
    assert_close(restored(images), paper(images), rtol=1e-4, atol=1e-4)


def test_a_beta_that_is_too_small_is_refused_in_either_coordinates() -> None:
    for coordinates in ("paper", "slope"):
        with pytest.raises(ValueError, match="expected beta >= 1e-06, got 0"):
            models.create("resnet-8", activation="mpelu", beta=0.0, coordinates=coordinates)


def test_diagnosis_reads_it() -> None:
    model = nn.Sequential(
        nn.Linear(8, 32), MPELU.prelu(32, dim=-1), nn.Linear(32, 32), MPELU(32, slope=1.0, rate=0.5)
    )
    found = mpelu.diagnose(model, torch.randn(32, 8))
    assert [row.type for row in found.rows if row.kind == "activation"] == ["MPELU", "MPELU"]
