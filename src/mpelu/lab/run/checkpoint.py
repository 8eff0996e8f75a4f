"""Tensors of a run: checkpoints, final weights, and snapshots of activations.

The last two checkpoints and the best are kept, each complete or absent. A checkpoint is written by
torch.save as a zip archive, whose checksums reveal damage. It is read with weights_only=True, so it
can't run code. The weights alone are stored beside it in the safetensors format, also with a
checksum.

A snapshot holds the learnable parameters of activations, at up to 50 epochs of a run. It is
activations/epoch-NNNN.safetensors. Its tensors are named MODULE.PARAMETER, for example
``layer1.0.act.alpha``.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpelu.activations import TABLE, learnable_parameters
from mpelu.lab import files
from mpelu.lab.files import open_regular, read_tensors, seal_tensors
from mpelu.lab.run.folder import CHECKPOINTS, SNAPSHOTS, WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor, nn


KEPT = 2
FORMAT = 3
_NAME = re.compile(r"step-(\d+)\.(pt|safetensors)")


class CheckpointError(Exception):
    """Why a checkpoint can't be used, in a line."""


def path_of(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:08d}.pt"


def steps_of(run: Path) -> list[int]:
    """The steps that have a checkpoint, in increasing order."""
    return sorted(step for path, step in _files_of(run) if path.suffix == ".pt")


def _files_of(run: Path) -> list[tuple[Path, int]]:
    """The files of numbered checkpoints, with their steps."""
    paths = (run / CHECKPOINTS).glob("step-*")
    return [(path, int(match[1])) for path in paths if (match := _NAME.fullmatch(path.name))]


def save(run: Path, step: int, contents: dict[str, Any], *, best: bool) -> None:
    """Writes a checkpoint, then removes all numbered ones but the last two.

    Args:
        run: the run folder.
        step: the last step that was done.
        contents: tensors, numbers, strings, lists and dicts, with the weights under "model".
        best: whether its validation or test error is the lowest so far.

    Raises:
        OSError: if it can't be written; earlier checkpoints are intact.
    """
    import torch

    path = path_of(run, step)
    files.write(path.with_suffix(".safetensors"), to_bytes(result_weights(contents)))
    buffer = io.BytesIO()
    torch.save({**contents, "format": FORMAT}, buffer)
    files.write(path, buffer.getbuffer().tobytes())
    if best:
        mark_best(run, step)
    sweep(run)


def sweep(run: Path) -> None:
    """Removes all numbered checkpoints but the last two, and what killed saves left."""
    files.remove_temporary(run / CHECKPOINTS)
    kept = steps_of(run)[-KEPT:]
    for path, number in _files_of(run):
        if number not in kept:  # also weights of a save that was cut off before its .pt
            path.unlink(missing_ok=True)


def mark_best(run: Path, step: int) -> None:
    """Keeps the checkpoint of a step as the best one."""
    path = path_of(run, step)
    for suffix in (".safetensors", ".pt"):
        if path.with_suffix(suffix).exists():
            files.link(path.with_suffix(suffix), path.with_name(f"best{suffix}"))


def candidates(run: Path) -> Iterator[Path]:
    """The checkpoints of a run: the newest first, the best last."""
    for step in reversed(steps_of(run)):
        yield path_of(run, step)
    best = run / CHECKPOINTS / "best.pt"
    if best.exists():
        yield best


def load(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint, on the CPU.

    Raises:
        CheckpointError: if it is damaged, or holds anything but tensors and plain values.
    """
    import torch

    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            wrong = archive.testzip()
        if wrong is not None:
            raise CheckpointError(f"the checksum of {wrong} is wrong")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError("refused: it holds more than tensors and plain values") from None
    except CheckpointError:
        raise
    except Exception as error:  # what comes of arbitrary bytes
        raise CheckpointError((str(error) or type(error).__name__).splitlines()[0]) from None
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise CheckpointError("it isn't a checkpoint, or another version of mpelu wrote it")
    return contents


def result_weights(contents: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The weights to use: their moving average, if the run keeps one."""
    weights: Mapping[str, Tensor] = contents.get("averaged", contents["model"])
    return weights


def set_aside(path: Path) -> None:
    """Renames a checkpoint that can't be used, so that it is no longer a candidate."""
    path.rename(path.with_name(path.name + ".damaged"))
    path.with_suffix(".safetensors").unlink(missing_ok=True)


def write_weights(run: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes the final weights of a run."""
    files.write(run / WEIGHTS, to_bytes(weights))


def to_bytes(weights: Mapping[str, Tensor]) -> bytes:
    """Weights in the safetensors format, which knows neither strides nor shared memory."""
    seen: set[int] = set()
    result = {}
    for name, value in weights.items():
        dense = value.contiguous()
        result[name] = dense.clone() if dense.data_ptr() in seen else dense
        seen.add(dense.data_ptr())
    return seal_tensors(result)


_LABELS = {
    parameter.attribute: record.label_of(parameter)
    for record in TABLE.values()
    for parameter in record.parameters
}
"""By attribute, for snapshots of versions that didn't write labels."""


class Snapshot(NamedTuple):
    """The parameters of activations after an epoch."""

    tensors: dict[str, Any]
    """By name."""
    is_ordered: bool
    """Whether they are in order of depth (otherwise of name)."""
    labels: dict[str, str]
    """Labels by name, such as "α of MPELU"; none for what isn't an activation's parameter."""


def write_snapshot(run: Path, epoch: int, model: nn.Module) -> None:
    """Writes the snapshot of an epoch, in float32; none if nothing is learnable.

    safetensors sorts its tensors by name, so the metadata holds the names in order of depth, each
    with a tab and its label, such as "α of MPELU".
    """
    found = list(learnable_parameters(model))
    if found:
        order = "\n".join(f"{each.name}\t{' '.join(each.label.split())}" for each in found)
        values = {each.name: each.parameter.detach().float().cpu() for each in found}
        data = seal_tensors(values, order=order)
        files.write(run / SNAPSHOTS / f"epoch-{epoch:04d}.safetensors", data)


def read_snapshot(path: Path, framework: str = "pt") -> Snapshot:
    """Reads a snapshot.

    Args:
        path: the file.
        framework: "pt" for torch tensors, "np" for numpy arrays without importing torch.

    Raises:
        ValueError: in one line, if the file is damaged.
    """
    try:
        found, about = read_tensors(path, framework=framework)
    except ValueError as error:
        raise ValueError(f"{SNAPSHOTS}/{error}") from None
    names = sorted(found)
    lines = str(about.get("order", "")).split("\n")
    labels = {name: label for name, _, label in (line.partition("\t") for line in lines)}
    is_ordered = sorted(labels) == names
    tensors = {name: found[name] for name in (labels if is_ordered else names)}
    known = {name: labels.get(name) or _LABELS.get(name.rpartition(".")[2]) for name in tensors}
    return Snapshot(tensors, is_ordered, {name: label for name, label in known.items() if label})
