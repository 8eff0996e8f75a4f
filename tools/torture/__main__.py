"""Runs all attacks and prints a table: attack, cases, survived."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from torture import bit_flips, crash_points, fuzz
from torture.cases import Attack

TESTS = {
    "killed while training, at random and in saves": ["tests/lab/training/test_train_resume.py"],
    "damaged and malicious checkpoints": ["tests/lab/training/test_train_checkpoint.py"],
    "damaged, missing and swept files": ["tests/lab/run/test_run_verification.py"],
    "hostile images, archives and JSON": ["tests/lab/test_hostile_files.py"],
    "servers that misbehave": ["tests/lab/data/test_data_download.py"],
    "requests to the report": ["tests/report/test_report_serve.py"],
    "hostile names on the page, in a browser": ["tests/report/test_report_browser.py"],
    "closed pipes and terminals, interrupts": [
        "tests/lab/training/test_train_display.py", "tests/lab/commands/test_command_line.py",
    ],
    "killed workers and runners of studies": ["tests/lab/sweep/test_studies_runner.py"],
}  # fmt: skip
"""Attacks that are tests, by what they do."""
SHOWN = 10


def tested(name: str, files: list[str]) -> Attack:
    """Runs tests as an attack."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", _last(done.stdout))}
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode and not lines:
        lines = [_last(done.stdout) or _last(done.stderr)]
    return Attack(name, counts.get("passed", 0) + failed, lines, "tests")


def _last(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "attacks", nargs="*", choices=["crashes", "flips", "fuzz", "tests", "all"], default="all",
        metavar="ATTACK", help="crashes, flips, fuzz, tests or all (default: all)",
    )  # fmt: skip
    parser.add_argument("--share", type=float, default=1.0, help="of the cases (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of flips and inputs (default: 0)")
    arguments = parser.parse_args()
    chosen, share, seed = arguments.attacks, arguments.share, arguments.seed
    _load()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        points = None if share >= 1 else max(2, round(570 * share))
        attacks: list[tuple[str, Callable[[], Attack]]] = [
            ("crashes", lambda: crash_points.attack(folder / "crashes", points)),
            ("flips", lambda: bit_flips.attack(folder / "flips", round(1000 * share), seed)),
            ("fuzz", lambda: fuzz.attack(folder / "fuzz", round(60_000 * share), seed)),
        ]
        for name, files in TESTS.items():
            attacks.append(("tests", lambda name=name, files=files: tested(name, files)))  # type: ignore[misc]
        done = [_run(attack) for kind, attack in attacks if "all" in chosen or kind in chosen]
    left = _processes_left()
    if left:
        print(f"processes left: {left}")
    total, survived = sum(each.cases for each in done), sum(each.survived for each in done)
    print(f"{'all':<52}{total:>9,}{survived:>10,}")
    return 0 if survived == total and not left else 1


def _run(attack: Callable[[], Attack]) -> Attack:
    began = time.monotonic()
    done = attack()
    seconds = time.monotonic() - began
    print(f"{done.name:<52}{done.cases:>9,}{done.survived:>10,}  {seconds:>5.0f} s  {done.note}")
    for line in done.failures[:SHOWN]:
        print(f"    {line}")
    sys.stdout.flush()
    return done


def _load() -> None:
    """Imports what every case needs, so that a copy of this process starts at once."""
    import torch

    for name in ("torch._dynamo", "mpelu.lab.inspecting"):
        import_module(name)
    torch.set_num_threads(1)  # a process with more threads can't be copied
    print(f"{'attack':<52}{'cases':>9}{'survived':>10}", flush=True)


def _processes_left() -> list[int]:
    """Children of this process that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
