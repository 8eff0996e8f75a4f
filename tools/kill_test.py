"""Kills one run 20 times at random moments and compares its end with that of an unbroken run.

Every kill is a SIGKILL, in the middle of a step or of a save, followed by resuming. Weights,
optimizer, statistics and metrics.jsonl must come out equal to the last bit.

    python tools/kill_test.py [FOLDER] [--kills 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHILD = """
import sys, time
from pathlib import Path
from mpelu.lab.training import launch
from mpelu.lab.run import files
from mpelu.lab.config import Config

run, stage = Path(sys.argv[1]), sys.argv[2]

def pause(path, at):
    # Says where the save has got to, and waits a moment for the kill.
    if stage == at and str(path).endswith(".pt"):
        print("saving", flush=True)
        time.sleep(0.05)

write, replace = files.write, files.os.replace

def replacing(source, target):
    pause(target, "before rename")
    replace(source, target)
    pause(target, "after rename")

def writing(path, data, **options):
    if stage == "half written" and str(path).endswith(".pt"):
        with open(str(path) + files.TEMPORARY, "wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            pause(path, "half written")
    write(path, data, **options)

files.os.replace = replacing
files.write = writing
print("ready", flush=True)
if (run / "config.json").exists():
    launch.resume(run)
else:
    launch.train(Config.from_json(Path(sys.argv[3]).read_text()), run)
"""
STAGES = (
    "anywhere", "half written", "anywhere", "before rename", "at the start", "after rename",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="for the two runs (a temporary one)")
    parser.add_argument("--kills", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return compare(folder, arguments.kills, random.Random(arguments.seed))


def compare(folder: Path, kills: int, chance: random.Random) -> int:
    import torch

    from mpelu.lab.config import Config
    from mpelu.lab.run import checkpoint
    from mpelu.lab.training.launch import train

    torch.set_num_threads(1)
    # Long enough that a resumed process never comes to the end between two kills.
    config = Config(
        model="stochastic-resnet-8", model_options={"width": 8}, activation="mpelu",
        augment="pad-crop-flip", epochs=6 * kills, batch_size=100, checkpoint_every=4, log_every=3,
        train_limit=500, test_limit=100, threads=1,
    )  # fmt: skip
    (folder / "config.json").write_text(config.to_json())
    began = time.monotonic()
    outcome = train(config, folder / "whole")
    print(f"unbroken: {outcome.message} ({time.monotonic() - began:.0f} s)", flush=True)
    broken = folder / "broken"
    for number in range(1, kills + 1):
        stage = STAGES[number % len(STAGES)]
        moment = kill(folder, broken, stage, chance)
        steps = checkpoint.steps_of(broken)
        print(f"kill {number:2d} of {kills}: {stage:<13} {moment}; checkpoints {steps}", flush=True)
        for step in steps:
            checkpoint.load(checkpoint.path_of(broken, step))
    finish(folder, broken)
    return verdict(folder / "whole", broken)


def begin(folder: Path, run: Path, stage: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(run), stage, str(folder / "config.json")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def kill(folder: Path, run: Path, stage: str, chance: random.Random) -> str:
    """Starts or resumes the run and kills it; says when."""
    from mpelu.lab.run import checkpoint

    process = begin(folder, run, stage)
    assert process.stdout is not None
    before = max(checkpoint.steps_of(run), default=0)
    if stage == "anywhere":
        while process.poll() is None and max(checkpoint.steps_of(run), default=0) == before:
            time.sleep(0.002)
        delay = chance.uniform(0, 0.2)
        time.sleep(delay)
        moment = f"{1000 * delay:.0f} ms after a checkpoint"
    elif stage == "at the start":
        delay = chance.uniform(0, 1)
        time.sleep(delay)
        moment = f"{1000 * delay:.0f} ms after its modules were loaded"
    else:
        wanted = chance.randint(2, 5)
        for _ in range(wanted):
            process.stdout.readline()
        moment = f"in save {wanted}"
    process.kill()
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise SystemExit(f"the run ended by itself, exit code {process.returncode}: nothing killed")
    return moment


def finish(folder: Path, run: Path) -> None:
    process = begin(folder, run, "to the end")
    process.communicate()
    if process.returncode:
        raise SystemExit(f"resuming to the end failed with exit code {process.returncode}")


def verdict(whole: Path, broken: Path) -> int:
    """Prints what is equal and what isn't."""
    from mpelu.lab.run import checkpoint

    last = checkpoint.steps_of(whole)[-1]
    one, other = (checkpoint.load(checkpoint.path_of(run, last)) for run in (whole, broken))
    checks = {
        f"checkpoint of step {last}: {part}": equal(one[part], other[part])
        for part in ("model", "optimizer", "state")
    }
    for name in ("model.safetensors", "metrics.jsonl", "checkpoints/best.safetensors"):
        checks[name] = (whole / name).read_bytes() == (broken / name).read_bytes()
    for name, same in checks.items():
        print(f"{name:<40} {'equal' if same else 'DIFFERENT'}")
    print("equal to the last bit" if all(checks.values()) else "NOT EQUAL")
    return 0 if all(checks.values()) else 1


def equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


if __name__ == "__main__":
    sys.exit(main())
