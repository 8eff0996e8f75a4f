"""A model from its name alone, told what the shape of its input says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

import mpelu
from mpelu.lab import references
from mpelu.lab.errors import UserError, listed, one_line
from mpelu.models import registry


def build_model(
    name: str, options: Mapping[str, Any], shapes: Sequence[Sequence[int]]
) -> nn.Module:
    """The model of a name.

    Args:
        name: package.module:factory, or a network of `mpelu.models`.
        options: its keyword arguments.
        shapes: of its inputs, without the batch.

    Raises:
        UserError: if there is no such model, or it needs other options.
    """
    facts = _image_facts(shapes)
    offered = {key: value for key, value in facts.items() if key not in options}
    if references.is_reference(name):
        factory = references.load("model", name)
        _check_options(name, factory, options, offered)
        model = references.call("model", name, offered=offered, **options)
        if not isinstance(model, nn.Module):
            raise UserError(
                f"{name}: expected a torch.nn.Module, got {type(model).__name__}", field="model"
            )
        return model
    try:
        family, _ = registry.find(name)
        taken: dict[str, Any] = {
            key: value for key, value in offered.items() if references.takes(family.build, key)
        }
        return mpelu.models.create(name, **taken, **options)
    except (ValueError, TypeError) as error:
        raise UserError(one_line(error), field="model") from error


def _image_facts(shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """What the shape of an image says: its channels, and its size if it is a square."""
    if len(shapes) != 1 or len(shapes[0]) != 3:
        return {}
    channels, height, width = shapes[0]
    return {"in_channels": channels, **({"input_size": height} if height == width else {})}


def _check_options(
    name: str, factory: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any]
) -> None:
    """Raises UserError for options that a factory doesn't take, and those that it lacks."""
    for key in options:
        if not references.takes(factory, key):
            raise UserError(f"{name} takes no argument {key}", field="model_options")
    lacking = [each for each in references.required(factory) if each not in {*options, *offered}]
    if lacking:
        values = " ".join(f"{each}=VALUE" for each in lacking)
        raise UserError(
            f"{name} needs {listed(lacking, 'and')}; give {'them' if lacking[1:] else 'it'} with "
            f"--model-options {values}",
            field="model",
        )
