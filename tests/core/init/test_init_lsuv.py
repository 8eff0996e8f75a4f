"""LSUV: the variances it reaches, how often it runs a layer, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mpelu import MPELU
from mpelu.init import LSUV, initialize_


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        MPELU(16),
        nn.Conv2d(16, 32, 3, groups=2),
        MPELU(32, 0.25),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


def outputs(model: nn.Sequential, x: Tensor) -> list[float]:
    """Variance after each layer, with batch statistics and without dropout."""
    for module in model.modules():
        module.training = isinstance(module, nn.BatchNorm2d)
    found: list[float] = []
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                found.append(x.var(correction=0).item())
    return found


@pytest.mark.parametrize("tolerance", [0.02, 1e-4])
def test_unit_variance_after_every_layer(tolerance: float) -> None:
    model = network()
    batch = 3 + torch.randn(8, 3, 8, 8, generator=seeded())
    report = initialize_(model, batch, LSUV(tolerance=tolerance))
    measured = [row.measured for row in report.rows]
    assert measured == pytest.approx([1, 1, 1], abs=tolerance)
    assert outputs(model, batch) == pytest.approx(measured, rel=1e-3)


def test_weights_are_orthonormal_up_to_scale() -> None:
    model: Any = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    initialize_(model, torch.randn(64, 32), "lsuv", generator=seeded())
    for layer in (model[0], model[2]):
        gram = layer.weight @ layer.weight.T
        torch.testing.assert_close(gram, gram[0, 0] * torch.eye(len(gram)), rtol=0, atol=1e-4)


def test_each_layer_runs_once_more_than_it_is_scaled() -> None:
    runs: list[int] = []

    class Counted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            runs.append(1)
            return super().forward(input)

    model = nn.Sequential(*[nn.Sequential(Counted(16, 16), MPELU(16)) for _ in range(10)])
    initialize_(model, torch.randn(32, 16), "lsuv")
    assert len(runs) <= 2 * 10


def test_frozen_layers_stay_and_the_next_ones_make_up() -> None:
    model: Any = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    nn.init.constant_(model[0].weight, 0.3)
    model[0].requires_grad_(False)
    kept = model[0].weight.clone()
    report = initialize_(model, torch.randn(64, 16), "lsuv")
    assert torch.equal(kept, model[0].weight)
    assert report.rows[0].rule == "frozen"
    assert report.rows[1].measured == pytest.approx(1, abs=0.02)


def test_modes_buffers_and_hooks_are_restored_also_after_an_error() -> None:
    model: Any = network()
    model[1].running_mean.fill_(0.5)
    model[4].eval()
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    modes = [module.training for module in model]
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"within 0.02 of 1 after 0.weight, got 0 in 0 rounds"):
        initialize_(model, torch.zeros(4, 3, 8, 8), "lsuv")
    assert [module.training for module in model] == modes
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    initialize_(model, torch.randn(4, 3, 8, 8), "lsuv")
    assert [module.training for module in model] == modes
    assert not model[1].running_mean.any()
    seen.clear()
    model(torch.randn(4, 3, 8, 8))
    assert seen == [1]


def test_an_interrupt_restores_the_weights() -> None:
    class Interrupts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 5:
                raise KeyboardInterrupt
            return x + 0

    model: Any = nn.Sequential(nn.Linear(4, 4), Interrupts(), nn.Linear(4, 4))
    kept = model[0].weight.clone()
    with pytest.raises(KeyboardInterrupt):
        initialize_(model, torch.randn(5, 4), "lsuv")
    assert torch.equal(kept, model[0].weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0}, "tolerance .*got 0"),
        ({"max_rounds": 0}, "max_rounds .*got 0"),
        ({"distribution": "normal"}, "expected 'orthogonal' weights, got 'normal'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LSUV(**options)


def test_the_parts_of_an_attentions_weight_reach_unit_variance() -> None:
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    attention = model.self_attn
    nn.init.constant_(attention.in_proj_bias, 0.5)
    x = torch.randn(64, 8, 32)
    report = initialize_(model, x, "lsuv")
    assert [row.part for row in report.rows[:3]] == ["q", "k", "v"]
    assert not attention.in_proj_bias.any()
    with torch.no_grad():
        for row, weight in zip(report.rows, attention.in_proj_weight.chunk(3), strict=False):
            assert row.measured == pytest.approx(1, abs=0.02)
            assert (x @ weight.T).var().item() == pytest.approx(1, abs=0.03)


def test_a_weight_that_is_computed_on_the_way_is_left_and_said() -> None:
    class Standardized(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(input, nn.functional.normalize(self.weight, dim=1))

    model = nn.Sequential(Standardized(32, 32), nn.ReLU(), nn.Linear(32, 8))
    report = initialize_(model, torch.randn(64, 32), "lsuv")
    assert report.rows[0].rule == "left unchanged"
    assert "computed from a parameter" in report.rows[0].note
