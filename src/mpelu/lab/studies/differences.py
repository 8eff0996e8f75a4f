"""How a config differs from the paper's, in words: what was shrunk, with nothing forgotten."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mpelu.lab.config import Config
from mpelu.lab.data.registry import find

_NO_MATTER = {
    "data_dir", "seed", "threads", "device", "log_every", "test_every", "checkpoint_every",
    "gradient_checkpointing",
}  # fmt: skip
_WORDS = {
    "image_size": "images of",
    "crop": "crop of",
    "batch_size": "batch of",
    "lr": "learning rate",
    "milestones": "learning rate falls after",
    "model": "network",
}
_OWN = "the network's own"


def differences(full: Config, actual: Config) -> tuple[str, ...]:
    """A text for each field that was changed, besides those that only say how to run.

    Example:
        >>> differences(Config(epochs=200), Config(epochs=3, train_limit=100))
        ('3 epochs in place of 200', 'the first 100 training images')
    """
    texts = []
    for each in fields(Config):
        old, new = getattr(full, each.name), getattr(actual, each.name)
        if old != new and each.name not in _NO_MATTER:
            texts.extend(_text(each.name, old, new))
    order = ("iterations", "epochs")
    return tuple(sorted(texts, key=lambda text: not any(word in text for word in order)))


def _text(name: str, old: Any, new: Any) -> list[str]:
    if name == "data":
        return [f"{find(new).label} in place of {find(old).label}"]
    if name in ("epochs", "iterations"):
        if new is None:
            return []
        return [f"{new} {name}" + ("" if old is None else f" in place of {old}")]
    if name in ("train_limit", "test_limit"):
        kind = "training" if name == "train_limit" else "test"
        return [f"all {kind} images" if new is None else f"the first {new} {kind} images"]
    if name == "model_options":
        return [
            f"{option} {_shown(new.get(option, _OWN))} in place of {_shown(old.get(option, _OWN))}"
            for option in sorted({*old, *new})
            if old.get(option, _OWN) != new.get(option, _OWN)
        ]
    if name == "model":
        (family, _, depth), (other, _, was) = new.rpartition("-"), old.rpartition("-")
        if family and family == other:
            return [f"{depth} layers in place of {was}"]
    words = _WORDS.get(name, name.replace("_", " "))
    return [f"{words} {_shown(new)} in place of {_shown(old)}"]


def _shown(value: Any) -> str:
    if value is None:
        return "their own size"
    if isinstance(value, tuple):
        return ", ".join(str(each) for each in value) or "never"
    return f"{value:g}" if isinstance(value, float) else str(value)
