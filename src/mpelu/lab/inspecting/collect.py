"""All there is to see of one network, as plain values for JSON, table and figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpelu.lab.inspecting.gradients import gradient_norms
from mpelu.lab.inspecting.learned import Learned, learned_parameters
from mpelu.lab.inspecting.residuals import residual_histogram
from mpelu.lab.inspecting.statistics import activation_statistics

FORMAT = 1


def collect(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    which: str,
    network: str,
    history: Learned | None = None,
) -> dict[str, Any]:
    """What inspect.json holds, in plain numbers, strings, lists and dicts.

    Statistics and residuals are over all batches, gradients of cross entropy over the first.

    Args:
        model: a classifier, in the mode to look at it in.
        batches: images and labels.
        which: whose weights these are: "final", "best", "last" or "initial".
        network: its name.
        history: alpha and beta over training.
    """
    images = [batch for batch, _ in batches]
    first, labels = batches[0]
    rows = activation_statistics(model, images)
    gradients = gradient_norms(model, first, lambda output: cross_entropy(output, labels))
    behind = {(each.name, each.call): each.norm for each in gradients.layers}
    layers = [{**asdict(row), "gradient_norm": behind.get((row.name, row.call))} for row in rows]
    found: dict[str, Any] = {
        "format": FORMAT,
        "which": which,
        "network": network,
        "images": sum(len(batch) for batch in images),
        "layers": layers,
        "residual": None,
        "gradients": {
            "images": len(first),
            "loss": gradients.loss,
            "parameters": gradients.parameters,
        },
        "activations": _activations(learned_parameters(model), history),
    }
    if any(row.kind == "activation" for row in rows):
        found["residual"] = asdict(residual_histogram(model, images))
    plain = _plain(found)
    assert isinstance(plain, dict)
    return plain


def _activations(now: Learned, history: Learned | None) -> dict[str, Any]:
    """Values a channel now, and mean, least and greatest over training."""
    layers: dict[str, dict[str, Any]] = {}
    for name, values in now.final.items():
        path, _, parameter = name.rpartition(".")
        layer = layers.setdefault(path, {"name": path, "history": {}})
        layer[parameter] = values.tolist()
        past = None if history is None else history.history.get(name)
        if past is not None:
            layer["history"][parameter] = {
                "mean": past.mean(1).tolist(),
                "least": past.amin(1).tolist(),
                "greatest": past.amax(1).tolist(),
            }
    return {
        "epochs": [] if history is None else list(history.epochs),
        "layers": list(layers.values()),
    }


def _plain(value: Any) -> Any:
    """Tuples as lists, and null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
