"""Small runs on the embedded digits, and what is compared of them."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mpelu.lab.config import Config
from mpelu.lab.run import checkpoint
from mpelu.lab.training import launch
from mpelu.lab.training.display import Display, Progress

SMALL: dict[str, Any] = {
    "train_limit": 96,
    "test_limit": 32,
    "model": "resnet-8",
    "model_options": {"width": 4},
    "activation": "mpelu",
    "augment": "pad-crop-flip",
    "batch_size": 20,
    "epochs": 3,
    "log_every": 4,
    "threads": 1,
}
"""15 steps: 5 an epoch, the last of each with 16 samples."""


def small(**values: Any) -> Config:
    return Config(**{**SMALL, **values})


def equal(one: Any, other: Any) -> bool:
    """To the bit, whatever tensors are nested in."""
    if isinstance(one, torch.Tensor):
        return bool(one.dtype == other.dtype) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def final(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on when it was stopped."""
    contents = checkpoint.load(checkpoint.path_of(run, checkpoint.steps_of(run)[-1]))
    del contents["logs"]["speed.jsonl"]
    kept = ("model.safetensors", "metrics.jsonl", "config.json", "checkpoints/best.safetensors")
    activations = sorted((run / "activations").iterdir())
    return {
        **contents,
        **{name: (run / name).read_bytes() for name in kept},
        **{path.name: path.read_bytes() for path in activations},
    }


def status(run: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((run / "status.json").read_text())
    return told


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


class AtStep(Display):
    """Acts when a step is done, before anything is written of it."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._number, self._act = number, act

    def step(self, progress: Progress) -> None:
        if progress.step == self._number:
            self._act()


class Stop(Exception):
    """Stands for the end of a process."""


def stop() -> None:
    raise Stop


def stopped_after(
    step: int, action: Callable[..., object], *arguments: Any, **options: Any
) -> None:
    """Trains or resumes in a process that ends after this step."""
    with pytest.raises(Stop):
        action(*arguments, **options, display=AtStep(step, stop))


_SERVER = multiprocessing.get_context("forkserver")
# Its processes find all of it loaded, which otherwise takes most of their time.
_SERVER.set_forkserver_preload(["mpelu.lab.training.launch", "torch._dynamo"])


def begin(
    run: Path, config: Config, display: Display | None = None
) -> multiprocessing.process.BaseProcess:
    """A process that trains, or resumes if the run folder is there."""
    process = _SERVER.Process(target=_train_or_resume, args=(run, config.to_json(), display))
    process.start()
    return process


def _train_or_resume(run: Path, config: str, display: Display | None) -> None:
    torch.set_num_threads(1)
    if run.exists():
        launch.resume(run, display=display)
    else:
        launch.train(Config.from_json(config), run, display=display)
