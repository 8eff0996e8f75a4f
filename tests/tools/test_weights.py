"""The published networks of docs/results/weights are what their cards say."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torture.bit_flips import flip

from mpelu.lab import cli, data, files, load_network
from mpelu.lab.run import folder
from mpelu.lab.run.verification import verify
from mpelu.lab.training.step import evaluate
from mpelu.lab.training.trained import check_data
from research import weights

ROOT = Path(__file__).parents[2]
NAMES = ["resnet-20-relu", "resnet-20-mpelu"]
CIFAR10 = Path(os.environ.get("CIFAR10", ROOT / "data"))


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_card(name: str) -> None:
    run = weights.WEIGHTS / name
    card = files.read_json(run / folder.CARD)
    digest = hashlib.sha256((run / folder.WEIGHTS).read_bytes()).hexdigest()
    assert digest == card["sha256_of_weights"]
    found = torch.tensor(weights.scores(run))
    torch.testing.assert_close(
        found, torch.tensor(card["scores_of_fixed_images"]), atol=1e-4, rtol=1e-4
    )
    assert load_network(run, device="cpu").config.data_dir is None


def test_published_networks_are_intact_and_damage_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(weights.WEIGHTS)]) == 0
    assert "0 of 2 runs damaged" in capsys.readouterr().out
    published = weights.WEIGHTS / NAMES[0]
    names = sorted(path.name for path in published.iterdir())
    assert len(names) == 5
    for name in names:
        run = Path(shutil.copytree(published, tmp_path / f"flipped-{name}"))
        flip(run / name, 8 * ((run / name).stat().st_size // 2) + 1)
        assert [line for line in verify(run).damage if line.startswith(name)], name
    for name in set(names) - {folder.CONFIG}:  # a folder without it isn't a run
        run = Path(shutil.copytree(published, tmp_path / f"without-{name}"))
        (run / name).unlink()
        assert verify(run).damage, name
    shutil.copyfile(weights.WEIGHTS / NAMES[1] / folder.CARD, tmp_path / "card.json")
    other = Path(shutil.copytree(published, tmp_path / "other"))
    shutil.move(tmp_path / "card.json", other / folder.CARD)
    assert verify(other).damage == ("card.json belongs to other weights than model.safetensors",)


def test_the_table_and_the_size() -> None:
    cards = {name: files.read_json(weights.WEIGHTS / name / folder.CARD) for name in NAMES}
    assert (weights.WEIGHTS / "README.md").read_text() == weights.page(cards)
    size = sum(path.stat().st_size for path in weights.WEIGHTS.rglob("*") if path.is_file())
    assert size < 3_000_000


@pytest.mark.parametrize("name", NAMES)
def test_error_on_cifar10(name: str) -> None:
    if not (CIFAR10 / "cifar-10-batches-py").is_dir():
        pytest.skip(f"no cifar-10-batches-py in {CIFAR10}; the variable CIFAR10 names its place")
    run = weights.WEIGHTS / name
    trained = load_network(run, device="cpu")
    dataset = data.load(replace(trained.config, data_dir=str(CIFAR10)), trained.device)
    check_data(run, dataset)
    _, error = evaluate(trained.model, dataset, trained.config)
    assert error == pytest.approx(files.read_json(run / folder.CARD)["test_error"], abs=0.05)
