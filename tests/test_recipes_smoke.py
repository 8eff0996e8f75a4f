"""Every recipe, end to end on a few steps."""

import csv
import json
from pathlib import Path

import pytest

from mpelu.lab import cli
from mpelu.lab import studies as recipes


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
    assert sorted(found["runs"]) == sorted(f"runs/{run.name}" for run in expected)
    assert found["title"] in capsys.readouterr().out.replace("\n", " ")


DRAWN = ("figure1", "figure4", "figure5")


def test_figure2_says_which_error_was_measured(tmp_path: Path) -> None:
    cli.main(["reproduce", "figure2", "--scale", "smoke", "--quiet", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "figure2-smoke" / "result.json").read_text())
    assert found["header"][1:3] == [
        "paper, iterations to 15 % test error",
        "measured, iterations to 95 % test error",
    ]
    assert "95 % error in place of 15 %" in found["shrunk"]
    assert found["rows"][0][1] == {"text": "25k", "value": 25_000}


def test_top_5_of_runs_that_lost_something(tmp_path: Path) -> None:
    arguments = ["reproduce", "table3", "--scale", "smoke", "--quiet", "--out", str(tmp_path)]
    cli.main(arguments)
    folder = tmp_path / "table3-smoke"
    before = json.loads((folder / "result.json").read_text())
    kept = folder / "runs" / "slope-0-seed0" / "top5.json"
    kept.write_text('{"err')
    bare = folder / "runs" / "slope-1-seed0"
    (bare / "top5.json").unlink()
    (bare / "model.safetensors").write_text("nothing")
    assert cli.main(arguments) == 0
    after = json.loads((folder / "result.json").read_text())
    assert after["rows"][0] == before["rows"][0]
    assert after["rows"][-1][5] == {"text": "no run"}
    assert any(note.startswith("without top-5 error: ") for note in after["notes"])
