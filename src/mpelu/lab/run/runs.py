"""Run folders, read. They are the contract between what computes and what shows.

RUN/config.json        every field of Config
    environment.json   versions, processor, revision, command
    data.json          name, classes, channels, size, counts and fingerprint of the data
    preprocess.safetensors   what preprocessing was fitted to (mean, std, whitening, ...)
    metrics.jsonl      {"kind": "step", ...} a logged step, {"kind": "test", ...} a test
    speed.jsonl        images a second; apart, because it differs from one time to the next
    status.json        state, step, message, errors
    activations/       alpha and beta of every MPELU at up to 50 epochs
    checkpoints/       the last two and the best
    model.safetensors  the weights at the end
    lock               who is at work here
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError

STATES = ("running", "finished", "diverged", "interrupted", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a run folder says, without weights."""

    path: Path
    config: dict[str, Any]
    status: dict[str, Any]
    """{} before the first step."""
    environment: dict[str, Any]
    steps: list[dict[str, Any]]
    """step, epoch, loss, error (in %), lr."""
    tests: list[dict[str, Any]]
    """step, epoch, train_loss, train_error, test_loss, test_error (in %), lr."""
    problems: tuple[str, ...]
    """What was missing or damaged, a line each."""


def read(path: Path) -> Run:
    """Reads a run folder, also while it is being written.

    Raises:
        UserError: if the folder isn't one or its config can't be read. All else that is damaged is
            left out and told in `problems`.
    """
    if not (path / "config.json").is_file():
        raise UserError(f"{path}: expected a run folder with config.json, got none")
    problems: list[str] = []
    config = _object(path / "config.json", problems)
    if problems:
        raise UserError(f"{path}: {problems[0]}")
    rows = list(_lines(path / "metrics.jsonl", problems))
    return Run(
        path=path,
        config=config,
        status=_object(path / "status.json", problems),
        environment=_object(path / "environment.json", problems),
        steps=[row for row in rows if row.get("kind") == "step"],
        tests=[row for row in rows if row.get("kind") == "test"],
        problems=tuple(problems),
    )


def find(folders: Iterable[Path]) -> list[Path]:
    """Run folders among the given folders and below them, each once, in order of name."""
    found: dict[Path, Path] = {}
    for folder in folders:
        for config in [folder / "config.json", *sorted(folder.rglob("config.json"))]:
            if config.is_file():
                found.setdefault(config.parent.resolve(), config.parent)
    return list(found.values())


def _object(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} can't be read: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name}: expected an object, got {type(value).__name__}")
        return {}
    return value


def _lines(path: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return
    except OSError as error:
        problems.append(f"{path.name} can't be read: {error}")
        return
    damaged = 0
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield row
        else:
            damaged += 1
    if damaged:
        problems.append(f"{path.name}: {damaged} of {len(lines)} lines can't be read")
