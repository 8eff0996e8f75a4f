"""The run folder, written: what is there from the start, status, logs, events."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.run import activations, checkpoint, files

if TYPE_CHECKING:
    from mpelu.lab.data import Dataset


def check_new(out: Path) -> None:
    """Raises UserError unless a run folder can be made there."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: expected a folder that is empty or not there yet, got a file")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: expected a folder that is empty or not there yet, got files in it")


@contextlib.contextmanager
def made(out: Path) -> Iterator[Path]:
    """Gives a hidden folder to write to, which becomes `out` in one step if all goes well."""
    place = out.resolve()
    hidden = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        hidden.mkdir(parents=True)
        yield hidden
        hidden.rename(place)
        files.sync_folder(place.parent)
    except OSError as error:
        raise UserError(f"{out}: can't be made: {error.strerror or error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def describe_data(dataset: Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "classes": list(dataset.classes),
        "channels": dataset.channels,
        "size": dataset.size,
        "train_count": dataset.train_count,
        "test_count": dataset.test_count,
        "fingerprint": dataset.fingerprint,
    }


def write_start(
    folder: Path, config: Config, dataset: Dataset, environment: dict[str, Any]
) -> None:
    """All that a run folder holds before the first step."""
    make_folders(folder)
    files.write_json(folder / "environment.json", environment)
    files.write_json(folder / "data.json", describe_data(dataset))
    files.write(folder / "preprocess.safetensors", save(dataset.preprocess.state()))
    files.write(folder / "metrics.jsonl", b"")
    files.write(folder / "speed.jsonl", b"")
    files.write(folder / "config.json", config.to_json())


def make_folders(run: Path) -> None:
    """Those in a run folder that aren't there yet."""
    for name in (checkpoint.FOLDER, activations.FOLDER):
        (run / name).mkdir(exist_ok=True)


def read_config(run: Path) -> Config:
    """Raises UserError unless it is a run folder."""
    path = run / "config.json"
    if not path.is_file():
        raise UserError(f"{run}: expected a run folder with config.json, got none")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a file that can be read, got {error}") from None
    return Config.from_json(text)


def read_json(path: Path) -> dict[str, Any]:
    """An object, or {} where there is none that can be read."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def check_data(run: Path, dataset: Dataset) -> None:
    """Raises UserError unless the data are those the run began with."""
    before = read_json(run / "data.json").get("fingerprint")
    if before != dataset.fingerprint:
        raise UserError(
            f"{run}: expected the data the run began with, {before}, got {dataset.fingerprint}"
        )


def write_status(run: Path, state: str, **values: Any) -> None:
    """Writes status.json."""
    about = {"pid": os.getpid(), "host": socket.gethostname(), "updated": time.time()}
    files.write_json(run / "status.json", {"state": state, **values, **about}, lasting=False)
