"""Reads the numbers that runs left behind, and compares those of two versions to the bit.

What a reader doesn't yield isn't compared: texts, times, and files that aren't in READERS.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

Values = dict[tuple[str, str], float | Tensor]
"""Tensors and numbers by kind and name."""


def read(folder: Path) -> Values:
    """Reads every file below the folder that READERS knows."""
    values: Values = {}
    for path in sorted(folder.rglob("*")):
        if path.name in READERS:
            kind, reader = READERS[path.name]
            where = path.parent.relative_to(folder).as_posix()
            values |= {(kind, f"{where}: {name}"): value for name, value in reader(path)}
    return values


def compare(old: Values, new: Values) -> tuple[str, list[str]]:
    """Compares two versions of the same runs.

    Returns:
        "equal" or "different", and what there is to say about it: how many values differ and by
        how much, how many `new` lacks, and how many only `new` has. The last is no difference.
    """
    changes = {key: found for key in old if key in new and (found := change(old[key], new[key]))}
    missing = [key for key in old if key not in new]
    added = [key for key in new if key not in old]
    details = []
    if changes:
        absolute, relative = map(max, zip(*changes.values(), strict=True))
        details.append(
            f"{len(changes)} changed, by up to {absolute:.2g} (relative {relative:.2g}), "
            f"first {_text(next(iter(changes)))}"
        )
    if missing:
        details.append(f"{len(missing)} missing, first {_text(missing[0])}")
    if added:
        details.append(f"note: {len(added)} new, first {_text(added[0])}")
    return "different" if changes or missing else "equal", details


def change(old: float | Tensor, new: float | Tensor) -> tuple[float, float] | None:
    """Compares two values.

    Returns:
        None if they are equal to the bit, otherwise the largest absolute and relative difference
        (infinite if dtypes or shapes differ).
    """
    one, other = _tensor(old), _tensor(new)
    if fingerprint(one) == fingerprint(other):
        return None
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return torch.inf, torch.inf
    one, other = one.double(), other.double()
    absolute = (one - other).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    relative = absolute / torch.maximum(one.abs(), other.abs()).clamp_min(1e-300)
    return float(absolute.max()), float(relative.nan_to_num(nan=torch.inf, posinf=torch.inf).max())


def fingerprint(tensor: Tensor) -> str:
    """SHA-256 of dtype, shape and bytes."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + data).hexdigest()


def _text(key: tuple[str, str]) -> str:
    return f"{key[0]} of {key[1]}"


def _tensor(value: float | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _weights(path: Path) -> Iterable[tuple[str, Tensor]]:
    return load_file(path).items()


def _metrics(path: Path) -> Iterator[tuple[str, float]]:
    seen: Counter[str] = Counter()
    for row in map(json.loads, path.read_text().splitlines()):
        where = f"{row.pop('kind')} {row.pop('step')}"
        yield from _numbers(row, where + " again" * seen[where])
        seen[where] += 1


def _table(path: Path) -> Iterator[tuple[str, float]]:
    """Only the numbers behind cells and plots: value and values, x and y."""
    result = json.loads(path.read_text())
    return _numbers({"row": result["rows"], "plot": result["plots"]})


def _inspection(path: Path) -> Iterator[tuple[str, float]]:
    found = json.loads(path.read_text())
    return _numbers({name: found[name] for name in found if name != "format"})


def _printed(path: Path) -> Iterator[tuple[str, float]]:
    for name in ("error", "loss"):
        if found := re.search(rf"{name}\D*([\d.]+(e-?\d+)?)", path.read_text().lower()):
            yield name, float(found[1])


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers nested in JSON, each with its path."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(each, f"{name} {key}".strip())


READERS: dict[str, tuple[str, Callable[[Path], Iterable[tuple[str, float | Tensor]]]]] = {
    "model.safetensors": ("weights", _weights),
    "metrics.jsonl": ("metrics", _metrics),
    "result.json": ("table", _table),
    "inspect.json": ("inspection", _inspection),
    "eval.txt": ("evaluation", _printed),
}
"""Kind and reader by file name. Where a version renames a file, both names belong here."""
