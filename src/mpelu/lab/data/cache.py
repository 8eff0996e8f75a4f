"""Fitted preprocessing kept on disk, so that it is computed once for the same data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import safetensors
from safetensors.torch import save
from torch import Tensor

from mpelu.lab.data.pictures import digest

log = logging.getLogger(__name__)


def cached(
    kind: str,
    key: str,
    data_dir: Path | None,
    compute: Callable[[], dict[str, Tensor]],
    check: Callable[[dict[str, Tensor]], str | None],
) -> dict[str, Tensor]:
    """The tensors from the cache, else computed and written to it.

    Args:
        kind: begins the file's name.
        key: names data and settings; another key, another file.
        data_dir: the cache is its folder `cache`, or ~/.cache/mpelu if that can't be written, is
            marked read-only or there is no data_dir.
        compute: gives the tensors.
        check: says what is wrong with them, None if nothing; those in a file that are wrong are
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
    if data_dir is not None and _read_only(data_dir):
        folders.pop(0)
    problem: OSError | None = None
    for folder in folders:
        try:
            _write(folder / name, tensors)
            return tensors
        except OSError as error:
            problem = problem or error
    log.warning("%s is not kept for the next time: %s", kind, problem)
    return tensors


def _read_only(folder: Path) -> bool:
    """Whether a folder is marked so. The system lets root write there all the same."""
    return folder.is_dir() and not folder.stat().st_mode & 0o222


def _sum(tensors: dict[str, Tensor]) -> str:
    return digest(*(tensors[name].numpy() for name in sorted(tensors)))


def _read(path: Path, check: Callable[[dict[str, Tensor]], str | None]) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected = (file.metadata() or {}).get("sha256")
        problem = check(tensors) or (None if _sum(tensors) == expected else "a wrong checksum")
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        problem = str(error)
    if problem is None:
        return tensors
    log.warning("%s is damaged and computed again: %s", path, problem)
    return None


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(save(tensors, {"sha256": _sum(tensors)}))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
