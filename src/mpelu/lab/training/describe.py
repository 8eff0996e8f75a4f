"""Every setting in force, in words: shown when a run starts and kept in environment.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpelu.lab.config import FIELDS, GROUPS, Config, label
from mpelu.lab.data.augment import AREAS, PADDING, RATIOS, RESIZED
from mpelu.lab.data.preprocess import CONTRAST_NORM, ZCA_EPSILON
from mpelu.lab.errors import plural
from mpelu.lab.optimization import Schedule
from mpelu.lab.training.process import World

if TYPE_CHECKING:
    from mpelu.lab.data import Dataset

_COMMON, _, _, OPTIMIZATION, EXECUTION = GROUPS


def describe_run(
    config: Config,
    dataset: Dataset,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    world: World,
) -> dict[str, str]:
    """The settings of a run by topic, in reading order."""
    return {
        "data": f"{dataset.name}, {plural(dataset.train_count, 'training image')}, "
        + (
            f"{plural(dataset.validation_count, 'validation image')}, "
            if dataset.validation_count
            else ""
        )
        + f"{plural(dataset.test_count, 'test image')}, "
        f"{plural(len(dataset.classes), 'class')}, "
        f"{dataset.channels} x {dataset.size} x {dataset.size}",
        "testing": _testing(config, dataset),
        "preprocessing": _preprocessing(config, dataset),
        "augmentation": _augmentation(config, dataset),
        "network": _network(config, model),
        "initialization": _initialization(config, model),
        "training": f"{_length(schedule)}, "
        + ", ".join(
            _in_force(config, ["batch_size", "optimizer", "lr", *_training_fields(config)])
        ),
        "parameters": "; ".join(_groups(optimizer)),
        "execution": ", ".join(
            [
                str(world.device),
                plural(torch.get_num_threads(), "thread"),
                *([plural(world.size, "process")] if world.size > 1 else []),
                *_in_force(config, _execution_fields()),
            ]
        ),
        "seed": str(config.seed),
    }


def _length(schedule: Schedule) -> str:
    """The steps of a run, and its epochs, of which the last may be incomplete."""
    steps = plural(schedule.steps, "step")
    if schedule.position(schedule.steps) == 0:
        return f"{steps} in {plural(schedule.epochs, 'epoch')}"
    return f"{steps} ({schedule.steps / schedule.steps_per_epoch:.1f} epochs)"


def _testing(config: Config, dataset: Dataset) -> str:
    """Which images are tested when, and on which the best weights are chosen."""
    interval = config.test_interval
    count = plural(interval, config.length_unit)
    every = f"every {count}" if interval > 1 else f"every {config.length_unit}"
    note = f" ({dataset.test_note})" if dataset.test_note else ""
    if not dataset.validation_count:
        return (
            f"{every} on the test images{note}; the best weights are chosen on them too "
            "(--validation 0.1 would choose them on training images that are held out)"
        )
    drawn = f"{config.validation:g} of the training images, drawn by the seed and held out"
    where = drawn if config.validation else "val/"
    return (
        f"{every} on the validation images ({where}), on which the best weights are chosen; once, "
        f"at the end, on the test images{note}"
    )


def _of_group(group: str) -> list[str]:
    return [name for name, info in FIELDS.items() if info.group == group]


def _execution_fields() -> list[str]:
    """Execution fields but for threads and device, which are shown as they turned out."""
    return [name for name in _of_group(EXECUTION) if name not in ("threads", "device")]


def _training_fields(config: Config) -> list[str]:
    """Optimization fields that have an effect here; multipliers are shown with the parameters."""
    without = {"iterations"}
    if not config.milestones:
        without.add("gamma")
    if not config.warmup:
        without.add("warmup_lr")
    if config.accumulate == 1:
        without.add("accumulate")
    names = _of_group(OPTIMIZATION)
    return [name for name in names if name not in without and not name.endswith("_mult")]


def _in_force(config: Config, names: list[str]) -> list[str]:
    """The fields that are set, each as its label and value."""
    found = []
    for name in names:
        value = config.test_interval if name == "test_every" else getattr(config, name)
        if value is True:
            found.append(label(name))
        elif value not in (None, False, (), {}, 0):
            found.append(f"{label(name)} {_shown(value)}")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " and ".join(str(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _network(config: Config, model: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    parts = [config.model, plural(count, "parameter")]
    parts += _in_force(config, ["activation", "convert", "alpha", "beta"])
    parts += [f"{name}={value}" for name, value in config.model_options.items()]
    return ", ".join(parts)


def _preprocessing(config: Config, dataset: Dataset) -> str:
    whole = dataset.image_size
    text = {
        "channel": "(x - mean) / std per channel",
        "gcn-zca": f"contrast normalized to norm {CONTRAST_NORM:g}, then ZCA-whitened with "
        f"{ZCA_EPSILON:g} added to the eigenvalues",
        "mean-image": "mean image of the training set subtracted",
        "none": "x / 255",
    }[config.preprocess]
    if config.preprocess == "channel":
        state = {name: value.tolist() for name, value in dataset.preprocess.state().items()}
        text += "".join(
            f", {name} {' '.join(f'{value:.4g}' for value in values)}"
            for name, values in state.items()
        )
    return f"resized to {whole} x {whole}; {text}" if config.image_size else text


def _augmentation(config: Config, dataset: Dataset) -> str:
    whole, size = dataset.image_size, dataset.size
    if config.augment == "none":
        return "none" if size == whole else f"none; center crop {size} x {size}"
    if config.augment == RESIZED:
        return (
            f"random part with {AREAS[0]:.0%} to {AREAS[1]:.0%} of the area and aspect ratio "
            f"{RATIOS[0]:.2f} to {RATIOS[1]:.2f}, scaled to {size} x {size}, random horizontal flip"
        )
    padding = PADDING[config.augment]
    pad = f"padded by {padding} pixels, " if padding else ""
    return f"{pad}random {size} x {size} crop, random horizontal flip"


def _initialization(config: Config, model: nn.Module) -> str:
    text = config.init
    if config.init == "own":
        text = getattr(model, "own_initialization", "")
        text = f"the network's own, {text}" if text else "as the network was made"
    elif config.init in ("taylor", "exact", "msra"):
        text += f", {config.init_mode}"
    elif config.init == "gaussian":
        text += f", standard deviation {config.init_std:g}"
    if config.linear_std is not None:
        text += f", linear layers with standard deviation {_shown(config.linear_std)}"
    return text


def _groups(optimizer: torch.optim.Optimizer) -> list[str]:
    """Size and multipliers of each parameter group."""
    return [
        f"{sum(parameter.numel() for parameter in group['params']):,} with learning rate "
        f"x {group['lr_mult']:g}, weight decay x {group['decay_mult']:g}"
        for group in optimizer.param_groups
    ]
