"""Shows whether a change kept the numbers: runs short cases with two commits and compares them.

    python tools/golden.py --against COMMIT [--only NAME ...] [--keep DIR]

COMMIT is compared with the working tree, uncommitted changes included. Both are copied to a
temporary directory, their CPU kernels are built, and every case runs with both on one CPU thread.
Weights must be equal to the bit, and so must every number in metrics.jsonl, result.json,
inspect.json and the output of `mpelu eval`. Text and times are not compared. A number that only the
working tree has is reported as a note; a number that it lacks is a difference.

Exit code: 0 if all is equal, 1 if something differs, 2 if a case could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from golden_compare import compare, read

TRAIN = "train --out run --quiet --threads 1 --train-limit 400 --test-limit 100 --log-every 1"
RESNET = f"{TRAIN} --model resnet-8 --model-options width=8 --activation mpelu --batch-size 40"
PLAIN = (
    f"{TRAIN} --model plain-15 --model-options width=8 fc_width=32 input_size=19 batch_norm=false "
    "--image-size 19 --activation mpelu --batch-size 40 --epochs 1 --lr 0.01"
)
STUDY = "reproduce --scale smoke --out . --quiet"
CASES: dict[str, tuple[str, ...]] = {
    "resnet-mpelu": (f"{RESNET} --augment pad-crop-flip --nesterov --epochs 3 --milestones 2",),
    "nin-prelu": (
        f"{TRAIN} --model nin --activation prelu --preprocess gcn-zca --crop 7 --augment crop-flip "
        "--batch-size 20 --iterations 10",
    ),
    "plain-elu": (f"{PLAIN} --activation elu --preprocess mean-image",),
    "init-taylor": (f"{PLAIN} --init taylor",),
    "init-exact": (f"{PLAIN} --init exact --init-mode fan_out",),
    "init-msra": (f"{PLAIN} --init msra --activation prelu",),
    "init-gaussian": (f"{PLAIN} --init gaussian --init-std 0.05",),
    "init-lsuv": (f"{PLAIN} --init lsuv",),
    "linear-std": (f"{PLAIN} --init taylor --linear-std 0.02 0.03 0.01",),
    "accumulate": (f"{RESNET} --accumulate 3 --epochs 2",),
    "bf16": (f"{RESNET} --precision bf16 --epochs 2",),
    "fp16": (f"{RESNET} --precision fp16 --epochs 2 --ema 0.9",),
    "adamw": (f"{RESNET} --optimizer adamw --activation-decay-mult 0 --epochs 2 --lr 0.003",),
    "warmup-table11": (
        f"interrupt {RESNET} --model nopre-bn-resnet-11 --epochs 6 --warmup 3 --warmup-lr 0.01",
        "train --resume run --quiet",
    ),
    "warmup-depth": (
        f"{TRAIN} --model plain-15 --model-options width=8 small_maps=true --activation mpelu "
        "--init deep --batch-size 20 --accumulate 2 --iterations 10 --schedule cosine --lr 0.015 "
        "--warmup 4 --warmup-lr 0.002 --clip-norm 1",
    ),
    "channels-last": (f"{RESNET} --channels-last --epochs 2",),
    "torchrun": (f"torchrun {RESNET} --augment pad-crop-flip --epochs 2",),
    "resume": (
        f"interrupt {RESNET} --model stochastic-resnet-8 --augment pad-crop-flip --epochs 20",
        "train --resume run --quiet",
    ),
    "eval-inspect": (f"{RESNET} --epochs 2", "eval run", "inspect run --quiet"),
    "table5": (f"{STUDY} table5",),
    "table7": (f"{STUDY} table7",),
    "table9": (f"{STUDY} table9",),
    "figure2": (f"{STUDY} figure2",),
}
"""Command lines of each case. `torchrun` in front starts two processes; `interrupt` in front sends
SIGINT after the first step."""
RENAMED: dict[str, str] = {}
"""Words that are spelled differently in COMMIT's command lines: {"--new-flag": "--old-flag"}. A
flag that COMMIT doesn't have is left out there, with its values: {"--new-flag": ""}."""
YIELDS = {
    "train": {"weights", "metrics"},
    "eval": {"evaluation"},
    "inspect": {"inspection"},
    "reproduce": {"table"},
}
"""What a command must leave behind, so that no case is equal because nothing was compared."""

MAIN = (
    "import os, sys, mpelu; from mpelu.lab.cli import main; "
    "assert mpelu.__file__.startswith(os.environ['PYTHONPATH']), mpelu.__file__; sys.exit(main())"
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
TIMEOUT = 300  # seconds for one command


class CannotRun(Exception):
    """Why there is nothing to compare."""


class Side(NamedTuple):
    """One of the two versions: its source, its results, and the words it spells differently."""

    name: str
    source: Path
    results: Path
    renamed: dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", required=True, metavar="COMMIT", help="commit to compare with")
    cases = f"cases to run (default: all): {', '.join(CASES)}"
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help=cases)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the results in DIR")
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
            folder = Path(temporary).resolve()
            sides = prepare(arguments.against, folder, (arguments.keep or folder).resolve())
            verdicts = Counter(
                check(name, sides) for name in dict.fromkeys(arguments.only or CASES)
            )
    except (CannotRun, KeyboardInterrupt) as error:
        print(f"golden: {str(error) or 'interrupted'}", file=sys.stderr)
        return 2
    counts = ", ".join(
        f"{name}: {verdicts[name]}" for name in ("equal", "different", "could not run")
    )
    print(f"{counts} ({time.monotonic() - began:.0f} s)")
    return 2 if verdicts["could not run"] else 1 if verdicts["different"] else 0


def prepare(commit: str, folder: Path, results: Path) -> tuple[Side, Side]:
    """Copies both sources into the folder and builds their kernels."""
    root = Path(git(Path(), "rev-parse", "--show-toplevel").decode().strip())
    old = Side(commit, folder / "old-source", results / "old", RENAMED)
    new = Side("working tree", folder / "new-source", results / "new", {})
    if old.results.exists() or new.results.exists():
        raise CannotRun(f"--keep: expected a directory without earlier results, got {results}")
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", commit))) as archive:
        archive.extractall(old.source, filter="data")
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in listed.decode().split("\0"):
        if (root / name).is_file():
            (new.source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, new.source / name)
    for side in (old, new):
        print(f"building the CPU kernel of {side.name}", flush=True)
        build = [sys.executable, "setup.py", "build_ext", "--inplace"]
        done = subprocess.run(build, cwd=side.source, capture_output=True, text=True)
        if not any(path.suffix in (".so", ".pyd") for path in side.source.glob("src/mpelu/**/*")):
            raise CannotRun(f"{side.name}: no CPU kernel was built: {last_line(done.stderr)}")
    return old, new


def git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True)
    if done.returncode:
        raise CannotRun(f"git {' '.join(words)}: {last_line(done.stderr.decode())}")
    return done.stdout


def check(name: str, sides: Sequence[Side]) -> str:
    """Runs a case on both sides, prints a line about it and returns the verdict."""
    began = time.monotonic()
    print(f"{name:<15}", end=" ", flush=True)
    counts: Counter[str] = Counter()
    try:
        for command in CASES[name]:
            run(command, sides, name)
        old, new = (read(side.results / name) for side in sides)
        counts.update(kind for kind, _ in old)
        for word in " ".join(CASES[name]).split():
            if lacking := YIELDS.get(word, set()) - counts.keys():
                raise CannotRun(f"{sides[0].name}: {word} left no {', '.join(lacking)}")
        verdict, detail = compare(old, new)
    except CannotRun as error:
        verdict, detail = "could not run", [str(error)]
    compared = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    line = "; ".join(filter(None, (compared, *detail)))
    print(f"{verdict}: {line} ({time.monotonic() - began:.0f} s)", flush=True)
    return verdict


def run(command: str, sides: Sequence[Side], name: str) -> None:
    """Runs a command line on both sides at once."""
    words = command.split()
    how = words.pop(0) if words[0] in ("torchrun", "interrupt") else ""
    folders = [side.results / name for side in sides]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for side, folder in zip(sides, folders, strict=True):
            launcher = [sys.executable, *TORCHRUN] if how == "torchrun" else []
            settings = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(side.source / "src")}
            folder.mkdir(parents=True, exist_ok=True)
            program = [*launcher, sys.executable, "-c", MAIN, *spelled(words, side.renamed)]
            output, errors = (folder / name for name in (f"{words[0]}.txt", "errors.txt"))
            with output.open("ab") as out, errors.open("ab") as err:
                processes.append(
                    subprocess.Popen(program, cwd=folder, stdout=out, stderr=err, env=settings)
                )
        if how == "interrupt":
            interrupt(processes, folders)
        codes = [process.wait(TIMEOUT) for process in processes]
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{words[0]} took more than {TIMEOUT} s") from None
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
            process.kill()
    for side, folder, code in zip(sides, folders, codes, strict=True):
        if code != (130 if how == "interrupt" else 0):
            said = last_line((folder / "errors.txt").read_text())
            raise CannotRun(f"{side.name}: {words[0]} ended with exit code {code}: {said}")


def spelled(words: Sequence[str], renamed: dict[str, str]) -> list[str]:
    """The words of a command line as a version spells them, without flags that it doesn't have."""
    found: list[str] = []
    is_known = True
    for word in words:
        if word.startswith("--"):
            is_known = renamed.get(word) != ""
        if is_known:
            found.append(renamed.get(word, word))
    return found


def interrupt(processes: Sequence[subprocess.Popen[bytes]], folders: Sequence[Path]) -> None:
    """Sends each process SIGINT as soon as its run has logged a step."""
    waiting = dict(zip(folders, processes, strict=True))
    while waiting:
        for folder, process in list(waiting.items()):
            log = folder / "run" / "metrics.jsonl"
            if process.poll() is not None or (log.exists() and log.stat().st_size):
                process.send_signal(signal.SIGINT)
                del waiting[folder]
        time.sleep(0.005)


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    sys.exit(main())
