"""Every study, end to end with a few steps, and what a smoke test must not claim.

A network and its activation are trained once for all studies: 67 trainings for 246 runs. Runs that
differ in a rate or in the initialization are set up, and get a copy of the folder.
"""

import csv
import hashlib
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mpelu.lab import cli, paper, tables
from mpelu.lab.run.folder import write_config
from mpelu.lab.sweep import Options, executors
from mpelu.lab.sweep.executors import perform
from mpelu.lab.sweep.study import Job
from mpelu.lab.training.process import session
from mpelu.lab.training.trainer import Trainer

DRAWN = ("figure1", "figure4", "figure5")
"""Drawings are the same at every scale."""
RESEARCH = {
    "study-pilot": "research.activations:pilot",
    "study-bn": "research.activations:normalized",
    "study-no-bn": "research.activations:unnormalized",
    "study-advice": "research.activations:advice",
    "study-anchor": "research.activations:anchor",
    "depth": "research.depth:study",
}
OWN = ("study-bn", "study-no-bn", "study-advice", "study-anchor")
"""These draw their figures by themselves."""
UNTRAINED = {
    "seed", "lr", "activation_lr_mult", "activation_decay_mult", "alpha", "beta",
    "init", "init_sized", "init_shape", "init_distribution", "init_std", "linear_std",
}  # fmt: skip
"""Fields that a training is shared across."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of run folders, named by what was trained in them."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(autouse=True)
def _trained_once(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def once(job: Job, *, progress: bool = False) -> Job:
        values = asdict(job.config)
        kind = repr([values[name] for name in values if name not in UNTRAINED])
        kept = trained / hashlib.sha256(kind.encode()).hexdigest()
        if not kept.exists():
            outcome = perform(job, progress=progress)
            shutil.copytree(job.folder, kept)
            return outcome
        with session(job.config) as world:
            Trainer(job.config, Path(job.folder), world)
        shutil.copytree(kept, job.folder)
        write_config(Path(job.folder), job.config)
        return replace(job, state="finished", message="finished")

    monkeypatch.setattr(executors, "perform", once)


@pytest.mark.parametrize("name", [*paper.names(), *RESEARCH])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = RESEARCH.get(name, name)
    arguments = ["reproduce", asked, "--scale", "smoke", "--quiet", "--out", str(tmp_path)]
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
    assert len(found["figures"]) == (2 if found["plots"] or name in DRAWN + OWN else 0)
    expected = paper.find(asked).runs(Options(scale="smoke"))
    assert sorted(found["runs"]) == sorted(f"runs/{run.name}" for run in expected)
    out = capsys.readouterr().out
    assert found["title"] in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    check_it_claims_nothing(name, found, out, (folder / "result.md").read_text())


def check_it_claims_nothing(name: str, found: dict[str, Any], out: str, markdown: str) -> None:
    """A smoke test says that it is one, and compares nothing."""
    assert found["smoke"] == (name not in DRAWN)
    for text in (out, markdown):
        assert (tables.SMOKE in " ".join(text.split())) == found["smoke"]
    assert found["compare"] == []
    assert not any("pair" in note or "variance at" in note for note in found["notes"])
    texts = [cell["text"] for row in found["rows"] for cell in row[len(row) // 2 :]]
    assert not any(text.startswith(("fails:", "converges:")) for text in texts)
    if name == "table4":
        ratios = [row[4] for row in found["rows"]]
        assert ratios == [{"text": ""}] * 4


def test_figure2_says_which_error_was_measured(tmp_path: Path) -> None:
    cli.main(["reproduce", "figure2", "--scale", "smoke", "--quiet", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "figure2-smoke" / "result.json").read_text())
    assert found["header"][1:3] == [
        "paper, iterations to 15 % test error",
        "measured, iterations to 95 % test error",
    ]
    assert "95 % test error instead of 15 %" in found["shrunk"]
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
