"""Results of fitting, kept in files so that they are computed only once for the same data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from mpelu.lab import atomic
from mpelu.lab.checksums import digest, read_tensors, seal_tensors

log = logging.getLogger(__name__)


def load_or_compute(
    kind: str,
    key: str,
    data_dir: Path | None,
    compute: Callable[[], dict[str, Tensor]],
    check: Callable[[dict[str, Tensor]], str | None],
) -> dict[str, Tensor]:
    """Returns the tensors in the cache, or computes them and adds them to the cache.

    Args:
        kind: the first part of the file name.
        key: identifies data and settings; each key has a file of its own.
        data_dir: the cache is `data_dir/cache`, or ~/.cache/mpelu if `data_dir` is None, marked
            read-only or not writable.
        compute: computes the tensors.
        check: says what is wrong with the tensors of a file, or returns None. Wrong tensors are
            computed again.
    """
    folders = [Path.home() / ".cache" / "mpelu"]
    if data_dir is not None:
        folders.insert(0, data_dir / "cache")
    name = f"{kind}-{digest(key.encode())[:32]}.safetensors"
    for folder in folders:
        found = _read(folder / name, check)
        if found is not None:
            return found
    tensors = {name: each.cpu().contiguous() for name, each in compute().items()}
    if data_dir is not None and _is_read_only(data_dir):
        folders.pop(0)
    problem: OSError | None = None
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            atomic.remove_abandoned(folder)
            atomic.write(folder / name, seal_tensors(tensors), shared=True)
            return tensors
        except OSError as error:
            problem = problem or error
    log.warning("%s could not be cached and will be computed again next time: %s", kind, problem)
    return tensors


def _is_read_only(folder: Path) -> bool:
    """Whether a folder is marked read-only, which doesn't keep root from writing to it."""
    return folder.is_dir() and not folder.stat().st_mode & 0o222


def _read(path: Path, check: Callable[[dict[str, Tensor]], str | None]) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        tensors = read_tensors(path, required=True).tensors
        problem = check(tensors)
    except ValueError as error:
        problem = str(error)
    if problem is None:
        return tensors
    log.warning("%s is damaged and will be computed again: %s", path, problem)
    return None
