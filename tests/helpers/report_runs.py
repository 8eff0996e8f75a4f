"""Made-up run folders and results, as the other commands write them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mpelu.lab.config import Config
from mpelu.lab.run.folder import SCHEMA

LAYERS = 12


def write_run(
    path: Path,
    *,
    epochs: int = 20,
    floor: float = 8.0,
    state: str = "finished",
    seed: int = 0,
    activation: str | None = "mpelu",
    epoch_steps: int = 391,
    status: Mapping[str, Any] | None = None,
    learned: bool = False,
    variances: Sequence[float] | None = None,
    planned: int | None = None,
    data: str = "cifar10",
    speed: Sequence[float] = (),
) -> Path:
    """A run folder with a test at the end of every epoch."""
    path.mkdir(parents=True)
    planned = planned or max(epochs, 1)
    config = Config(data=data, activation=activation, epochs=planned, seed=seed)
    (path / "config.json").write_text(json.dumps({"schema": SCHEMA, **asdict(config)}))
    (path / "environment.json").write_text(json.dumps({"python": "3.11"}))
    (path / "data.json").write_text(json.dumps({"name": data, "classes": ["a", "b"]}))
    speeds = [json.dumps({"step": 1, "images_per_second": each}) + "\n" for each in speed]
    (path / "speed.jsonl").write_text("".join(speeds))
    random = np.random.default_rng([seed, int(floor * 100)])
    noise = random.normal(0, 0.4, (epochs, 2))
    rows = []
    for epoch in range(1, epochs + 1):
        decay = math.exp(-3 * epoch / planned)
        row = {
            "kind": "test",
            "step": epoch * epoch_steps,
            "epoch": epoch,
            "train_loss": 0.02 + 2.2 * decay + 0.05 * abs(noise[epoch - 1, 0]),
            "train_error": 60 * decay,
            "test_loss": 0.3 + 2 * decay,
            "test_error": round(floor + 60 * decay + abs(noise[epoch - 1, 1]), 2),
            "lr": 0.1,
        }
        step = {"kind": "step", "step": row["step"] - 1, "epoch": epoch, "loss": row["train_loss"]}
        rows += [json.dumps({**step, "error": 50.0, "lr": 0.1}), json.dumps(row)]
    (path / "metrics.jsonl").write_text("".join(line + "\n" for line in rows))
    errors = [json.loads(line)["test_error"] for line in rows[1::2]]
    said: dict[str, Any] = {
        "state": state,
        "step": epochs * epoch_steps,
        "steps": planned * epoch_steps,
        "epoch": epochs,
        "message": "",
        "test_error": errors[-1] if errors else None,
        "best_error": min(errors, default=None),
        "best_step": (errors.index(min(errors)) + 1) * epoch_steps if errors else None,
        "pid": 1,
        "host": "here",
        "updated": 1_750_000_000.0,
    }
    (path / "status.json").write_text(json.dumps({**said, **(status or {})}))
    if learned:
        write_learned(path, epochs, random)
    if variances is not None:
        write_inspected(path, variances)
    return path


def write_learned(path: Path, epochs: int, random: np.random.Generator) -> None:
    """activations/ with alpha and beta of LAYERS modules at a few epochs."""
    (path / "activations").mkdir()
    drift = random.normal(0, 0.3, (2, LAYERS, 16))
    for epoch in sorted({0, epochs // 3, 2 * epochs // 3, epochs}):
        part = epoch / max(1, epochs)
        tensors = {}
        for layer in range(LAYERS):
            name = f"blocks.{layer - 1}.activation" if layer else "stem.2"
            alpha = 1 + part * (drift[0, layer] - 0.04 * layer)
            beta = 1 + part * (0.5 * drift[1, layer] + 0.03 * layer)
            tensors[f"{name}.alpha"] = alpha.astype(np.float32)
            tensors[f"{name}.beta"] = np.maximum(beta, 1e-6).astype(np.float32)
        file = path / "activations" / f"epoch-{epoch:04}.safetensors"
        save_file(tensors, file, metadata={"order": "\n".join(tensors)})


def write_inspected(path: Path, variances: Sequence[float]) -> None:
    """inspect.json with a convolution and an activation for each variance."""
    layers = []
    for index, variance in enumerate(variances):
        shares: dict[str, Any] = dict.fromkeys(("positive", "dead", "saturated"))
        conv = {"name": f"blocks.{index}.conv", "kind": "conv", "mean": 0.0, "variance": variance}
        layers.append({**conv, **shares, "gradient": 0.1 * 0.9**index})
        shares = {"positive": 0.5, "dead": 0.01 * index, "saturated": 0.02}
        name = f"blocks.{index}.activation"
        layers.append(
            {"name": name, "kind": "activation", "mean": 0.2, "variance": variance / 2, **shares}
        )
    found = {"format": 1, "which": "final", "images": 512, "layers": layers}
    (path / "inspect.json").write_text(json.dumps(found))


def result(**changes: Any) -> dict[str, Any]:
    """result.json of a table with three rows."""
    rows = [("ReLU", 8.28, 9.10), ("ELU", 7.88, 7.80), ("MPELU", 7.56, 7.56)]
    value = {
        "format": 1,
        "recipe": "table9",
        "title": "CIFAR-10, ResNet-110, test error",
        "scale": "small",
        "shrunk": ["20 epochs in place of 164", "5,000 of 50,000 images"],
        "seeds": 2,
        "data": "cifar10",
        "environment": {},
        "header": ["network", "paper, test error %", "measured, test error %", "n", "diverged"],
        "rows": [
            [
                {"text": name},
                {"text": f"{paper:.2f}", "value": paper},
                {"text": f"{ours:.2f} ± 0.20", "value": ours, "values": [ours, ours]},
                {"text": "2", "value": 2},
                {"text": "0", "value": 0},
            ]
            for name, paper, ours in rows
        ],
        "compare": [[1, 2]],
        "notes": ["The paper's is the median of five runs, with the mean in brackets."],
        "plots": [
            {
                "title": "Variance at the start",
                "x_label": "layer",
                "y_label": "variance of the output",
                "log_y": True,
                "series": [
                    {
                        "name": name,
                        "x": list(range(1, 31)),
                        "y": [ratio**layer for layer in range(30)],
                    }
                    for name, ratio in (("gaussian", 0.62), ("Taylor", 0.91), ("exact", 1.0))
                ],
            }
        ],
        "figures": [],
        "runs": [],
    }
    return {**value, **changes}


def write_all(folder: Path) -> Path:
    """A folder of everything: a reproduced table with its runs, and single runs in every state."""
    table = folder / "table9-small"
    for index, name in enumerate(("relu", "elu", "mpelu")):
        for seed in range(2):
            write_run(
                table / "runs" / f"{name}-seed{seed}",
                floor=9.1 - 0.7 * index,
                seed=seed,
                activation=name,
                learned=name == "mpelu",
                variances=[(1.1 - 0.1 * index) ** layer for layer in range(LAYERS)],
            )
    (table / "result.json").write_text(json.dumps(result()))
    write_run(folder / "single" / "going", epochs=6, planned=20, state="running")
    write_run(
        folder / "single" / "gone",
        epochs=0,
        planned=20,
        state="diverged",
        status={"step": 13, "message": "diverged at step 13: loss is not finite"},
    )
    damaged = write_run(folder / "single" / "damaged", epochs=8)
    with (damaged / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "test", "st\n\x00\x01\n')
    return folder
