"""Numbers of two commits, as benchmarks/zoo_stds.py writes and compares them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def stds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("zoo_stds")


@pytest.mark.filterwarnings("ignore")
def test_a_weight_that_differs_is_listed(
    stds: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "numbers.json"
    stds.write(path, ["torch/silu-50"], ["taylor", "lsuv"], 0)
    old, new = (json.loads(path.read_text()) for _ in range(2))
    assert not stds.compare(old, new)
    found = capsys.readouterr().out
    assert "cases in both: 3\n" in found
    assert "largest relative difference: 0\n" in found

    new["torch/silu-50"]["taylor, no inputs, seed 0"]["0.weight"] *= 1 + 1e-5
    assert stds.compare(old, new)
    found = capsys.readouterr().out
    assert "torch/silu-50: taylor, no inputs, seed 0\n    0.weight: " in found
    assert "numbers that differ: 1\n" in found


def test_what_is_in_the_file_is_not_computed_again(stds: Any, tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    stored: Any = {"torch/transformer": {f"taylor, {has}inputs, seed 0": {} for has in ("", "no ")}}
    path.write_text(json.dumps(stored))
    stds.write(path, ["torch/transformer"], ["taylor"], 0)
    assert json.loads(path.read_text()) == stored


def test_a_method_has_to_fail_at_both_commits_and_alike(stds: Any) -> None:
    def differ(old: Any, new: Any) -> Any:
        return stds.compare({"model": {"case": old}}, {"model": {"case": new}})

    assert not differ("ValueError: expected more", "ValueError: expected less")
    assert differ("ValueError: expected more", "RuntimeError: expected more")
    assert differ("ValueError: expected more", {"weight": 1.0})
    assert differ({"weight": 1.0}, "ValueError: expected more")
    assert differ({"weight": 1.0}, {"weights": 1.0})
