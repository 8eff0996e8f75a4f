"""The package's own networks keep the standard deviations they have always been given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mpelu import models
from mpelu.init import initialize_

RECORDED: dict[str, dict[str, list[float]]] = json.loads(
    (Path(__file__).parent / "init_stds.json").read_text(encoding="utf-8")
)
"""Standard deviation of every weight in order, by network and method, recorded from an early
version without example inputs."""


@pytest.mark.parametrize("network", RECORDED)
def test_standard_deviations_are_those_recorded(network: str) -> None:
    torch.manual_seed(0)
    model = models.create(network)
    for method, expected in RECORDED[network].items():
        found = [row.std for row in initialize_(model, method=method).rows]
        assert found == pytest.approx(expected, rel=1e-6), method


def test_the_recorded_table_is_complete() -> None:
    assert len(RECORDED) == 20
    assert all(
        set(methods) == {"taylor", "exact", "msra", "xavier"} for methods in RECORDED.values()
    )
