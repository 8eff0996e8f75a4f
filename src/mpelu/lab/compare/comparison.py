"""The same model with several activations, trained alike: the plan, the runs and the verdict."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpelu import activations
from mpelu.lab import files
from mpelu.lab.compare.costs import (
    FEWEST_STEPS,
    SHARE,
    ArmCost,
    measure,
    steps_of_search,
    steps_within,
)
from mpelu.lab.compare.model import OWN, read_model
from mpelu.lab.config import Config
from mpelu.lab.data import registry
from mpelu.lab.errors import UserError, choose, flag, one_line
from mpelu.lab.references import is_reference
from mpelu.lab.run.folder import migrate_config
from mpelu.lab.sweep.study import Options, Setting, Study

if TYPE_CHECKING:
    from mpelu.lab.compare.rates import Rate
    from mpelu.lab.sweep.gather import Gathered
    from mpelu.lab.tables import Result

PLAN = "comparison.json"
FORMAT = 1
_TESTS = 10
"""Tests per run, so that the curves have a shape."""
_FEWEST_TO_SEARCH = int(FEWEST_STEPS / SHARE)
"""Steps per run from which a search for learning rates makes sense."""
_LOOKED_AT = 200
"""Photographs whose sizes are looked at."""
_SET_HERE = {
    "epochs", "iterations", "test_every", "log_every", "data_dir", "activation", "convert",
    "init", "seed", "device", "threads", "checkpoint_every", "image_size",
}  # fmt: skip
"""Fields that a resumed comparison takes from its plan, or that may change."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A way to train the model."""

    activation: str
    init: str
    is_passed: bool = False
    """Whether the factory is given the activation; otherwise it takes the place of those that the
    model has."""

    @property
    def name(self) -> str:
        name = self.activation if self.init == "own" else f"{self.activation}-{self.init}"
        return name.replace(":", ".")

    def config(self, base: Config) -> Config:
        """The config of the arm's runs."""
        chosen = None if self.activation == OWN else self.activation
        if self.is_passed:
            return replace(base, activation=chosen, init=self.init)
        return replace(base, convert=chosen, init=self.init)

    @property
    def label(self) -> str:
        """As in tables."""
        if self.activation == OWN:
            return "the model's own"
        return activations.resolve(self.activation).label

    @property
    def title(self) -> str:
        """The activation, and the initialization if it isn't the model's own."""
        return self.label if self.init == "own" else f"{self.label}, {self.init}"


@dataclass(frozen=True, kw_only=True)
class ModelComparison:
    """What is compared, and for how long each run trains."""

    config: Config
    """Of every run, but for activation, initialization and seed. Where learning rates are searched
    for, its learning rate is where the search starts."""
    arms: tuple[Arm, ...]
    """The first is what the others are compared with."""
    seeds: int
    budget: str
    costs: dict[str, ArmCost]
    """By the name of the arm."""
    notes: tuple[str, ...]
    """What couldn't be swapped."""
    asked: dict[str, list[str]]
    """The names that were given; the model's own activation may have been added to them."""
    search_steps: int = 0
    """Steps of a run that searches for a learning rate; 0 to train all arms with the same one."""
    has_validation: bool = False
    """Whether the data has validation images of its own."""
    rates: dict[str, Rate] = field(default_factory=dict)
    """By the name of the arm, once they are found."""

    def lr(self, arm: Arm) -> float:
        """The learning rate of an arm."""
        return self.rates[arm.name].value if arm.name in self.rates else self.config.lr

    def study(self, summarize: Callable[[ModelComparison, Gathered], Result]) -> Study:
        """The study that trains every arm with every seed."""
        settings = []
        for arm in self.arms:
            config = replace(arm.config(self.config), lr=self.lr(arm))
            settings.append(Setting(name=arm.name, labels=(arm.label, arm.init), config=config))
        return Study(
            name="compare",
            title=f"{self.config.model} on {self.config.data}, by activation",
            needs=self.config.data,
            labels=("activation", "initialization"),
            settings=lambda source: settings,
            summarize=lambda gathered: summarize(self, gathered),
        )

    def options(self, options: Options) -> Options:
        """The options for its studies, where and how to run them taken from these."""
        return replace(options, scale="full", seeds=self.seeds, data_dir=self.config.data_dir)


def plan(
    config: Config,
    names: Sequence[str],
    inits: Sequence[str],
    budget: str,
    options: Options,
    say: Say,
    search: bool | None = None,
) -> ModelComparison:
    """The comparison that the directory holds, or a new one, which is written there.

    A budget of time becomes a number of steps by a short measurement of each arm: as many as the
    slowest arm has time for. All arms get the same number, and a resumed comparison keeps it.

    Args:
        config: config of every run; its length is set here.
        names: of activations; "own" is the model as it comes, and is added as the first unless
            one of the names is its activation.
        inits: initializations, each for every activation.
        budget: time for everything, such as "30m", of which measuring takes its part, or steps
            per run, such as "500 steps".
        options: seeds, directory, and runs at a time.
        say: receives a line for each step that may take long.
        search: whether each arm's learning rate is searched for, or all are trained with that of
            the config; None to search if the budget has room for it.

    Raises:
        UserError: if something doesn't fit, or the directory holds another comparison.
    """
    jobs, out, seeds = options.at_a_time, options.out, options.seeds or 1
    limit = parse_budget(budget)
    if search and isinstance(limit, int) and limit < _FEWEST_TO_SEARCH:
        raise UserError(
            f"auto requires a budget of at least {_FEWEST_TO_SEARCH} steps, got {budget!r}; give "
            "one rate, such as --lr 0.1",
            field="lr",
        )
    _check_names(names, inits)
    asked = {"activations": list(names), "inits": list(inits)}
    if (out / PLAN).exists():
        return _resumed(config, asked, budget, options, search)
    from mpelu.lab.data.dataset import has_validation

    begun = time.monotonic()
    config, sized = _with_image_size(config)
    say(sized or "reading the data and the model")
    found_in = read_model(config)
    if found_in.is_passed and not found_in.has_own and OWN in names:
        raise UserError(
            f"{config.model} has no activation of its own; name others, such as relu,mpelu",
            field="activations",
        )
    chosen = names if not found_in.has_own or found_in.names_own(names) else [OWN, *names]
    arms = tuple(
        Arm(activation=name, init=init, is_passed=found_in.is_passed)
        for init in dict.fromkeys(inits)
        for name in dict.fromkeys(chosen)
    )
    if len(arms) < 2:
        raise UserError(
            f"expected at least two arms to compare, got {arms[0].title}", field="activations"
        )
    costs = measure(config, arms, jobs, say)
    runs = len(arms) * seeds
    spent = time.monotonic() - begun

    def steps_of(searched: int) -> int:
        if isinstance(limit, int):
            return limit
        return steps_within(limit - spent, costs, runs, jobs, searched)

    steps = steps_of(0 if search is False else len(arms))
    if search is None:
        search = steps >= _FEWEST_TO_SEARCH
        steps = steps if search else steps_of(0)
    fewest = _FEWEST_TO_SEARCH if search else FEWEST_STEPS
    if steps < fewest and not isinstance(limit, int):
        kind = " after a search for learning rates (--lr 0.1 needs none)" if search else ""
        raise UserError(
            f"expected time for {fewest} steps or more in each of {runs} runs{kind}, got "
            f"{budget!r}, enough for {max(0, steps)}",
            field="budget",
        )
    made = ModelComparison(
        config=replace(
            config,
            epochs=None,
            iterations=steps,
            test_every=max(1, steps // _TESTS),
            log_every=max(1, steps // 50),
        ),
        arms=arms,
        seeds=seeds,
        budget=budget,
        costs=costs,
        notes=(*([sized] if sized else []), *found_in.notes),
        asked=asked,
        search_steps=steps_of_search(steps) if search else 0,
        has_validation=has_validation(config),
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        files.write_json(out / PLAN, {"format": FORMAT, **asdict(made)})
    except OSError as error:
        raise UserError(
            f"{out}: can't be written: {error.strerror or error}", field="out"
        ) from error
    return made


def _with_image_size(config: Config) -> tuple[Config, str]:
    """For a directory of photographs: a size that enlarges few of them, and what is done in words.

    Photographs with a median of 256 pixels or more on their smaller side are scaled to 256 x 256
    and cropped to 224 x 224, as those of ImageNet; smaller ones to that median.
    """
    if config.data != "folder" or config.data_dir is None or config.image_size is not None:
        return config, ""
    sides = _smaller_sides(config)
    middle = int(statistics.median(sides)) if sides else 0
    if 0 < middle < registry.find(config.data).image_size:
        config = replace(config, image_size=middle)
    scaled, seen = registry.image_sizes(config)
    text = f"images are scaled to {scaled} x {scaled}"
    if seen < scaled:
        text += f", of which the network sees {seen} x {seen}"
    if sides:
        text += f"; the smaller sides of the training images have {min(sides)} to {max(sides)} "
        text += f"pixels, with a median of {middle}"
    return config, text


def _smaller_sides(config: Config) -> list[int]:
    """The smaller sides of some training images, in pixels; damaged files are left out."""
    from PIL import Image

    from mpelu.lab.data.folder import FORMATS
    from mpelu.lab.data.images import ImageFiles
    from mpelu.lab.files import open_regular

    assert config.data_dir is not None
    place = Path(config.data_dir).expanduser()
    files = registry.find(config.data).read(registry.find(config.data), place).train
    assert isinstance(files, ImageFiles)
    count = min(_LOOKED_AT, len(files.names))
    sides = []
    for index in range(count):
        path = files.folder / files.names[index * len(files.names) // count]
        # Pillow raises errors of many types, and warns of very many pixels.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_regular(path) as opened, Image.open(opened, formats=FORMATS) as image:
                sides.append(min(image.size))
    return sides


def parse_budget(text: str) -> float | int:
    """Seconds as a float, or a number of steps as an integer.

    Raises:
        UserError: for anything else.

    Example:
        >>> parse_budget("30m"), parse_budget("1.5h"), parse_budget("500 steps")
        (1800.0, 5400.0, 500)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|steps?)", text.strip().lower())
    number = float(match[1]) if match else 0.0
    if match is None or number <= 0 or (match[2].startswith("step") and number != int(number)):
        raise UserError(
            f"expected a time such as 90s, 30m or 2h, or steps such as '500 steps', got {text!r}",
            field="budget",
        )
    if match[2].startswith("step"):
        return int(number)
    return number * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _check_names(names: Sequence[str], inits: Sequence[str]) -> None:
    for name in names:
        if name != OWN and not is_reference(name):
            choose("activations", name, activations.TABLE, noun="activation")
        elif name != OWN:
            try:
                activations.resolve(name)
            except ValueError as error:
                raise UserError(one_line(error), field="activations") from error
    from mpelu.init import METHODS

    for init in inits:
        if not is_reference(init):
            choose("inits", init, ["own", *METHODS], noun="initialization")
    if not names or not inits:
        raise UserError("expected a name, got none", field="activations" if inits else "inits")


def _resumed(
    config: Config,
    asked: dict[str, list[str]],
    budget: str,
    options: Options,
    search: bool | None,
) -> ModelComparison:
    out = options.out
    try:
        found = files.read_json(out / PLAN)
        if found.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, got {found.get('format')!r}")
    except ValueError as error:
        raise UserError(f"{out / PLAN}: {one_line(error)}", field="out") from error
    try:
        # A plan has no schema; one of schema 3 is read as before, and a newer one stays as it is.
        before = Config.from_values(migrate_config({**found["config"], "schema": 3}))
        kept = ModelComparison(
            config=replace(before, data_dir=config.data_dir, device=config.device),
            arms=tuple(Arm(**each) for each in found["arms"]),
            seeds=max(options.seeds or 1, int(found["seeds"])),
            budget=str(found["budget"]),
            costs={name: ArmCost(**each) for name, each in found["costs"].items()},
            notes=tuple(found["notes"]),
            asked=dict(found["asked"]),
            # Plans of earlier versions have neither.
            search_steps=int(found.get("search_steps", 0)),
            has_validation=bool(found.get("has_validation", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{out / PLAN}: damaged: {one_line(error)}", field="out") from error
    now, then = (
        {name: value for name, value in asdict(each).items() if name not in _SET_HERE}
        for each in (config, before)
    )
    now |= {**asked, "budget": budget}
    then |= {**kept.asked, "budget": kept.budget}
    if config.image_size is not None:  # otherwise the plan may have chosen one
        now["image_size"], then["image_size"] = config.image_size, before.image_size
    if kept.search_steps:
        then["lr"] = "auto"
    if search or (search is None and kept.search_steps):
        now["lr"] = "auto"
    for name, value in now.items():
        if then.get(name) != value:
            other, this = (
                ",".join(each) if isinstance(each, list) else each
                for each in (then.get(name), value)
            )
            raise UserError(
                f"{out} holds a comparison with {flag(name)} {other}, not {this}; choose another "
                "directory",
                field="out",
            )
    return kept
