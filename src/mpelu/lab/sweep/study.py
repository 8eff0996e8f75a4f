"""What a study is: settings to train, how they scale down, and how a sweep of them is executed.

Importing this module doesn't import torch, so `mpelu list` is quick.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import FIELDS, Config, differing, label
from mpelu.lab.data import registry
from mpelu.lab.errors import UserError, choose, plural
from mpelu.lab.files import parse_object

if TYPE_CHECKING:
    from mpelu.lab.run.folder import Run
    from mpelu.lab.sweep.gather import Gathered
    from mpelu.lab.tables import Result

SCALES = ("smoke", "small", "full")
EXECUTORS = ("local", "ray")
FOR_RAY = ("ray_address", "cpus_per_run", "gpus_per_run")
"""Fields of Options that only the executor ray uses."""
SOURCES = ("paper", "code")
"""A paper, and the code its authors published, which may disagree."""
OUT = Path("out/reproduce")
SEEDS = {"smoke": 1, "small": 2, "full": 5}
"""Runs per setting by default."""
TUNING_SEED = 10_000
"""Seed of the runs that choose learning rates. No result uses it."""
SMOKE: dict[str, Any] = {
    "train_limit": 64,
    "test_limit": 32,
    "batch_size": 16,
    "epochs": None,
    "iterations": 3,
    "milestones": (),
    "warmup": 0,
    "warmup_lr": None,
    "test_every": None,
    "log_every": 1,
    "threads": 1,
}
"""Fields of a run of a few steps, which shows that everything runs, and nothing else."""
_UNMENTIONED = {"seed", "log_every", "test_every", "gradient_checkpointing"}
"""Fields that change bits or logs, but not the experiment."""


def _option(default: Any, help: str, metavar: str | None = None, **how: Any) -> Any:
    """A field that is also an option: `mpelu.lab.commands.reproduce` adds it."""
    return field(default=default, metadata={"help": help, "metavar": metavar, **how})


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is run of a study, where and how.

    Fields with metadata are options of `mpelu reproduce`.

    Raises:
        UserError: for an unknown scale, source or executor, or numbers out of bounds.
    """

    scale: str = _option(
        "small",
        "full: the paper's setting; small: at most half an hour per table or figure of the paper "
        "on two cores; smoke: a few steps to check that everything runs (default: small)",
        choices=SCALES,
    )
    seeds: int | None = _option(
        None, "runs per setting (default: chosen by the study)", "N", type=int
    )
    follow: str | None = _option(
        None,
        "the source to follow where the paper and its published code disagree (default: chosen by "
        "the study)",
        choices=SOURCES,
    )
    data_dir: str | None = _option(None, "where the data is, or where to download it", "DIR")
    out: Path = OUT
    progress: bool = False
    """Print the progress of downloads and, where there is one run at a time, of runs."""
    executor: str = _option(
        "local",
        "local: processes on this machine; ray: a Ray cluster (default: local)",
        choices=EXECUTORS,
    )
    jobs: int | None = _option(None, "runs at a time", "N", type=int)
    ray_address: str | None = _option(
        None, "a running cluster (default: start one here)", "ADDRESS"
    )
    cpus_per_run: float = _option(1.0, "CPUs per run (default: 1)", "X", type=float)
    gpus_per_run: float = _option(0.0, "GPUs per run (default: 0)", "X", type=float)

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", Path(self.out))
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", os.fspath(self.data_dir))
        choose("scale", self.scale, SCALES, noun="scale")
        choose("follow", self.follow or SOURCES[0], SOURCES, noun="source")
        choose("executor", self.executor, EXECUTORS, noun="executor")
        for name, bound, fits in (
            ("seeds", ">= 1", self.seeds is None or self.seeds >= 1),
            ("jobs", ">= 1", self.jobs is None or self.jobs >= 1),
            ("cpus_per_run", "> 0", self.cpus_per_run > 0),
            ("gpus_per_run", ">= 0", self.gpus_per_run >= 0),
        ):
            if not fits:
                raise UserError(f"expected a number {bound}, got {getattr(self, name)}", field=name)
        for each in fields(self):
            is_set = getattr(self, each.name) != each.default
            if is_set and each.name in FOR_RAY and self.executor != "ray":
                raise UserError("requires --executor ray", field=each.name)

    @property
    def is_smoke(self) -> bool:
        return self.scale == "smoke"

    @property
    def at_a_time(self) -> int:
        """Runs at a time.

        By default one per core at small scale, where networks are too small to use several cores,
        and otherwise one.
        """
        return self.jobs or ((os.cpu_count() or 1) if self.scale == "small" else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A row of a table: a network trained in one way, with one run per seed."""

    name: str
    """Start of the names of its run folders; the seed follows."""
    labels: tuple[str, ...]
    """The first cells of its row."""
    paper: str = ""
    """The paper's value as printed; empty if it has none."""
    config: Config | None
    """Fields of its runs; None for a row that the paper quotes from elsewhere, which isn't run."""
    shrunk: tuple[str, ...] = ()
    """What was scaled down, a phrase for each field that differs from full scale."""
    ended: tuple[Job, ...] = ()
    """Its runs that finished or diverged, once they are gathered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run, a setting with a seed, and what is known of it."""

    name: str
    setting: str
    config: Config
    folder: str = ""
    """Path of the run folder; empty until the run is placed in a study's directory."""
    state: str = "new"
    """What its folder holds: new if nothing, unfinished, ended, or foreign if it is damaged or
    holds something else. How its execution ended: finished, diverged, interrupted, failed, or full
    if there was no space left."""
    message: str = ""
    """How its execution ended in words, or why it doesn't count."""
    found: Run | None = None
    """What its folder holds, if that could be read."""

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def run(self) -> Run:
        """What its folder holds, of a run that ended."""
        assert self.found is not None
        return self.found

    @property
    def diverged(self) -> bool:
        return self.run.status.get("state") == "diverged"

    @property
    def num_classes(self) -> int:
        return len(self.run.data["classes"])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = parse_object(text)
        return cls(**{**values, "config": Config.from_values(values["config"])})


Shrink = Callable[[Config, str], "Config | None"]
"""Takes a config at full scale and a smaller scale, and returns the config to run at that scale, or
None to leave the setting out."""


def smoke(config: Config, scale: str) -> Config:
    """Three small steps at smoke scale; at other scales, the config unchanged.

    This is the default for a study of your own, which keeps its data and its networks.
    """
    if scale != "smoke":
        return config
    few = {"batch_size": max(16, config.accumulate), "iterations": min(3, config.iterations or 3)}
    return replace(config, **SMOKE | few)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """Settings to train and compare: a table or figure of the paper, or a study of your own."""

    name: str
    title: str
    needs: str
    """The data needed at full scale, in words."""
    labels: tuple[str, ...] = ()
    """Headings of the settings' labels."""
    quantity: str = "test error %"
    settings: Callable[[str], list[Setting]] = lambda source: []
    """Returns the settings at full scale for a source; none if nothing is trained."""
    inspects: Callable[[Options], tuple[Config, ...]] = lambda options: ()
    """Configs whose data is needed although nothing is trained."""
    shrink: Shrink = smoke
    seeds: Mapping[str, int] = field(default_factory=lambda: SEEDS)
    """Runs per setting, by scale."""
    first_seed: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    """What each source says where paper and published code disagree. The first one is followed by
    default."""
    rates: tuple[float, ...] = ()
    """Learning rates to try first for each setting, on a separate seed; its runs take the rate with
    the lowest test loss. If empty, runs take the config's rate."""
    comparisons: tuple[tuple[str, str], ...] = ()
    """Pairs of settings whose difference is reported with an interval."""
    summarize: Callable[[Gathered], Result] | None = None
    """Makes the result; None for the table of settings."""

    def source(self, options: Options) -> str:
        """The source that is followed."""
        follow = options.follow if self.sources else None
        return follow or next(iter(self.sources), "paper")

    def folder(self, options: Options) -> Path:
        """The study's directory, named with the source if it isn't the default."""
        source = self.source(options)
        end = "" if source == next(iter(self.sources), source) else f"-{source}"
        return options.out / f"{self.name}-{options.scale}{end}"

    def at_scale(self, options: Options) -> list[Setting]:
        """The settings as they are run at this scale."""
        found = []
        for setting in self.settings(self.source(options)):
            if (config := setting.config) is None:
                found.append(setting)
                continue
            scaled = config if options.scale == "full" else self.shrink(config, options.scale)
            if scaled is not None:
                shrunk = differences(config, scaled)
                if scaled.data != "digits":
                    scaled = replace(scaled, data_dir=options.data_dir)
                found.append(replace(setting, config=scaled, shrunk=shrunk))
        return found

    def tuning_runs(self, options: Options) -> list[Job]:
        """Runs that choose learning rates; none in a smoke test, which can't tell."""
        if options.is_smoke or not self.rates:
            return []
        return [
            _job(each, config, f"lr{rate:g}", seed=TUNING_SEED, lr=rate)
            for each in self.at_scale(options)
            if (config := each.config) is not None
            for rate in self.rates
        ]

    def runs(self, options: Options, rates: Mapping[str, float] | None = None) -> list[Job]:
        """Every run at this scale, ordered by seed: each setting has one before any has two.

        Args:
            options: scale and seeds.
            rates: learning rates that were chosen, by setting; the config's for all others.
        """
        settings = self.at_scale(options)
        chosen = rates or {}
        return [
            _job(each, config, f"seed{seed}", seed=seed, lr=chosen.get(each.name, config.lr))
            for seed in range(self.first_seed, self.first_seed + self.seed_count(options))
            for each in settings
            if (config := each.config) is not None
        ]

    def seed_count(self, options: Options) -> int:
        """Runs per setting."""
        return options.seeds or self.seeds.get(options.scale, 1)


def _job(setting: Setting, config: Config, end: str, **changes: Any) -> Job:
    name = f"{setting.name}-{end}"
    return Job(name=name, setting=setting.name, config=replace(config, **changes))


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
