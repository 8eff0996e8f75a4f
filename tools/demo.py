"""What `make demo` shows: four activations learn the same digits side by side, and a report."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mpelu.activations import TABLE
from mpelu.lab.plots import COLORS
from mpelu.lab.run.folder import Run, is_run, read

ACTIVATIONS = ("mpelu", "elu", "prelu", "relu")
EPOCHS = 20
AT_ONCE = 2
STYLES = {"mpelu": "-", "elu": "--", "prelu": "-.", "relu": ":"}


def command(*arguments: str) -> list[str]:
    code = "import sys; from mpelu.lab.cli import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]


def start(activation: str, folder: Path) -> subprocess.Popen[bytes]:
    """A new run, or what is left of one."""
    if is_run(folder):
        return subprocess.Popen(command("train", "--resume", str(folder), "--quiet"))
    settings = {
        "--model": "resnet-20", "--activation": activation, "--epochs": EPOCHS,
        "--milestones": EPOCHS * 3 // 4, "--lr": 0.05, "--batch-size": 64, "--nesterov": None,
        "--threads": 1, "--out": folder,
    }  # fmt: skip
    words = [str(word) for pair in settings.items() for word in pair if word is not None]
    return subprocess.Popen(command("train", *words, "--quiet"))


def train_all(folder: Path) -> dict[str, Run]:
    """Trains the four, two at a time, with a bar for each."""
    waiting = list(ACTIVATIONS)
    at_work: dict[str, subprocess.Popen[bytes]] = {}
    columns = (TextColumn("{task.description:<6}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console()) as progress:
        bars = {
            name: progress.add_task(name, total=EPOCHS, said="", start=False) for name in waiting
        }
        while waiting or at_work:
            while waiting and len(at_work) < AT_ONCE:
                name = waiting.pop(0)
                at_work[name] = start(name, folder / name)
                progress.start_task(bars[name])
            time.sleep(0.3)
            for name, process in list(at_work.items()):
                code = process.poll()
                if is_run(folder / name):
                    tests = read(folder / name).tests
                    if tests:
                        last = tests[-1]
                        said = f"epoch {last['epoch']:>2}, test error {last['test_error']:5.2f} %"
                        progress.update(bars[name], completed=len(tests), said=said)
                if code is not None:
                    progress.stop_task(bars[name])
                    del at_work[name]
                    if code != 0:
                        sys.exit(f"the {name} run ended with exit code {code}")
    return {name: read(folder / name) for name in ACTIVATIONS}


def draw(found: dict[str, Run], picture: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, run in found.items():
        epochs = [row["epoch"] for row in run.tests]
        errors = [row["test_error"] for row in run.tests]
        axes.plot(
            epochs,
            errors,
            STYLES[name],
            color=COLORS[name],
            label=TABLE[name].label,
            linewidth=1.8,
        )
    axes.set(xlabel="epoch", ylabel="test error (%)", yscale="log")
    axes.set_title("ResNet-20 on 8x8 handwritten digits")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    marks = (0.2, 0.5, 1, 2, 5, 10, 20, 50)
    low, high = axes.get_ylim()
    shown = [mark for mark in marks if low <= mark <= high]
    axes.set_yticks(shown, [f"{mark:g}" for mark in shown])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(title="activation")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def main(folder: Path) -> None:
    print("Training ResNet-20 with four activations on the built-in digits")
    found = train_all(folder)
    table = Table(title=f"Digits, ResNet-20, {EPOCHS} epochs, one seed")
    table.add_column("activation")
    for title in ("test error, last", "best", "train loss"):
        table.add_column(title, justify="right")
    table.add_column("run folder")
    for name, run in found.items():
        if run.tests:
            last = run.tests[-1]
            best = min(row["test_error"] for row in run.tests)
            values = (f"{last['test_error']:.2f} %", f"{best:.2f} %", f"{last['train_loss']:.4f}")
        else:
            values = (str(run.status.get("message", "no test")), "", "")
        table.add_row(name, *values, str(run.path))
    Console().print(table)
    print("One seed and 360 test images: differences of one percent (4 images) mean nothing.")
    picture = folder / "digits.png"
    draw(found, picture)
    print(f"Figure: {picture}")
    print("Inspecting the networks")
    for name in ACTIVATIONS:
        subprocess.run(command("inspect", str(folder / name), "--quiet"), check=True)
    subprocess.run(command("report", str(folder), "-o", str(folder / "report")), check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
