"""The configuration of a run: every setting, stated once.

`Config` is the run. It is written to config.json and read back from it. Each field carries its
help, bounds and choices, its group on the help page, and whether it decides the result. The
command line, the validation, the printed settings, the comparison of two configs, the estimates
and the fingerprint of a checkpoint are all made from these fields.

Importing this module doesn't import torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from mpelu.activations import TABLE
from mpelu.lab.data.registry import DATA_SETS
from mpelu.lab.data.registry import HINT as DATA_HINT
from mpelu.lab.errors import UserError, choose, listed
from mpelu.lab.files import parse_json
from mpelu.lab.optimization import OPTIMIZERS, SCHEDULES, find_optimizer
from mpelu.lab.references import is_reference

DATA = tuple(DATA_SETS)
PREPROCESS = ("channel", "gcn-zca", "mean-image", "none")
AUGMENT = ("none", "pad-crop-flip", "crop-flip", "resized-crop-flip")
INIT = ("own", "exact", "taylor", "critical", "deep", "msra", "xavier", "gaussian", "lsuv")
"""What the help lists; any registered method is accepted."""
COORDINATES = ("paper", "slope")
INIT_DISTRIBUTIONS = ("normal", "orthogonal")
INIT_SHAPES = ("depth",)
INIT_MODES = ("fan_in", "fan_out", "average")
PRECISIONS = ("fp32", "bf16", "fp16")
DEVICES = ("auto", "cpu", "cuda", "mps")

GROUPS = ("common options", "data", "network", "optimization", "execution")
"""Titles on the help page, in order."""
_COMMON, _DATA, _NETWORK, _OPTIMIZATION, _EXECUTION = GROUPS

CONSTANT_WARMUP_LR = 0.01
"""Learning rate of a warm-up in run folders of schema 3, which had no other way to warm up."""
_LARGEST = 10**9
"""Bound on numbers without a bound of their own, so that products fit in float32 and int64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldInfo:
    """What is known about a field of Config besides its type and default."""

    help: str
    group: str
    label: str = ""
    """Name in running text; the field's name with spaces if empty."""
    unset: str = "none"
    """What the help shows as the default where the default is None or empty."""
    choices: tuple[str, ...] | None = None
    noun: str = ""
    """What the choices are, for error messages."""
    hint: str = ""
    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float = _LARGEST
    decides: bool = True
    """Whether weights or metrics depend on it. The others may change when a run is resumed."""
    is_length: bool = False
    """Whether it only says when the run ends. It may grow when a run is resumed."""
    costs: bool = False
    """Whether the time of a training step depends on it."""
    extensible: bool = False
    """Whether ``package.module:factory`` can be given in place of a built-in name."""


def _field(default: Any, help: str, group: str, **more: Any) -> Any:
    metadata = {"info": FieldInfo(help=help, group=group, **more)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(kw_only=True, slots=True, frozen=True)
class Config:
    """A complete run. On the same CPU with the same number of threads, it gives the same bits.

    Raises:
        UserError: for a value of the wrong type, out of bounds, or in conflict with another.

    Example:
        >>> Config(model="resnet-20", activation="mpelu", epochs=5).lr
        0.1
    """

    data: str = _field(
        "digits", f"data set: {listed(DATA)}, a directory of images or arrays", _COMMON,
        choices=DATA, noun="data set", hint=DATA_HINT, costs=True, extensible=True,
    )  # fmt: skip
    data_dir: str | None = _field(
        None, "directory the data is in or is downloaded to", _COMMON, decides=False
    )
    image_size: int | None = _field(
        None, "resize images to this height and width first", _DATA, label="image size", least=1,
        unset="their own size; 256 for folder", costs=True,
    )  # fmt: skip
    crop: int | None = _field(
        None, "height and width of the crop the network sees", _DATA, label="crop size", least=1,
        unset="the whole image; 224 for folder", costs=True,
    )  # fmt: skip
    preprocess: str = _field(
        "channel", "channel (zero mean, unit variance per channel), gcn-zca (contrast "
        "normalization and whitening), mean-image (subtract the mean image) or none (divide by "
        "255)", _DATA, label="preprocessing", choices=PREPROCESS,
    )  # fmt: skip
    augment: str = _field(
        "none", "random crops and flips: none, pad-crop-flip (pads by 4 pixels first), crop-flip "
        "or resized-crop-flip (scales a random part of the image to --crop)", _DATA,
        label="augmentation", choices=AUGMENT,
    )  # fmt: skip
    max_pixels: int = _field(
        100_000_000, "largest image that is decoded, in pixels", _DATA, label="pixels per image",
        least=1, decides=False,
    )  # fmt: skip
    train_limit: int | None = _field(
        None, "use only the first N training images", _DATA, label="training images", least=1,
        unset="all",
    )  # fmt: skip
    validation: float = _field(
        0.0, "share of the training images to keep out of training, drawn by --seed; the best "
        "weights are then chosen on them, and the test images are tested once, at the end", _DATA,
        label="share of validation images", least=0, below=1,
    )  # fmt: skip
    test_limit: int | None = _field(
        None, "use only the first N test images", _DATA, label="test images", least=1, unset="all"
    )

    model: str = _field(
        "resnet-20",
        "network; `mpelu models` lists them",
        _COMMON,
        label="network",
        costs=True,
        extensible=True,
    )
    model_options: dict[str, Any] = _field(  # noqa: RUF009
        {}, "options of the network, for example width=32", _NETWORK, label="network options",
        costs=True,
    )  # fmt: skip
    activation: str | None = _field(
        None, f"activation: {listed(TABLE)}", _COMMON,
        unset="the one the paper uses for the network", costs=True, extensible=True,
    )  # fmt: skip
    convert: str | None = _field(
        None, "replace the network's activations with this one, as mpelu.convert does",
        _NETWORK, label="activation in place of the network's own", costs=True, extensible=True,
    )  # fmt: skip
    alpha: float | None = _field(
        None, "initial alpha of the activation", _NETWORK, unset="depends on the network"
    )
    beta: float | None = _field(None, "initial beta of MPELU", _NETWORK, unset="1")
    coordinates: str | None = _field(
        None, "parameters of MPELU: paper (alpha and beta) or slope (slope at zero, and rate; they "
        "start at the function that alpha and beta give)", _NETWORK, label="coordinates of MPELU",
        choices=COORDINATES, noun="coordinates", unset="paper",
    )  # fmt: skip
    init: str = _field(
        "own", "weight initialization: own (the one the paper uses for the network), "
        f"{listed(INIT[1:])}", _COMMON, label="initialization", extensible=True,
    )  # fmt: skip
    init_mode: str = _field(
        "fan_in", "fan that --init taylor, exact and msra use: fan_in, fan_out or average",
        _NETWORK, label="initialization mode", choices=INIT_MODES,
    )  # fmt: skip
    init_distribution: str | None = _field(
        None, "distribution of weights that --init sets: normal or orthogonal", _NETWORK,
        label="distribution of the initialization", choices=INIT_DISTRIBUTIONS,
        unset="normal; orthogonal for --init deep",
    )  # fmt: skip
    init_shape: str | None = _field(
        None, "depth: --init sets alpha and beta of MPELU by the depth of the network", _NETWORK,
        label="shape of MPELU", choices=INIT_SHAPES, unset="as built; depth for --init deep",
    )  # fmt: skip
    init_sized: bool = _field(
        False, "account for zero padding (--init exact); critical and deep always do", _NETWORK,
        label="initialization by size",
    )  # fmt: skip
    init_std: float = _field(
        0.01, "standard deviation of --init gaussian", _NETWORK,
        label="standard deviation of the initialization", above=0,
    )  # fmt: skip
    initial_weights: str | None = _field(
        None, "run folder or file to take weights from, where names and shapes agree; the others "
        "are as --init sets them", _NETWORK, label="initial weights",
    )  # fmt: skip
    linear_std: tuple[float, ...] | None = _field(
        None, "standard deviation of each linear layer's weights", _NETWORK,
        label="standard deviations of linear layers", unset="set by --init", least=0,
    )  # fmt: skip

    epochs: int | None = _field(
        None, "passes over the training set", _COMMON, unset="30, unless --iterations is given",
        least=1, is_length=True,
    )  # fmt: skip
    iterations: int | None = _field(
        None, "training steps, instead of --epochs", _OPTIMIZATION, least=1, is_length=True
    )
    batch_size: int = _field(
        128, "images per step, across all processes", _COMMON, label="batch size", least=1,
        costs=True,
    )  # fmt: skip
    accumulate: int = _field(
        1, "gradient accumulation steps per batch", _OPTIMIZATION,
        label="gradient accumulation steps", least=1,
    )  # fmt: skip
    optimizer: str = _field(
        "sgd", "optimizer", _COMMON, choices=tuple(OPTIMIZERS), noun="optimizer", extensible=True
    )
    lr: float = _field(
        None, "learning rate", _COMMON, label="learning rate", above=0,
        unset="0.1 for sgd, otherwise 0.001",
    )  # fmt: skip
    schedule: str = _field(
        "steps", "learning rate schedule: steps (see --milestones), cosine, linear, one-cycle or "
        "constant", _OPTIMIZATION, choices=tuple(SCHEDULES), noun="schedule", extensible=True,
    )  # fmt: skip
    milestones: tuple[int, ...] = _field(
        (), "epochs (or iterations) after which the learning rate is multiplied by --gamma",
        _OPTIMIZATION, least=1,
    )  # fmt: skip
    gamma: float = _field(
        0.1, "factor applied to the learning rate at each milestone", _OPTIMIZATION, above=0
    )
    warmup: int = _field(
        0, "epochs (or iterations) of warm-up, in which the learning rate rises linearly from 0 to "
        "--lr", _OPTIMIZATION, label="warm-up", least=0,
    )  # fmt: skip
    warmup_lr: float | None = _field(
        None, "constant learning rate during warm-up, instead of a rising one", _OPTIMIZATION,
        label="constant warm-up learning rate", above=0,
    )  # fmt: skip
    momentum: float = _field(
        0.9, "momentum of sgd, beta1 of adamw", _OPTIMIZATION, least=0, below=1
    )
    nesterov: bool = _field(False, "use Nesterov momentum", _OPTIMIZATION, label="Nesterov")
    weight_decay: float = _field(1e-4, "weight decay", _OPTIMIZATION, least=0)
    activation_lr_mult: float = _field(
        5.0, "learning rate multiplier of activation parameters such as alpha and beta",
        _OPTIMIZATION, label="learning rate multiplier of alpha and beta", least=0,
    )  # fmt: skip
    activation_decay_mult: float | None = _field(
        None, "weight decay multiplier of alpha, beta and PReLU's slopes", _OPTIMIZATION,
        label="weight decay multiplier of alpha and beta", least=0,
        unset="1 for sgd, 0 where weight decay is decoupled, as for adamw",
    )  # fmt: skip
    beta_decay_mult: float | None = _field(
        None, "weight decay multiplier of beta", _OPTIMIZATION,
        label="weight decay multiplier of beta", unset="that of alpha", least=0,
    )  # fmt: skip
    bias_lr_mult: float = _field(
        1.0, "learning rate multiplier of biases", _OPTIMIZATION,
        label="learning rate multiplier of biases", least=0,
    )  # fmt: skip
    bias_decay_mult: float = _field(
        1.0, "weight decay multiplier of biases", _OPTIMIZATION,
        label="weight decay multiplier of biases", least=0,
    )  # fmt: skip
    last_lr_mult: float | None = _field(
        None, "learning rate multiplier of the last layer", _OPTIMIZATION,
        label="learning rate multiplier of the last layer", unset="1", least=0,
    )  # fmt: skip

    label_smoothing: float = _field(
        0.0, "label smoothing of the training loss", _OPTIMIZATION, least=0, below=1
    )
    clip_norm: float | None = _field(
        None, "maximum gradient norm", _OPTIMIZATION,
        label="gradient norm clipped to", above=0,
    )  # fmt: skip
    ema: float | None = _field(
        None, "decay of an exponential moving average of the weights, which is tested and kept "
        "as the result", _OPTIMIZATION, label="moving average of weights with decay", least=0,
        below=1,
    )  # fmt: skip

    precision: str = _field(
        "fp32", "fp32, or autocast to bf16 or fp16", _EXECUTION, choices=PRECISIONS, costs=True
    )
    channels_last: bool = _field(False, "use the channels_last memory format", _EXECUTION)
    compile: bool = _field(False, "compile the network with torch.compile", _EXECUTION)
    gradient_checkpointing: bool = _field(
        False, "recompute activations in the backward pass to save memory", _EXECUTION,
        costs=True,
    )  # fmt: skip
    threads: int | None = _field(
        None, "CPU threads", _EXECUTION, unset="torch's choice", least=1, most=1024, decides=False
    )
    workers: int | None = _field(
        None, "processes that decode image files; 0 decodes in the training process", _EXECUTION,
        least=0, most=1024, decides=False, unset="one per core, at most 16, and at most --threads",
    )  # fmt: skip
    device: str = _field(
        "auto", "auto (cuda if there is a GPU, otherwise cpu), cpu, cuda or mps (Apple's GPU)",
        _EXECUTION, choices=DEVICES,
        decides=False,
    )  # fmt: skip

    seed: int = _field(0, "random seed", _COMMON, least=0, most=2**63 - 1)
    log_every: int = _field(
        50, "steps between progress lines and entries of metrics.jsonl", _EXECUTION, least=1
    )
    test_every: int | None = _field(
        None, "epochs (or iterations) between tests (on the validation images if there are any)",
        _EXECUTION, least=1,
        unset="1 epoch, or 1000 iterations",
    )  # fmt: skip
    checkpoint_every: int = _field(
        1000, "steps between checkpoints; there is also one after every test", _EXECUTION, least=1,
        decides=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            elif isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        _check("optimizer", self.optimizer, FIELDS["optimizer"])
        optimizer = find_optimizer(self.optimizer)
        for name in ("lr", "activation_decay_mult"):
            if getattr(self, name) is None:  # stands for the optimizer's default
                object.__setattr__(self, name, getattr(optimizer, name))
        for name, info in FIELDS.items():
            _check(name, getattr(self, name), info)
        if self.epochs is None and self.iterations is None:
            object.__setattr__(self, "epochs", 30)
        if self.epochs is not None and self.iterations is not None:
            raise UserError(
                f"expected epochs or iterations, got both ({self.epochs} and {self.iterations})",
                field="epochs",
            )
        if self.accumulate > self.batch_size:
            raise UserError(
                f"expected at most the batch size, {self.batch_size}, got {self.accumulate}",
                field="accumulate",
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise UserError(
                f"expected increasing numbers, got {_shown(self.milestones)}", field="milestones"
            )
        if self.nesterov and not optimizer.has_nesterov:
            raise UserError(f"requires --optimizer sgd, got {self.optimizer}", field="nesterov")
        if self.milestones and self.schedule != "steps":
            raise UserError(f"require --schedule steps, got {self.schedule}", field="milestones")
        if self.nesterov and self.momentum == 0:
            raise UserError("requires a momentum above 0, got 0", field="nesterov")

    @property
    def test_interval(self) -> int:
        """Epochs, or iterations, between tests."""
        if self.test_every is not None:
            return self.test_every
        return 1 if self.iterations is None else min(1000, self.iterations)

    @property
    def length_unit(self) -> str:
        """ "epoch" or "iteration": what milestones, warmup and test_every count."""
        return "epoch" if self.iterations is None else "iteration"

    @property
    def references(self) -> dict[str, str]:
        """The fields that name code of the user's own, ``package.module:factory``."""
        return {
            name: value
            for name, info in FIELDS.items()
            if info.extensible and is_reference(value := getattr(self, name))
        }

    def fingerprint(self) -> str:
        """SHA-256 of all that decides weights and metrics, but not when the run ends.

        It leaves out fields that have their default, so a new field keeps old fingerprints valid.
        """
        # The defaults of schema 3: warm-up had a constant rate, and adamw decayed activations.
        unsaid = {**_DEFAULTS, "activation_decay_mult": 1.0}
        if self.warmup:
            unsaid["warmup_lr"] = CONSTANT_WARMUP_LR
        said = {
            name: getattr(self, name)
            for name, info in FIELDS.items()
            if info.decides and not info.is_length
            if getattr(self, name) != unsaid[name]
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def non_defaults(self) -> dict[str, Any]:
        """The fields that are set to other values than the defaults.

        Example:
            >>> Config(model="nin", lr=0.2).non_defaults()
            {'model': 'nin', 'lr': 0.2}
        """
        default = type(self)()
        return {
            name: value
            for name in FIELDS
            if (value := getattr(self, name)) not in (None, getattr(default, name))
        }

    def to_json(self) -> str:
        """All fields as a JSON object."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Config:
        """From a JSON object with some or all of the fields.

        Raises:
            UserError: for anything else, an unknown field or a bad value.
        """
        try:
            values = parse_json(text)
        except ValueError as error:
            raise UserError(f"expected JSON, got {error}", field="config") from None
        if not isinstance(values, dict):
            raise UserError(f"expected an object, got {type(values).__name__}", field="config")
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Config:
        """From a mapping with some or all of the fields.

        Raises:
            UserError: for an unknown field or a bad value.
        """
        for name in values:
            choose("config", name, FIELDS, noun="field")
        return cls(**values)


FIELDS: dict[str, FieldInfo] = {each.name: each.metadata["info"] for each in fields(Config)}
"""Of every field, in order."""
TYPES: dict[str, Any] = typing.get_type_hints(Config)
_DEFAULTS = {each.name: {} if each.default is MISSING else each.default for each in fields(Config)}


def label(name: str) -> str:
    """A field's name in running text: "batch size" for ``batch_size``."""
    return FIELDS[name].label or name.replace("_", " ")


def differing(one: Config, other: Config, *, deciding: bool = False) -> list[str]:
    """Names of the fields in which two configs differ; only those that decide the result if so."""
    return [
        name
        for name, info in FIELDS.items()
        if getattr(one, name) != getattr(other, name) and (info.decides or not deciding)
    ]


def _check(name: str, value: Any, info: FieldInfo) -> None:
    _check_type(name, value, TYPES[name])
    is_own = info.extensible and is_reference(value)
    if info.choices is not None and value is not None and not is_own:
        choose(name, value, info.choices, noun=info.noun, hint=info.hint)
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            _check_bounds(name, number, info)


def _check_bounds(name: str, number: float, info: FieldInfo) -> None:
    expected = None
    if isinstance(number, float) and not math.isfinite(number):
        expected = "a finite number"
    elif info.least is not None and number < info.least:
        expected = f"a number >= {info.least:g}"
    elif info.above is not None and number <= info.above:
        expected = f"a number > {info.above:g}"
    elif info.below is not None and number >= info.below:
        expected = f"a number < {info.below:g}"
    elif abs(number) > info.most:
        expected = f"a number <= {info.most:,}"
    if expected is not None:
        raise UserError(f"expected {expected}, got {number}", field=name)


def _check_type(name: str, value: Any, hint: Any) -> None:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = [typing.get_origin(each) or each for each in allowed]
    number = float in plain and isinstance(value, (int, float))
    fits = bool in plain if isinstance(value, bool) else number or isinstance(value, tuple(plain))
    if not fits:
        expected = " or ".join(_TYPE_NAMES[each] for each in plain)
        raise UserError(f"expected {expected}, got {value!r}", field=name)
    if isinstance(value, tuple):
        (kind,) = (each for each in allowed if typing.get_origin(each) is tuple)
        for each in value:
            _check_type(name, each, typing.get_args(kind)[0])


_TYPE_NAMES = {
    int: "an integer", float: "a number", str: "a string", bool: "True or False",
    tuple: "a sequence", dict: "a mapping", type(None): "None",
}  # fmt: skip


def _shown(value: tuple[Any, ...]) -> str:
    return ", ".join(str(each) for each in value)
