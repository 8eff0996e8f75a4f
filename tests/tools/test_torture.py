"""A sample of every attack that `make torture` runs in full."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="attacks copy their process")


@pytest.mark.parametrize(("attack", "share", "cases"), [
    ("crashes", "0.015", 9), ("flips", "0.012", 12), ("fuzz", "0.01", 600),
])  # fmt: skip
def test_a_sample_survives(attack: str, share: str, cases: int) -> None:
    """In a process of its own, because one with threads can't be copied safely."""
    path = os.pathsep.join(filter(None, [str(TOOLS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "torture", attack, "--share", share]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    total = re.search(r"^all +([\d,]+) +([\d,]+)$", done.stdout, re.MULTILINE)
    assert total is not None
    assert total[1] == total[2] == f"{cases:,}"


def test_an_attack_notices_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attack finds a package that doesn't withstand it."""
    from torture import fuzz

    def fragile(data: bytes) -> object:
        raise KeyError(data)

    assert fuzz.fuzz("fragile", fragile, [b"abc"], 5)
    lines = fuzz.fuzz("two lines", _two_lines, [b"abc"], 5)
    assert lines[0].startswith("two lines: not one line")


def _two_lines(data: bytes) -> object:
    raise ValueError("one\ntwo")
