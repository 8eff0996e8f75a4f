"""Trained networks, out of their run folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refusals import refusal
from train_helpers import equal, small

from mpelu.lab import cli, data, files
from mpelu.lab.run.folder import CHECKPOINTS
from mpelu.lab.training.launch import train
from mpelu.lab.training.step import evaluate
from mpelu.lab.training.trained import load_network


def test_the_trained_network_comes_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = small(preprocess="mean-image", lr=0.05)
    outcome = train(config, run)
    dataset = data.load(config, torch.device("cpu"))
    restored = load_network(run)
    assert restored.config == config
    assert (restored.channels, restored.size, len(restored.classes)) == (1, 8, 10)
    assert not restored.model.training
    _, error = evaluate(restored.model, dataset, config)
    assert error == outcome.test_error
    best = load_network(run, "best")
    assert evaluate(best.model, dataset, config)[1] == outcome.best_error
    last = load_network(run, "last")
    assert equal(dict(last.model.state_dict()), dict(restored.model.state_dict()))
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(restored.preprocess(images), dataset.preprocess(images))


def test_the_newest_weights_of_a_run_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(small(), run)
    (run / "model.safetensors").unlink()
    assert load_network(run).config == small()
    assert cli.main(["eval", str(run)]) == 0
    newest = run / CHECKPOINTS / "step-00000015.pt"
    assert str(newest) in capsys.readouterr().err
    for path in (run / CHECKPOINTS).glob("*.pt"):
        path.write_bytes(b"damaged")
    with refusal("step-00000015.pt"):
        load_network(run)
    with refusal("'first'", field="weights"):
        load_network(run, "first")


def test_a_run_without_weights_says_why(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = train(small(lr=1e9), run)
    assert outcome.state == "diverged"
    with refusal("diverged at step"):
        load_network(run)


def test_eval_takes_the_data_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train(small(epochs=1), run)
    assert cli.main(["eval", str(run)]) == 0
    assert capsys.readouterr().err == ""
    data = run / "data.json"
    files.write_json(data, {**files.read_json(data), "fingerprint": "0"})
    with pytest.raises(SystemExit):
        cli.main(["eval", str(run)])
    assert "expected the data the run was trained on" in capsys.readouterr().err
