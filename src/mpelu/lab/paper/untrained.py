"""The untrained 30-layer network, for tables 7 and 8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.data import registry
from mpelu.lab.errors import UserError
from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import OURS, plain
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Options
from mpelu.lab.tables import Cell, Result

if TYPE_CHECKING:
    from torch import Tensor, nn

LAYERS = (1, 7, 14, 20, 27)
"""The convolutions that the paper reports."""
IMAGES = {"full": 64, "small": 32, "smoke": 16}
BATCH = 8
_MOMENT = (
    "measured before training: the paper doesn't say when it measured, but its ReLU network keeps "
    "the variance of an untrained one, and its section 4.4 is about initialization"
)

Values = dict[str, dict[int, tuple[float, ...]]]
"""What was measured, by network and number of the convolution."""
Look = Callable[["nn.Module", "list[Tensor]", Sequence[str]], Mapping[str, tuple[float, ...]]]
"""Measures the activations of these names, for a network and batches of images."""


def config(activation: str, init: str, options: Options, seed: int) -> Config:
    """The network at a scale, with the data it is shown.

    With init="own" it has the published rule, the same factor in every convolution.
    """
    full = replace(
        plain(30, activation, OURS, "code", batch_norm=False),
        init=init,
        linear_std=None,
        seed=seed,
        data_dir=options.data_dir,
    )
    if options.is_smoke:
        return replace(scale.plain(full, "smoke"), data_dir=None)
    if options.data_dir is None:
        raise UserError(
            "required here: a directory with images in train/CLASS/ and val/CLASS/",
            field="data_dir",
        )
    return full


def inspects(options: Options) -> tuple[Config, ...]:
    """The config whose data is needed."""
    return (config("mpelu", "own", options, 0),)


def measure(
    gathered: Gathered, networks: Mapping[str, tuple[str, str]], look: Look
) -> list[Values]:
    """What is measured with each seed after each convolution, on random test images, of networks
    with these activations and initializations."""
    import torch
    from torch import nn

    from mpelu.lab import data
    from mpelu.lab.training import network

    options = gathered.options
    measured = []
    for seed in range(gathered.study.seed_count(options)):
        values: Values = {}
        batches: list[Tensor] = []
        for name, (activation, init) in networks.items():
            chosen = config(activation, init, options, seed)
            if not batches:
                dataset = data.load(chosen, torch.device("cpu"))
                count = min(IMAGES[options.scale], dataset.test_count)
                generator = torch.Generator().manual_seed(0)
                picked = torch.randperm(dataset.test_count, generator=generator)[:count]
                batches = [batch for batch, _ in dataset.test(picked.split(BATCH))]
            classes = registry.find(chosen.data).num_classes
            model = network.build(chosen, classes, *batches[0].shape[1:3]).eval()
            children: list[tuple[str, Any]] = list(model.named_children())
            after = [
                later for (_, each), (later, _) in pairwise(children) if isinstance(each, nn.Conv2d)
            ]
            found = look(model, batches, after)
            values[name] = {number: found[place] for number, place in enumerate(after, 1)}
        measured.append(values)
    return measured


def cell(measured: list[Values], name: str, number: int, index: int, digits: str) -> Cell:
    """The mean over seeds of a value."""
    values = tuple(each[name][number][index] for each in measured)
    mean = sum(values) / len(values)
    return Cell(f"{mean:{digits}}", mean, values)


def result(gathered: Gathered, *, notes: Sequence[str], **fields: Any) -> Result:
    """The result with these fields and notes, and what both tables say."""
    options = gathered.options
    shrunk = [f"{IMAGES[options.scale]} images (the paper doesn't say how many)"]
    if options.is_smoke:
        shrunk += ["digits instead of ImageNet", "1/16 of the width", "19x19 images"]
    return gathered.result(
        shrunk=tuple(shrunk),
        seeds=gathered.study.seed_count(options),
        data="digits" if options.is_smoke else "folder",
        notes=(*notes, _MOMENT),
        **fields,
    )
