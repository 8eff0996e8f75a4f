"""How the activation of a model can be changed: by its factory, or by swapping its activations."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from mpelu import activations
from mpelu.lab import references
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, one_line

OWN = "own"
"""The name for the activations that a model comes with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadModel:
    """What a model says about its activations."""

    is_passed: bool
    """Whether its factory takes `activation=`; otherwise they are swapped."""
    has_own: bool = True
    """Whether it comes with activations; not if its factory has to be given one."""
    kinds: frozenset[str] = frozenset()
    """The activations it comes with, in small letters, as far as they are known."""
    notes: tuple[str, ...] = ()
    """What can't be swapped."""

    def names_own(self, names: Sequence[str]) -> bool:
        """Whether one of the names is the model's own activation, or stands for it."""
        return OWN in names or (len(self.kinds) == 1 and self.kinds <= set(map(_plain, names)))


def read_model(config: Config) -> ReadModel:
    """Builds the model of a config for its data, and finds its activations.

    Raises:
        UserError: if there is no such model, it doesn't fit the data, or nothing can be swapped.
    """
    import torch

    from mpelu.lab import data
    from mpelu.lab.training import network
    from mpelu.lab.training.network import swap_activations

    network.check_name(config)
    is_passed = _takes_activation(config)
    if is_passed and "activation" in references.required(references.load("model", config.model)):
        return ReadModel(is_passed=True, has_own=False)
    dataset = data.load(config, torch.device("cpu"), download=True)
    channels, size = dataset.channels, dataset.size
    with torch.random.fork_rng(devices=[]):
        model = network.create(config, len(dataset.classes), channels, size)
        network.check_size(model, channels, size, 2, len(dataset.classes))
        known = {
            record.name
            for module in model.modules()
            if (record := activations.find_activation(module)) is not None
        }
        if is_passed:
            return ReadModel(is_passed=True, kinds=frozenset(map(_plain, known)))
        try:
            rows = swap_activations(model, torch.zeros(2, channels, size, size), "relu").rows
        except ValueError as error:
            none = (
                f"compare swaps activations of the table, such as torch.nn.ReLU(), and "
                f"{config.model} has none; add one, or take it as an argument: "
                "def net(num_classes, activation)"
            )
            raise UserError(one_line(error) if known else none, field="model") from error
    return ReadModel(
        is_passed=False,
        kinds=frozenset(_plain(row.was) for row in rows if row.is_swapped),
        notes=tuple(
            f"left as it was in every arm: {row.path} ({row.was}): {row.note}"
            for row in rows
            if not row.is_swapped
        ),
    )


def _takes_activation(config: Config) -> bool:
    """Whether the model is of the user's own, and its factory has a parameter `activation`."""
    if not references.is_reference(config.model):
        return False
    try:
        parameters = inspect.signature(references.load("model", config.model)).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False
    return "activation" in parameters


def _plain(text: str) -> str:
    return text.removeprefix("function ").replace("_", "").lower()
