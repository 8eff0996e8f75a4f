"""Runs in slope and rate: trained, resumed, loaded, inspected and shown like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from train_helpers import equal, final, small

import mpelu
from mpelu import MPELU
from mpelu.lab import load_network, resume, train
from mpelu.lab.errors import UserError
from mpelu.lab.inspecting import inspect_run, learned_parameters
from mpelu.lab.reporting.runs import read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "slope"
    train(small(model="mpelu-resnet-b-8", coordinates="slope"), folder)
    return folder


def test_a_trained_network_has_slope_and_rate(run: Path) -> None:
    model = load_network(run).model
    found = [each for each in model.modules() if isinstance(each, MPELU)]
    assert {each.coordinates for each in found} == {"slope"}
    after = [each for each in found if list(each.initial_rate) == [pytest.approx(0.01)]]
    assert [list(each.initial_slope) for each in after] == [[pytest.approx(0.98)]] * 3


def test_an_extended_run_ends_with_the_bits_of_a_long_one(run: Path, tmp_path: Path) -> None:
    config = small(model="mpelu-resnet-b-8", coordinates="slope")
    train(config, tmp_path / "short")
    resume(tmp_path / "short", changes={"epochs": 4})
    train(small(model="mpelu-resnet-b-8", coordinates="slope", epochs=4), tmp_path / "long")
    assert equal(final(tmp_path / "short"), final(tmp_path / "long"))


def test_snapshots_inspection_and_report_name_slope_and_rate(run: Path) -> None:
    history = learned_parameters(run).history
    assert {name.rpartition(".")[2] for name in history} == {"slope", "rate"}
    inspected = str(inspect_run(run, images=8).values)
    assert "slope" in inspected
    assert "rate" in inspected
    shown = str(read_run(run))
    assert "slope of MPELU" in shown
    assert "rate of MPELU" in shown


def test_both_parameters_learn_with_the_factor() -> None:
    model = mpelu.models.create("resnet-8", activation="mpelu", coordinates="slope")
    groups = mpelu.param_groups(model, lr=0.1)
    fast = {id(each) for group in groups if group["lr_mult"] == 5 for each in group["params"]}
    names = {name for name, each in model.named_parameters() if id(each) in fast}
    assert {name.rpartition(".")[2] for name in names} == {"slope", "rate"}


def test_coordinates_are_those_of_mpelu_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="relu takes no coordinates") as told:
        train(small(activation="relu", coordinates="slope"), tmp_path / "run")
    assert told.value.field == "coordinates"
    with pytest.raises(UserError) as told:
        train(small(coordinates="other"), tmp_path / "run")
    assert told.value.field == "coordinates"
    assert not (tmp_path / "run").exists()


def test_no_start_of_their_own_is_needed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    paper = mpelu.models.create("resnet-8", activation="mpelu", alpha=0.25)
    torch.manual_seed(0)
    slope = mpelu.models.create("resnet-8", activation="mpelu", alpha=0.25, coordinates="slope")
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(slope.eval()(x), paper.eval()(x))
