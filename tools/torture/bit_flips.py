"""Flips single bits in the files of runs. Either `verify` tells, or no output of a command changes.

Whether a flip is told or not, no command may end with a traceback.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torture.cases import Attack, Ran, command, copy_of, in_parallel, sample_runs


def attack(folder: Path, cases: int = 1000, seed: int = 0) -> Attack:
    """Flips bits in a finished, an interrupted and a killed run.

    Args:
        folder: for the runs.
        cases: flips. Each takes a file at random, and a bit of it at random.
        seed: of the flips.
    """
    result = Attack("one bit flipped in a run folder", cases)
    folder.mkdir(parents=True, exist_ok=True)
    runs = list(sample_runs(folder).values())
    image = folder / "image.png"
    _write_image(image)
    places = [path for run in runs for path in sorted(run.rglob("*")) if _has_bits(path)]
    expected = {}
    for run in runs:
        with copy_of(run) as copy:
            expected[run] = _texts(outputs(copy, image), copy)
        assert expected[run]["verify"].startswith("0 "), expected[run]["verify"]

    def work(numbers: Sequence[int]) -> list[str]:
        lines = []
        for number in numbers:
            chance = random.Random(seed * 1_000_003 + number)
            path = chance.choice(places)
            run = next(run for run in runs if run in path.parents)
            bit = chance.randrange(8 * path.stat().st_size)
            name = path.relative_to(run)
            found = _case(run, name, bit, image, expected[run])
            lines += [f"{name} bit {bit}: {each}" for each in found]
        return lines

    found = in_parallel(work, cases)
    told = sum(line.endswith(": told") for line in found)
    result.failures += [line for line in found if not line.endswith(": told")]
    result.note = f"{told} told by verify, {cases - told} without any effect"
    return result


def _has_bits(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _case(run: Path, name: Path, bit: int, image: Path, expected: dict[str, str]) -> list[str]:
    """ "told" if verify tells, and what went wrong."""
    with copy_of(run) as copy:
        flip(copy / name, bit)
        found = outputs(copy, image)
    lines = [f"{each}: {ran.trace[-300:]}" for each, ran in found.items() if ran.trace]
    lines += [f"{each}: {ran.err!r}" for each, ran in found.items() if ran.code == 2
              and ran.err.count("\n") != 1 + ran.err.count("warning")]  # fmt: skip
    if found["verify"].code == 1:
        return ["told", *lines]
    for each, text in _texts(found, copy).items():
        if text != expected[each]:
            lines.append(f"{each} says {text!r:.300}")
    return lines


def flip(path: Path, bit: int) -> None:
    """Flips one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def outputs(run: Path, image: Path) -> dict[str, Ran]:
    """What every command that reads a run folder says. The last ones change it."""
    page = run.parent / "page"
    found = {"verify": command("verify", run)}
    for weights in ("final", "best", "last"):
        found[f"eval {weights}"] = command("eval", run, "--weights", weights)
    found["predict"] = command("predict", run, image)
    found["report"] = command("report", run, "-o", page)
    if (page / "index.html").exists():
        text = re.sub(r'"(made|silent)":\s*\w+', "", (page / "index.html").read_text())
        found["report"] = replace(found["report"], out=found["report"].out + text)
    shutil.rmtree(page, ignore_errors=True)
    with _without_figures():
        found["inspect"] = command("inspect", run, "--images", "8", "--out", page)
    found["resume"] = command("train", "--resume", run)
    metrics = run / "metrics.jsonl"
    rows = metrics.read_text(errors="replace") if metrics.exists() else ""
    found["resume"] = replace(found["resume"], out=_timeless(found["resume"].out) + rows)
    return found


@contextlib.contextmanager
def _without_figures() -> Iterator[None]:
    """Leaves out drawing, which takes most of the time and reads nothing of the run."""
    from mpelu.lab.inspecting import plots

    real = plots.draw_inspection, plots.to_png
    plots.draw_inspection = lambda *_: None  # type: ignore[assignment]
    plots.to_png = lambda _: b""  # type: ignore[assignment]
    try:
        yield
    finally:
        plots.draw_inspection, plots.to_png = real


def _timeless(text: str) -> str:
    return re.sub(r"[\d,]+ images/s.*", "", text)


def _texts(found: dict[str, Ran], run: Path) -> dict[str, str]:
    """Exit codes and outputs, without the place of the run."""
    return {
        name: f"{ran.code} {ran.out} {ran.err}".replace(str(run.parent), "").replace(
            run.parent.name, ""
        )
        for name, ran in found.items()
    }


def _write_image(path: Path) -> None:
    from PIL import Image

    Image.effect_noise((8, 8), 50).save(path)
