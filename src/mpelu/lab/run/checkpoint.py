"""Checkpoints: the last two and the best, each there whole or not at all.

A checkpoint is a file of torch.save, which is a zip archive; the checksums of its entries tell a
damaged one. It is read with weights_only, so it can't run code. The weights alone lie beside it in
the safetensors format.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from mpelu.lab.run import files

FOLDER = "checkpoints"
KEPT = 2
_NAME = re.compile(r"step-(\d+)\.(pt|safetensors)")


class Damaged(Exception):
    """Why a checkpoint can't be used."""


def path_of(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step:08d}.pt"


def steps_of(run: Path) -> list[int]:
    """The steps there are checkpoints of, rising."""
    return sorted(step for path, step in _files_of(run) if path.suffix == ".pt")


def _files_of(run: Path) -> list[tuple[Path, int]]:
    """Those of numbered checkpoints, with their steps."""
    paths = (run / FOLDER).glob("step-*")
    return [(path, int(match[1])) for path in paths if (match := _NAME.fullmatch(path.name))]


def save(run: Path, step: int, contents: dict[str, Any], *, best: bool) -> None:
    """Writes a checkpoint, then removes those before the last two.

    Args:
        run: the run folder.
        step: that was done last.
        contents: tensors, numbers, texts, lists and dicts; the weights under "model".
        best: whether it is the best so far.

    Raises:
        OSError: and the checkpoints there were before are intact.
    """
    path = path_of(run, step)
    files.write(path.with_suffix(".safetensors"), weights_alone(contents["model"]))
    buffer = io.BytesIO()
    torch.save(contents, buffer)
    files.write(path, buffer.getbuffer().tobytes())
    if best:
        mark_best(run, step)
    kept = steps_of(run)[-KEPT:]
    for path, number in _files_of(run):
        if number not in kept:  # also weights alone, of a save that was cut off between the two
            path.unlink(missing_ok=True)


def mark_best(run: Path, step: int) -> None:
    """Keeps the checkpoint of the step as the best one."""
    path = path_of(run, step)
    for suffix in (".safetensors", ".pt"):
        if path.with_suffix(suffix).exists():
            files.link(path.with_suffix(suffix), path.with_name(f"best{suffix}"))


def candidates(run: Path) -> Iterator[Path]:
    """Checkpoints, the newest first, the best last."""
    for step in reversed(steps_of(run)):
        yield path_of(run, step)
    best = run / FOLDER / "best.pt"
    if best.exists():
        yield best


def load(path: Path) -> dict[str, Any]:
    """What a checkpoint holds, on the CPU.

    Raises:
        Damaged: if it isn't as it was written, or holds anything but plain values.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
        if wrong is not None:
            raise Damaged(f"the checksum of {wrong} is wrong")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise Damaged("it holds more than tensors and plain values, refused") from None
    except Damaged:
        raise
    except Exception as error:  # what comes of arbitrary bytes
        raise Damaged((str(error) or type(error).__name__).splitlines()[0]) from None
    if not isinstance(contents, dict) or contents.get("format") != 1:
        raise Damaged("it isn't a checkpoint of this version")
    return contents


def set_aside(path: Path) -> None:
    """Takes a damaged checkpoint out of the row; it stays under another name."""
    path.rename(path.with_name(path.name + ".damaged"))
    path.with_suffix(".safetensors").unlink(missing_ok=True)


def weights_alone(weights: Mapping[str, Tensor]) -> bytes:
    """In the safetensors format, which knows neither strides nor sharing."""
    seen: set[int] = set()
    result = {}
    for name, value in weights.items():
        dense = value.contiguous()
        result[name] = dense.clone() if dense.data_ptr() in seen else dense
        seen.add(dense.data_ptr())
    return to_safetensors(result)
