"""`--initial-weights`: what fits is taken, and what doesn't is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refusals import refusal
from safetensors.torch import load_file
from torch import nn
from train_helpers import equal, final, small, stopped_after

from mpelu.lab import resume, train
from mpelu.lab.training.display import Lines
from mpelu.lab.training.trained import load_initial


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "first"
    train(small(epochs=1), run)
    return run


def network(classes: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))


def test_a_run_starts_from_the_weights_of_another(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a learning rate of almost nothing, they are the weights at the end."""
    config = small(initial_weights=str(first), epochs=1, lr=1e-30, weight_decay=0.0, seed=5)
    train(config, tmp_path / "run", display=Lines())
    said = " ".join(capsys.readouterr().out.split())
    before, after = (load_file(run / "model.safetensors") for run in (first, tmp_path / "run"))
    names = [name for name in before if "running" not in name and "num_batches" not in name]
    assert all(torch.equal(before[name], after[name]) for name in names)
    assert "initial weights" in said
    assert f"{len(before)} of {len(before)} tensors" in said
    assert "left as initialized" not in said
    assert "first/model.safetensors" in (tmp_path / "run" / "environment.json").read_text()


def test_a_resumed_run_does_not_need_the_file(first: Path, tmp_path: Path) -> None:
    source = tmp_path / "start.safetensors"
    source.write_bytes((first / "model.safetensors").read_bytes())
    config = small(initial_weights=str(source), epochs=2, augment="none")
    train(config, tmp_path / "whole")
    stopped_after(7, train, config, tmp_path / "broken")
    source.unlink()
    assert resume(tmp_path / "broken").state == "finished"
    assert equal(final(tmp_path / "broken"), final(tmp_path / "whole"))
    with refusal(source, field="initial_weights"):
        train(config, tmp_path / "again")


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_does_not_fit_is_left_as_it_was_and_named(
    tmp_path: Path, prefix: str, wrapped: bool
) -> None:
    source, model = network(), network(classes=5)
    state = {f"{prefix}{name}": value for name, value in source.state_dict().items()}
    state[f"{prefix}extra.weight"] = torch.zeros(2)
    del state[f"{prefix}0.bias"]
    torch.save({"state_dict": state} if wrapped else state, tmp_path / "net.pt")
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    said = load_initial(model, str(tmp_path / "net.pt"))
    assert torch.equal(model.state_dict()["0.weight"], source.state_dict()["0.weight"])
    for name in ("0.bias", "2.weight", "2.bias"):
        assert torch.equal(model.state_dict()[name], kept[name])
    assert ": 1 of 4 tensors; " in said
    assert (
        "of another shape, so left as initialized: 2.weight ([3, 8], here [5, 8]) and 2.bias "
        "([3], here [5])"
    ) in said
    assert "not in the file, so left as initialized: 0.bias" in said
    assert said.endswith("not in the network: extra.weight")


def test_weights_of_which_none_fits_are_refused(tmp_path: Path) -> None:
    torch.save({"other": torch.zeros(3)}, tmp_path / "net.pt")
    with refusal(tmp_path / "net.pt", "other", field="initial_weights"):
        load_initial(network(), str(tmp_path / "net.pt"))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('ran')",))


def test_files_that_are_no_weights_are_refused_and_run_no_code(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    for name in ("text.pt", "text.safetensors", "list.pt", "evil.pt"):
        with refusal(name, field="initial_weights"):
            load_initial(network(), str(tmp_path / name))
