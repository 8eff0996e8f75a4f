"""The examples, each run as a user would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {
    "timm_resnet": "timm",
    "lightning_module": "lightning",
    "transformers_text": "transformers",
}
_RUN = """
import runpy, sys, types
# torchvision's compiled half needs the torch it was built for; no example uses it.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("stub")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def said_by(name: str) -> str:
    """What an example prints."""
    package = NEEDED.get(name)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def percent(said: str, name: str) -> float:
    return float(re.findall(rf"^{name}: ([\d.]+)%", said, re.M)[0])


def losses(said: str) -> tuple[float, float]:
    first, last = re.findall(r"loss ([\d.]+) -> ([\d.]+)", said)[-1]
    return float(first), float(last)


def test_every_example_is_run() -> None:
    here = {path.stem for path in EXAMPLES.glob("*.py")}
    tested = set(re.findall(r'said_by\("(\w+)"\)', Path(__file__).read_text()))
    assert here == tested


def test_tabular_mlp() -> None:
    said = said_by("tabular_mlp")
    assert percent(said, "exact") > 88
    assert percent(said, "default") < 75


def test_fine_tune() -> None:
    said = said_by("fine_tune")
    assert percent(said, "converted") == percent(said, "with ReLU") > 70
    assert percent(said, "fine-tuned") >= percent(said, "converted")
    assert "4 new parameters" in said


def test_custom_loop() -> None:
    assert percent(said_by("custom_loop"), "restored") > 80


def test_timm_resnet() -> None:
    said = said_by("timm_resnet")
    first, last = losses(said)
    assert last < 0.8 * first
    assert "17 activations" in said


def test_lightning_module() -> None:
    first, last = losses(said_by("lightning_module"))
    assert last < 0.5 * first


def test_transformers_text() -> None:
    said = said_by("transformers_text")
    first, last = losses(said)
    assert last < 0.8 * first
    assert said.count("GELUActivation") == 2
