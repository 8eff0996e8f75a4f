"""How a config differs from the paper's, in words: what was scaled down, with nothing left out."""

from __future__ import annotations

from typing import Any

from mpelu.lab.config import FIELDS, Config, differing, label
from mpelu.lab.data import registry
from mpelu.lab.errors import plural

_UNMENTIONED = {"seed", "log_every", "test_every", "gradient_checkpointing"}
"""Fields that bits or logs depend on, but not the experiment."""


def differences(full: Config, scaled: Config) -> tuple[str, ...]:
    """A phrase for each field that differs and matters to the experiment, the length first.

    Example:
        >>> differences(Config(epochs=200), Config(epochs=3, train_limit=100))
        ('3 epochs instead of 200', 'only the first 100 training images')
    """
    names = [name for name in differing(full, scaled, deciding=True) if name not in _UNMENTIONED]
    names.sort(key=lambda name: not FIELDS[name].is_length)
    phrases = []
    for name in names:
        phrases += _phrases(name, full, scaled)
    return tuple(phrases)


def _phrases(name: str, full: Config, scaled: Config) -> list[str]:
    old, new = getattr(full, name), getattr(scaled, name)
    if name == "data":
        return [f"{registry.find(new).label} instead of {registry.find(old).label}"]
    if FIELDS[name].is_length:
        if new is None:  # the field that replaces it says how long
            return []
        instead = "" if old is None else f" instead of {_shown(old)}"
        return [plural(new, name.removesuffix("s")) + instead]
    if name in ("train_limit", "test_limit"):
        return [f"all {label(name)}" if new is None else f"only the first {new:,} {label(name)}"]
    if name == "model_options":
        return [
            f"{option} {_shown(new.get(option))} instead of {_shown(old.get(option))}"
            for option in sorted({*old, *new})
            if old.get(option) != new.get(option)
        ]
    if name == "model":
        (family, _, depth), (other, _, was) = new.rpartition("-"), old.rpartition("-")
        if family and family == other:
            return [f"{depth} layers instead of {was}"]
    if name in ("image_size", "crop"):
        index = ("image_size", "crop").index(name)
        old, new = (registry.image_sizes(each)[index] for each in (full, scaled))
    return [] if old == new else [f"{label(name)} {_shown(new)} instead of {_shown(old)}"]


def _shown(value: Any) -> str:
    if value is None:
        return "the default"
    if isinstance(value, tuple):
        return " and ".join(_shown(each) for each in value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
