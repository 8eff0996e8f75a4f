"""What a recipe is: settings with the paper's values beside them, and how they shrink.

Nothing here imports torch: `mpelu list` is made from recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, choose
from mpelu.lab.studies.differences import differences
from mpelu.lab.studies.result import Result

SCALES = ("smoke", "small", "full")
READINGS = ("paper", "code")
SEEDS = {"smoke": 1, "small": 2, "full": 5}
"""Runs of each setting where --seeds doesn't say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the command line decides, the same for all recipes of a call."""

    scale: str = "small"
    seeds: int | None = None
    reading: str | None = None
    """"paper" or "code", where the two disagree; None for what each recipe follows."""
    data_dir: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One cell of a table: a network trained one way, with as many runs as there are seeds."""

    name: str
    """Of its run folders, before the seed."""
    labels: tuple[str, ...]
    """What identifies it in the table."""
    paper: str
    """As printed; empty where the paper has no value."""
    config: Config | None
    """At full scale; None for what the paper quotes from elsewhere, which isn't run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shrunk:
    """A setting at some scale."""

    setting: Setting
    config: Config | None
    shrunk: tuple[str, ...]
    """How the config differs from the paper's, a text each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedRun:
    """One run: a setting with a seed."""

    name: str
    setting: str
    seed: int
    config: Config
    shrunk: tuple[str, ...] = ()


Shrinker = Callable[[Config, str], "Config | None"]
"""From a config at full scale and a smaller scale to what is run there; None leaves it out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A table, a figure or a claim of the paper."""

    name: str
    title: str
    needs: str
    """Data at full scale, in words."""
    labels: tuple[str, ...] = ()
    """Headings of the settings' labels."""
    quantity: str = "test error %"
    settings: Callable[[str], list[Setting]] = lambda reading: []
    """From a reading to the settings at full scale; none where nothing is trained."""
    looks_at: Callable[[Options], tuple[Config, ...]] = lambda options: ()
    """Configs whose data are needed though nothing is trained."""
    shrink: Shrinker = lambda config, scale: config
    seeds: Mapping[str, int] = field(default_factory=lambda: SEEDS)
    readings: Mapping[str, str] = field(default_factory=dict)
    """Where paper and code disagree: each reading in words, the one that is followed first."""
    comparisons: tuple[tuple[str, str], ...] = ()
    """Pairs of settings whose difference is given with an interval."""
    summarize: Callable[[Recipe, Options, Path], Result] | None = None
    """From the recipe's folder to its result, in place of the table of settings."""

    def reading(self, options: Options) -> str:
        """The one followed: the option, or the recipe's own."""
        if not self.readings:
            return "paper"
        return options.reading or next(iter(self.readings))

    def folder(self, options: Options) -> str:
        """Name of the folder under --out; a reading that isn't the recipe's own has its own."""
        reading = self.reading(options)
        own = not self.readings or reading == next(iter(self.readings))
        return f"{self.name}-{options.scale}" + ("" if own else f"-{reading}")

    def at_scale(self, options: Options) -> list[Shrunk]:
        """The settings as they are run at this scale."""
        found = []
        for setting in self.settings(self.reading(options)):
            config = setting.config
            if config is not None and options.scale != "full":
                config = self.shrink(config, options.scale)
                if config is None:
                    continue
            texts: tuple[str, ...] = ()
            if config is not None:
                assert setting.config is not None
                texts = differences(setting.config, config)
                if config.data != "digits":
                    config = replace(config, data_dir=options.data_dir)
            found.append(Shrunk(setting=setting, config=config, shrunk=texts))
        return found

    def runs(self, options: Options) -> list[NamedRun]:
        """Every run at this scale, seed by seed: each setting has one before any has two."""
        count = self.seed_count(options)
        settings = self.at_scale(options)
        return [
            NamedRun(
                name=f"{each.setting.name}-seed{seed}",
                setting=each.setting.name,
                seed=seed,
                config=replace(each.config, seed=seed),
                shrunk=each.shrunk,
            )
            for seed in range(count)
            for each in settings
            if each.config is not None
        ]

    def seed_count(self, options: Options) -> int:
        return options.seeds or self.seeds.get(options.scale, 1)


def check(options: Options) -> None:
    """Raises UserError for options no recipe can have."""
    choose("scale", options.scale, SCALES)
    if options.reading is not None:
        choose("reading", options.reading, READINGS)
    if options.seeds is not None and options.seeds < 1:
        raise UserError(f"seeds: expected a number >= 1, got {options.seeds}")
