"""Mutation fuzzing of every reader with hypothesis: each input is read, or refused in one line.

A reader gets valid content with random changes: bytes replaced, removed, repeated and inserted, and
ends cut off. It may raise UserError or ValueError with a line of text. Anything else is a failure,
and so is a file that it changes.
"""

from __future__ import annotations

import io
import json
import random
import resource
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from torture.cases import SMALL, Attack, in_child, in_parallel

MOST_MEMORY = 6 << 30
"""Bytes of address space: an input that needs more is a failure, and not the end of the machine."""
MOST_GROWTH = 500_000
"""Kilobytes of memory that an input may take."""
Reader = Callable[[bytes], object]
"""Reads content, raising UserError or ValueError where it is damaged."""
TOKENS = (
    b"", b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"0", b"-1", b"1e999", b"NaN",
    b"null", b"[" * 200, b'{"a":' * 100, b'"', b"}", b"\n", b"999999999999999999999", b"\\ud800",
    b"..", b"/", b"c__builtin__\neval\n", b"R", b".", b"(", b"\x80\x04",
)  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """A sample with one to eight changes."""
    data = bytearray(draw(st.sampled_from(samples)))
    chance = random.Random(draw(st.integers(0, 2**63)))
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data) + 1)
        end = min(len(data), place + chance.choice((0, 1, 1, 1, 2, 4, 16, 300)))
        kind = chance.randrange(6)
        if kind == 0:
            data[place:end] = chance.randbytes(end - place)
        elif kind == 1:
            data[place:end] = chance.choice(TOKENS)
        elif kind == 2:
            data[place:place] = data[place:end] * chance.randint(1, 3)
        elif kind == 3 and place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 4:
            del data[place:end]
        elif kind == 5 and chance.random() < 0.1:
            del data[place:]
    return bytes(data)


def readers(folder: Path) -> dict[str, tuple[Reader, list[bytes]]]:
    """Every reader with valid samples of what it reads."""
    run = folder / "run"

    def make() -> None:
        from mpelu.lab.training.launch import train

        train(replace(SMALL, epochs=1), run)

    if not run.exists() and in_child(make):
        raise RuntimeError("the run that is to be damaged can't be made")
    return {
        "npz": (_read_npz(folder), [_npz()]),
        "image": (_read_image(folder), _images()),
        "config": (_read_file(run, "config.json"), [(run / "config.json").read_bytes()]),
        "status": (_read_file(run, "status.json"), [(run / "status.json").read_bytes()]),
        "log": (_read_file(run, "metrics.jsonl"), [(run / "metrics.jsonl").read_bytes()]),
        "result": (_read_result(folder), [_result()]),
        "weights": (_read_weights(folder), [(run / "preprocess.safetensors").read_bytes()]),
        "snapshot": (
            _read_snapshot(folder),
            [next((run / "activations").iterdir()).read_bytes()],
        ),
        "checkpoint": (_read_checkpoint(folder), [_checkpoint()]),
    }


SHARES = {
    "npz": 10, "image": 20, "config": 16, "status": 14, "log": 14, "result": 16, "weights": 4,
    "snapshot": 3, "checkpoint": 3,
}  # fmt: skip
"""Inputs of each reader in a hundred."""


def attack(folder: Path, cases: int = 60_000, first: int = 0) -> Attack:
    """Fuzzes all readers."""
    result = Attack("mutated arrays, images, JSON, weights")
    folder.mkdir(parents=True, exist_ok=True)
    readers(folder)  # makes the run
    plans = [
        (name, max(1, cases * share // 200), 2 * first + half)
        for name, share in SHARES.items()
        for half in range(2)
    ]
    result.cases = sum(count for _, count, _ in plans)

    def work(numbers: Sequence[int]) -> list[str]:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        lines = []
        place = Path(tempfile.mkdtemp(dir=folder))
        (place / "run").symlink_to(folder / "run")
        for number in numbers:
            name, count, start = plans[number]
            with _own_run(folder, place):
                lines += fuzz(name, *readers(place)[name], count, start)
        return lines

    result.failures += in_parallel(work, len(plans))
    result.note = ", ".join(f"{name} {cases * share // 100:,}" for name, share in SHARES.items())
    return result


@contextmanager
def _own_run(folder: Path, place: Path) -> Iterator[None]:
    import shutil

    (place / "run").unlink()
    shutil.copytree(folder / "run", place / "run")
    try:
        yield
    finally:
        shutil.rmtree(place / "run")
        (place / "run").symlink_to(folder / "run")


def fuzz(name: str, read: Reader, samples: list[bytes], count: int, start: int = 0) -> list[str]:
    """Reads mutations of samples; returns what went wrong, a line each."""
    found: list[str] = []

    @seed(start)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(mutations(samples))
    def check(data: bytes) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read(data)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            if grown > MOST_GROWTH:
                found.append(f"{name}: takes {grown / 1e3:,.0f} MB for {data!r:.200}")
        except ValueError as error:  # UserError is one
            if len(str(error).splitlines()) != 1:
                found.append(f"{name}: not one line: {str(error)!r:.200}")
        except BaseException as error:
            found.append(f"{name}: {type(error).__name__}: {error!s:.200} for {data!r:.200}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of damaged metadata
        check()
    return found


def _read_npz(folder: Path) -> Reader:
    from mpelu.lab.data import own, registry

    def read(data: bytes) -> object:
        for name in ("train.npz", "test.npz"):
            (folder / name).write_bytes(data)
        return own.read_npz(registry.find("npz"), folder)

    return read


def _npz() -> bytes:
    import numpy

    buffer = io.BytesIO()
    images = numpy.arange(4 * 3 * 3, dtype=numpy.uint8).reshape(4, 3, 3)
    numpy.savez_compressed(buffer, images=images, labels=numpy.array([0, 1, 0, 1]))
    return buffer.getvalue()


def _read_image(folder: Path) -> Reader:
    from mpelu.lab.data import read_image

    config = replace(SMALL, max_pixels=1_000_000, image_size=8)

    def read(data: bytes) -> object:
        path = folder / "image.jpg"
        path.write_bytes(data)
        return read_image(path, config, channels=3)

    return read


def _images() -> list[bytes]:
    from PIL import Image

    from mpelu.lab.data.folder import FORMATS

    found = []
    for mode in ("L", "RGB", "P", "I;16"):
        for kind in FORMATS:
            if mode == "I;16" and kind not in ("PNG", "TIFF", "PPM"):
                continue
            buffer = io.BytesIO()
            image = Image.effect_noise((12, 9), 60)
            image = Image.new("I;16", (12, 9), 4000) if mode == "I;16" else image.convert(mode)
            if (mode, kind) not in (("P", "JPEG"), ("P", "PPM"), ("P", "WEBP")):
                image.save(buffer, kind)
                found.append(buffer.getvalue())
    return found


def _read_file(run: Path, name: str) -> Reader:
    """Replaces one file of a run and reads the folder as a report, a study and `verify` do."""
    from mpelu.lab.reporting.runs import read_run
    from mpelu.lab.run.verification import verify
    from mpelu.lab.sweep.gather import examine
    from mpelu.lab.sweep.study import Job

    job = Job(name="run", setting="run", config=replace(SMALL, epochs=1))

    def read(data: bytes) -> object:
        (run / name).write_bytes(data)
        verify(run) if random.random() < 0.05 else None
        return json.dumps(read_run(run)), examine(job, run)

    return read


def _read_result(folder: Path) -> Reader:
    from mpelu.lab.reporting.results import read_result

    def read(data: bytes) -> object:
        path = folder / "result.json"
        path.write_bytes(data)
        return json.dumps(read_result(path))

    return read


def _result() -> bytes:
    series = [{"name": "a", "x": [1, 2, 3], "y": [0.5, 0.25, 1e-9]}]
    value: dict[str, Any] = {
        "format": 1, "recipe": "table9", "title": "t", "scale": "small", "header": ["a", "b"],
        "rows": [[{"text": "x", "value": 1.5}, "y"], ["x", {"text": "", "value": None}]],
        "compare": [[0, 1]], "notes": ["n"], "plots": [{"title": "p", "series": series}],
    }  # fmt: skip
    return json.dumps(value).encode()


def _read_weights(folder: Path) -> Reader:
    from mpelu.lab.files import read_tensors

    def read(data: bytes) -> object:
        path = folder / "weights.safetensors"
        path.write_bytes(data)
        return read_tensors(path)

    return read


def _read_snapshot(folder: Path) -> Reader:
    from mpelu.lab.run import checkpoint

    def read(data: bytes) -> object:
        path = folder / "epoch-0001.safetensors"
        path.write_bytes(data)
        return checkpoint.read_snapshot(path, framework="np")

    return read


def _read_checkpoint(folder: Path) -> Reader:
    from mpelu.lab.run import checkpoint

    def read(data: bytes) -> object:
        path = folder / "step-00000001.pt"
        path.write_bytes(data)
        try:
            return checkpoint.load(path)
        except checkpoint.CheckpointError as error:
            raise ValueError(str(error)) from error

    return read


def _checkpoint() -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save({"format": 3, "model": {"weight": torch.ones(3)}, "state": {"step": 1}}, buffer)
    assert zipfile.is_zipfile(buffer)
    return buffer.getvalue()
