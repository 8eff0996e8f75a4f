"""Every setting in force, in words: printed when a run starts and kept in environment.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from mpelu.lab.config import Config
from mpelu.lab.data.augment import PADDING
from mpelu.lab.data.preprocess import CONTRAST_NORM, ZCA_EPSILON
from mpelu.lab.data.registry import image_sizes
from mpelu.lab.training.distributed import World
from mpelu.lab.training.schedule import Schedule

if TYPE_CHECKING:
    from mpelu.lab.data import Dataset


def describe(
    config: Config,
    dataset: Dataset,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    world: World,
) -> dict[str, str]:
    """What to what value, in the order of reading."""
    return {
        "network": _network(config, model),
        "data": f"{dataset.name}, {dataset.train_count} images to train on, "
        f"{dataset.test_count} to test on, {len(dataset.classes)} classes, "
        f"{dataset.channels} x {dataset.size} x {dataset.size}",
        "preprocessing": _preprocessing(config, dataset),
        "augmentation": _augmentation(config),
        "initialization": _initialization(config, model),
        "optimizer": f"SGD, momentum {config.momentum:g}{', Nesterov' if config.nesterov else ''}, "
        f"weight decay {config.weight_decay:g}, batch {config.batch_size}"
        + (f" in {config.accumulate} parts" if config.accumulate > 1 else ""),
        "multipliers": "; ".join(_groups(optimizer)),
        "schedule": _schedule(config, schedule),
        "precision": config.precision
        + "".join(
            f", {name.replace('_', ' ')}"
            for name in ("channels_last", "compile", "checkpointing")
            if getattr(config, name)
        ),
        "machine": f"{world.device}, {torch.get_num_threads()} threads"
        + (f", {world.size} processes" if world.size > 1 else ""),
        "seed": str(config.seed),
        "log": f"every {config.log_every} steps; test every {config.test_every} "
        f"{_unit(config)}; checkpoint at each test and every {config.checkpoint_every} steps",
    }


def _network(config: Config, model: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    parts = [f"{config.model}, {count:,} parameters"]
    parts += [
        f"{name} {value}"
        for name in ("activation", "alpha", "beta")
        if (value := getattr(config, name)) is not None
    ]
    parts += [f"{name}={value}" for name, value in config.model_options.items()]
    return ", ".join(parts)


def _preprocessing(config: Config, dataset: Dataset) -> str:
    whole, _ = image_sizes(config)
    text = {
        "channel": "channel: (x - mean) / std",
        "gcn-zca": f"gcn-zca: contrast normalised to norm {CONTRAST_NORM:g}, whitened, "
        f"{ZCA_EPSILON:g} added to the eigenvalues",
        "mean-image": "mean-image: x - the mean image of the training set",
        "none": "none: x / 255",
    }[config.preprocess]
    if config.preprocess == "channel":
        state = {name: value.tolist() for name, value in dataset.preprocess.state().items()}
        text += "".join(
            f", {name} {' '.join(f'{value:.4g}' for value in values)}"
            for name, values in state.items()
        )
    return f"images scaled to {whole} x {whole}; {text}" if config.image_size else text


def _augmentation(config: Config) -> str:
    whole, size = image_sizes(config)
    if config.augment == "none":
        return "none" if size == whole else f"none: the middle {size} x {size} of {whole} x {whole}"
    pad = f"{PADDING[config.augment]} pixels of padding, " if PADDING[config.augment] else ""
    return (
        f"{config.augment}: {pad}random {size} x {size} crop of {whole} x {whole}, "
        "mirrored with probability 1/2"
    )


def _initialization(config: Config, model: nn.Module) -> str:
    text = config.init
    if config.init == "own":
        text += f": {model.own_initialization}"
    elif config.init in ("taylor", "exact", "msra"):
        text += f" {config.init_mode}"
    elif config.init == "gaussian":
        text += f" std {config.init_std:g}"
    if config.linear_std is not None:
        text += f", linear layers std {', '.join(f'{std:g}' for std in config.linear_std)}"
    return text


def _groups(optimizer: torch.optim.Optimizer) -> list[str]:
    return [
        f"{sum(parameter.numel() for parameter in group['params']):,} parameters "
        f"lr x {group['lr_mult']:g} decay x {group['decay_mult']:g}"
        for group in optimizer.param_groups
    ]


def _unit(config: Config) -> str:
    return "epochs" if config.iterations is None else "iterations"


def _schedule(config: Config, schedule: Schedule) -> str:
    parts = [f"lr {config.lr:g}"]
    if config.warmup:
        parts.insert(0, f"lr {config.warmup_lr:g} for {config.warmup} {_unit(config)}, then")
    if config.milestones:
        after = ", ".join(str(milestone) for milestone in config.milestones)
        parts.append(f"times {config.gamma:g} after {after} {_unit(config)}")
    total = f"{schedule.steps:,} steps in {schedule.epochs} epochs"
    return f"{' '.join(parts)}; {total}"


def block(settings: dict[str, str]) -> str:
    """Aligned lines."""
    width = max(len(name) for name in settings)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in settings.items())
