"""What a result depends on, in words: the machine, the versions, and every setting in force."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpelu import __version__, kernels
from mpelu.lab.config import FIELDS, GROUPS, Config, label
from mpelu.lab.data.augment import AREAS, PADDING, RATIOS, RESIZED
from mpelu.lab.data.preprocess import CONTRAST_NORM, ZCA_EPSILON
from mpelu.lab.errors import plural

if TYPE_CHECKING:
    from mpelu.lab.data import Dataset
    from mpelu.lab.optimization import Schedule
    from mpelu.lab.training.process import World


_PACKAGES = ("numpy", "safetensors", "pillow")


def describe_machine() -> dict[str, Any]:
    """Processor, GPU, system and versions."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mpelu": __version__,
    }


def describe_process(device: torch.device, processes: int = 1) -> dict[str, Any]:
    """The machine, and how a run uses it: kernel, threads, packages, revision and command."""
    return {
        **describe_machine(),
        "kernel": str(kernels.backend(device)),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "processes": processes,
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "revision": _revision(Path(__file__).resolve().parent),
        "command": sys.argv,
    }


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two environments of what can change the last bits of a result.

    Example:
        >>> changed({"torch": "2.13.0", "threads": 2}, {"torch": "2.13.0", "threads": 1})
        ['threads was 2, is 1']
    """
    names = ("mpelu", "kernel", "torch", "cpu", "threads", "device", "gpu", "processes")
    return [
        f"{name} was {before[name]}, is {now[name]}"
        for name in names
        if name in before and before[name] != now[name]
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _revision(folder: Path) -> str | None:
    """The commit of mpelu's own repository, marked if files have changed; None outside of it.

    An installed package may lie inside a repository of the user's, whose commit says nothing of it.
    """
    root = folder.parent.parent.parent
    try:
        project = (root / "pyproject.toml").read_text()
        if folder != root / "src/mpelu/lab" or not re.search('^name = "mpelu"$', project, re.M):
            return None
        # Git sets these for its hooks, and they name the repository of the hook.
        hook = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
        answers = [
            subprocess.run(
                ["git", *words],
                cwd=folder,
                env={name: value for name, value in os.environ.items() if name not in hook},
                capture_output=True,
                check=True,
                text=True,
                timeout=10,
            ).stdout.strip()
            for words in (
                ("rev-parse", "--show-prefix"),
                ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
            )
        ]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return answers[1] if answers[0] == "src/mpelu/lab/" else None


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
    parts += _in_force(config, ["activation", "convert", "alpha", "beta", "coordinates"])
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
