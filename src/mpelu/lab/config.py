"""All that decides how a run ends, as one value. Written to config.json, read back from it.

Nothing here imports torch: the command line is made from these fields.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mpelu.lab.data.registry import DATA_SETS
from mpelu.lab.errors import UserError, choose

DATA = tuple(DATA_SETS)
PREPROCESS = ("channel", "gcn-zca", "mean-image", "none")
AUGMENT = ("none", "pad-crop-flip", "crop-flip")
INIT = ("own", "taylor", "exact", "msra", "xavier", "gaussian", "lsuv")
MODES = ("fan_in", "fan_out", "average")
PRECISIONS = ("fp32", "bf16", "fp16")
DEVICES = ("auto", "cpu", "cuda")


def _option(
    help: str, default: Any, choices: tuple[str, ...] | None = None, unset: str = "none"
) -> Any:
    """A field with its help, and what stands for None or nothing in it."""
    metadata = {"help": help, "choices": choices, "unset": unset}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(kw_only=True, slots=True, frozen=True)
class Config:
    """A run, complete: the same values give the same weights (on the same machine and threads)."""

    data: str = _option("data set", "digits", DATA)
    data_dir: str | None = _option("where the data lies or is downloaded to", None)
    image_size: int | None = _option(
        "scale images to this side first", None, unset="as they are; folder: 256"
    )
    crop: int | None = _option(
        "side of the crop the network sees", None, unset="the whole; folder: 224"
    )
    preprocess: str = _option(
        "channel (mean 0, std 1), gcn-zca (whitened), mean-image (subtracted) or none (x / 255)",
        "channel",
        PREPROCESS,
    )
    augment: str = _option(
        "none, pad-crop-flip (pad by 4 first) or crop-flip; random crops", "none", AUGMENT
    )
    train_limit: int | None = _option("take the first N training images only", None, unset="all")
    test_limit: int | None = _option("take the first N test images only", None, unset="all")

    model: str = _option("network, one of those `mpelu models` lists", "resnet-20")
    model_options: dict[str, Any] = _option("the network's own options, as width=32", {})  # noqa: RUF009
    activation: str | None = _option(
        "relu, leaky_relu, prelu, rrelu, elu, srelu or mpelu", None, unset="the network's own"
    )
    alpha: float | None = _option("(initial) alpha of the activation", None, unset="the network's")
    beta: float | None = _option("initial beta of MPELU", None, unset="1")
    init: str = _option("initialization; own: the one the paper gives the network", "own", INIT)
    init_mode: str = _option("n of the initialization's rule", "fan_in", MODES)
    init_std: float = _option("standard deviation of --init gaussian", 0.01)
    linear_std: tuple[float, ...] | None = _option(
        "standard deviation of each linear layer", None, unset="the initialization's"
    )

    epochs: int | None = _option(
        "passes over the training set", None, unset="30, unless --iterations"
    )
    iterations: int | None = _option("training steps, in place of epochs", None)
    batch_size: int = _option("images a step, over all processes", 128)
    accumulate: int = _option("parts a batch is computed in, to save memory", 1)
    lr: float = _option("learning rate", 0.1)
    milestones: tuple[int, ...] = _option(
        "after so many epochs (or iterations) the learning rate falls", ()
    )
    gamma: float = _option("what it is multiplied by then", 0.1)
    warmup: int = _option("epochs (or iterations) of warm-up", 0)
    warmup_lr: float = _option("learning rate during warm-up", 0.01)
    momentum: float = _option("of SGD", 0.9)
    nesterov: bool = _option("Nesterov's momentum", False)
    weight_decay: float = _option("of all parameters", 1e-4)
    activation_lr_mult: float = _option("learning rate of alpha and beta, times this", 5.0)
    activation_decay_mult: float = _option(
        "weight decay of alpha and beta, and of the slopes of PReLU, times this", 1.0
    )
    beta_decay_mult: float | None = _option(
        "weight decay of beta, times this", None, unset="as alpha's"
    )
    bias_lr_mult: float = _option("learning rate of biases, times this", 1.0)
    bias_decay_mult: float = _option("weight decay of biases, times this", 1.0)
    last_lr_mult: float | None = _option(
        "learning rate of the last layer, times this", None, unset="as all layers"
    )

    precision: str = _option("fp32, or autocast to bf16 or fp16", "fp32", PRECISIONS)
    channels_last: bool = _option("channels_last memory format", False)
    compile: bool = _option("torch.compile the network", False)
    checkpointing: bool = _option("recompute activations in backward, to save memory", False)
    threads: int | None = _option("CPU threads", None, unset="torch's choice")
    device: str = _option("auto (a GPU if there is one), cpu or cuda", "auto", DEVICES)

    seed: int = _option("of everything random", 0)
    log_every: int = _option("steps between lines of the log", 50)
    test_every: int | None = _option(
        "epochs (or iterations) between tests", None, unset="1 epoch or 1000 iterations"
    )
    checkpoint_every: int = _option("steps between checkpoints, besides one at each test", 1000)

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_type(each.name, getattr(self, each.name), _HINTS[each.name])
            choices = each.metadata["choices"]
            if choices is not None:
                choose(each.name, getattr(self, each.name), choices)
        if self.epochs is None and self.iterations is None:
            object.__setattr__(self, "epochs", 30)
        if self.epochs is not None and self.iterations is not None:
            raise UserError(
                f"expected epochs or iterations, got both: {self.epochs} and {self.iterations}"
            )
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name}: expected a number >= {least}, got {value}")
        for name, most in _AT_MOST.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise UserError(f"{name}: expected a number <= {most}, got {value}")
        if self.test_every is None:
            usual = 1 if self.iterations is None else min(1000, self.iterations)
            object.__setattr__(self, "test_every", usual)
        for name in _POSITIVE:
            value = getattr(self, name)
            if not value > 0:
                raise UserError(f"{name}: expected a number > 0, got {value:g}")
        if self.accumulate > self.batch_size:
            raise UserError(
                f"accumulate: expected at most the batch size, {self.batch_size}, "
                f"got {self.accumulate}"
            )
        rising = list(self.milestones) == sorted(set(self.milestones))
        if not rising or min(self.milestones, default=1) < 1:
            raise UserError(f"milestones: expected rising numbers >= 1, got {self.milestones}")
        if min(self.linear_std or (), default=0) < 0:
            raise UserError(f"linear_std: expected numbers >= 0, got {self.linear_std}")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum: expected a number from 0 to below 1, got {self.momentum:g}")
        if self.nesterov and self.momentum == 0:
            raise UserError("nesterov: expected a momentum > 0, got 0")

    def to_json(self) -> str:
        """As config.json holds it."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Raises UserError for anything but a complete config of this version."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise UserError(f"config: expected JSON, got {error}") from None
        if not isinstance(values, dict):
            raise UserError(f"config: expected an object, got {type(values).__name__}")
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Config:
        """From a mapping with some or all of the fields; lists become tuples."""
        names = [each.name for each in fields(cls)]
        for name in values:
            choose("config", name, names)
        fitted: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**fitted)


_HINTS = typing.get_type_hints(Config)
_AT_LEAST = {
    "image_size": 1, "crop": 1, "train_limit": 1, "test_limit": 1, "epochs": 1, "iterations": 1,
    "batch_size": 1, "accumulate": 1, "warmup": 0, "momentum": 0, "weight_decay": 0,
    "activation_lr_mult": 0, "activation_decay_mult": 0, "beta_decay_mult": 0,
    "bias_lr_mult": 0, "bias_decay_mult": 0, "last_lr_mult": 0, "threads": 1, "seed": 0,
    "log_every": 1, "test_every": 1, "checkpoint_every": 1,
}  # fmt: skip
_POSITIVE = ("lr", "gamma", "warmup_lr", "init_std")
_AT_MOST = {"threads": 1024, "seed": 2**63 - 1}
_LARGEST = 10**9
"""Of all other numbers: what float32 and int64 hold, also where some are multiplied."""


def _check_type(name: str, value: Any, hint: Any) -> None:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = [typing.get_origin(each) or each for each in allowed]
    number = float in plain and isinstance(value, (int, float))
    fits = bool in plain if isinstance(value, bool) else number or isinstance(value, tuple(plain))
    if not fits:
        expected = " or ".join("none" if each is type(None) else each.__name__ for each in plain)
        raise UserError(f"{name}: expected {expected}, got {value!r}")
    if isinstance(value, tuple):
        (kind,) = (each for each in allowed if typing.get_origin(each) is tuple)
        for each in value:
            _check_type(name, each, typing.get_args(kind)[0])
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}: expected a finite number, got {value}")
    elif isinstance(value, (int, float)) and name not in _AT_MOST and abs(value) > _LARGEST:
        raise UserError(f"{name}: expected a number of at most {_LARGEST:,}, got {value}")


def difference(old: Config, new: Config) -> list[str]:
    """The fields in which two configs differ, one text each."""
    return [
        f"{each.name}: {getattr(old, each.name)!r} in the run, {getattr(new, each.name)!r} given"
        for each in fields(Config)
        if getattr(old, each.name) != getattr(new, each.name)
    ]
