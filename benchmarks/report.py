"""Measures the size of the report of 200 runs of 1,000 epochs, and the time it takes.

    python benchmarks/report.py

Makes up the runs in a temporary directory, reports them twice and opens the page in Chromium.
Prints the results and writes results/report.json.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from browser import browser, missing  # noqa: E402
from report_runs import write_run  # noqa: E402

from common import write  # noqa: E402

COMMAND = "import sys; from mpelu.lab.cli import main; sys.exit(main())"
LOADS = 5


def report(runs: Path, out: Path) -> float:
    """Seconds that the command takes."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COMMAND, "report", str(runs), "-o", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def drawn(page: Path) -> list[float]:
    """Seconds from the start of each load until everything is drawn."""
    seconds = []
    with browser() as window:
        window.look(1400, dark=False)
        for _ in range(LOADS):
            window.open(page.resolve().as_uri())
            seconds.append(int(window.wait("return document.documentElement.dataset.drawn")) / 1e3)
        lines = window.run("return document.querySelectorAll('#curves path.line').length")
    print(f"curves drawn: {lines}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=1000)
    chosen = parser.parse_args()
    if absent := missing():
        sys.exit(f"report: {absent} must be installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index in range(chosen.runs):
            write_run(
                folder / "runs" / f"network{index // 5}-seed{index % 5}",
                epochs=chosen.epochs,
                seed=index % 5,
                floor=6 + index / 50,
                learned=True,
                variances=[0.98**layer for layer in range(110)],
            )
        out = folder / "report"
        first, again = report(folder / "runs", out), report(folder / "runs", out)
        page = out / "index.html"
        megabytes = page.stat().st_size / 1e6
        loads = drawn(page)
    figures = {
        "runs": chosen.runs,
        "epochs": chosen.epochs,
        "page_megabytes": round(megabytes, 2),
        "report_seconds": round(first, 2),
        "report_again_seconds": round(again, 2),
        "drawn_seconds": {"median": statistics.median(loads), "worst": max(loads)},
    }
    for what, value in figures.items():
        print(f"{what}: {value}")
    print(write("report", figures))


if __name__ == "__main__":
    main()
