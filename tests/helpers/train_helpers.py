"""Small runs on the embedded digits, and what is compared of them."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mpelu.lab.config import Config
from mpelu.lab.run import checkpoint
from mpelu.lab.training import launch

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


_SERVER = multiprocessing.get_context("forkserver")
# Its processes find all of it loaded, which otherwise takes most of their time.
_SERVER.set_forkserver_preload(["mpelu.lab.training.launch", "torch._dynamo"])


def begin(
    run: Path, config: Config, setup: Callable[[], None] | None = None
) -> multiprocessing.process.BaseProcess:
    """A process that trains, or resumes if the run folder is there; calls `setup` first."""
    process = _SERVER.Process(target=_train_or_resume, args=(run, config.to_json(), setup))
    process.start()
    return process


def _train_or_resume(run: Path, config: str, setup: Callable[[], None] | None) -> None:
    torch.set_num_threads(1)
    if setup is not None:
        setup()
    if run.exists():
        launch.resume(run)
    else:
        launch.train(Config.from_json(config), run)
