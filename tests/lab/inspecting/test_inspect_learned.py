"""alpha and beta of modules and of run folders."""

from pathlib import Path

import pytest
import torch
from refusals import refusal
from safetensors.torch import save_file
from torch import nn

import mpelu
from mpelu.lab.inspecting import learned_parameters


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"schema": 4}')
    folder = tmp_path / "activations"
    folder.mkdir()
    for epoch in (0, 5, 10):
        save_file(
            {
                "act.alpha": torch.tensor([1.0, 1.0 + epoch]),
                "act.beta": torch.tensor([1.0, 2.0]),
                "slope.weight": torch.tensor([0.25]),
            },
            folder / f"epoch-{epoch:04d}.safetensors",
        )
    return tmp_path


def test_of_a_module() -> None:
    activation = mpelu.MPELU(2, [0.5, 1.0], 2.0)
    found = learned_parameters(nn.Sequential(nn.Linear(2, 2), activation, nn.PReLU(2)))
    assert found.epochs == ()
    assert {name: values.tolist() for name, values in found.final.items()} == {
        "1.alpha": [0.5, 1.0], "1.beta": [2.0, 2.0], "2.weight": [0.25, 0.25],
    }  # fmt: skip
    found.final["1.alpha"][0] = 9
    assert activation.alpha[0] == 0.5
    assert list(learned_parameters(mpelu.MPELU()).final) == ["alpha", "beta"]


def test_of_a_run(run: Path) -> None:
    found = learned_parameters(run)
    assert found.epochs == (0, 5, 10)
    assert found.history["act.alpha"].tolist() == [[1, 1], [1, 6], [1, 11]]
    assert found.final["act.alpha"].tolist() == [1, 11]
    assert set(found.final) == set(found.history) == {"act.alpha", "act.beta", "slope.weight"}


def test_while_a_run_goes_on(run: Path) -> None:
    (run / "activations" / "epoch-0015.safetensors.tmp").write_bytes(b"half")
    assert learned_parameters(run).final["act.alpha"].tolist() == [1, 11]


def test_nothing_there(tmp_path: Path) -> None:
    with refusal(tmp_path):
        learned_parameters(tmp_path)
    (tmp_path / "config.json").write_text('{"schema": 4}')
    found = learned_parameters(tmp_path)
    assert (found.epochs, found.history, found.final) == ((), {}, {})


def test_damaged(run: Path) -> None:
    path = run / "activations" / "epoch-0005.safetensors"
    path.write_bytes(b"not a file of tensors")
    with refusal("activations/epoch-0005.safetensors") as error:
        learned_parameters(run)
    assert "\n" not in str(error.value)
    save_file({"act.alpha": torch.ones(3)}, path)
    with refusal("epoch-0005"):
        learned_parameters(run)
