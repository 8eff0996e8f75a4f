"""Every recipe, end to end on a few steps."""

import csv
import json
from pathlib import Path

import pytest

from mpelu.lab import cli, recipes


@pytest.mark.parametrize("name", recipes.names())
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", name, "--scale", "smoke", "--quiet", "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    folder = tmp_path / f"{name}-smoke"
    found = json.loads((folder / "result.json").read_text())
    assert (found["recipe"], found["scale"]) == (name, "smoke")
    width = len(found["header"])
    assert found["rows"]
    assert all(len(row) == width for row in found["rows"])
    with (folder / "result.csv").open() as file:
        assert len(list(csv.reader(file))) == len(found["rows"]) + 1
    assert (folder / "result.md").read_text().startswith(f"# {name}: ")
    for figure in found["figures"]:
        assert (folder / figure).stat().st_size > 1000
    assert len(found["figures"]) == (2 if found["plots"] or name in DRAWN else 0)
    expected = recipes.find(name).runs(recipes.Options(scale="smoke"))
    assert found["runs"] == [f"runs/{run.name}" for run in expected] or set(found["runs"]) == {
        f"runs/{run.name}" for run in expected
    }
    assert found["title"] in capsys.readouterr().out.replace("\n", " ")


DRAWN = ("figure1", "figure4", "figure5")
