"""Cost of data loading: our loader and a plain DataLoader, alone and in training ResNet-20.

    python benchmarks/loader.py [--data-dir DIR] [--rounds 7]

Pads CIFAR-10 by 4, crops, flips and normalizes it in batches of 128. The loaders take turns in one
process, and ratios are medians of the ratios within a round. The plain loaders work image by image,
as CIFAR scripts usually do: with Pillow, or with tensors. Without --data-dir, images are random and
of the same shape. Writes results/loader.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image, ImageOps
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset

import mpelu
from common import keep_memory, machine, quantiles, write
from mpelu.lab.config import Config
from mpelu.lab.data import cifar
from mpelu.lab.data.dataset import Dataset, build
from mpelu.lab.data.images import LabeledImages, Splits, first
from mpelu.lab.data.registry import find
from mpelu.lab.sweep.estimate import interleaved

BATCH = 128
CPU = torch.device("cpu")
Batches = Iterator[tuple[Tensor, Tensor]]
MEAN, STD = (
    torch.tensor(each).view(3, 1, 1) / 255
    for each in (find("cifar10").channel_mean, find("cifar10").channel_std)
)


class WithPillow(MapDataset[tuple[Tensor, int]]):
    """Image by image, with the operations of common transforms."""

    def __init__(self, split: LabeledImages) -> None:
        self._images = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = split.labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self._images[index]), 4)
        top, left = torch.randint(9, (2,)).tolist()
        image = image.crop((left, top, left + 32, top + 32))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(MEAN).div_(STD), self._labels[index]


class WithTensors(MapDataset[tuple[Tensor, int]]):
    """Image by image, with as few tensor operations as possible."""

    def __init__(self, split: LabeledImages) -> None:
        self._images = split.images
        self._labels = split.labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._images[index].float().div_(255).sub_(MEAN).div_(STD)
        top, left = torch.randint(9, (2,)).tolist()
        image = functional.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        return image.flip(2) if torch.rand(()) < 0.5 else image, self._labels[index]


def plain(images: MapDataset[tuple[Tensor, int]], workers: int) -> Callable[[], Batches]:
    def batches() -> Batches:
        while True:
            yield from DataLoader(images, BATCH, shuffle=True, num_workers=workers, drop_last=True)

    return batches


def ours(data: Dataset) -> Callable[[], Batches]:
    def batches() -> Batches:
        epoch = 0
        while True:
            order = torch.randperm(data.train_count)[: data.train_count // BATCH * BATCH]
            yield from data.train(order.split(BATCH), epoch)
            epoch += 1

    return batches


def taking(
    batches: Batches, count: int, step: Callable[[Tensor, Tensor], None]
) -> Callable[[], None]:
    def run() -> None:
        for images, labels in islice(batches, count):
            step(images, labels)

    return run


def training_step() -> Callable[[Tensor, Tensor], None]:
    torch.manual_seed(0)
    model: nn.Module = mpelu.models.create("resnet-20", activation="mpelu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def ratios(times: dict[str, list[float]], base: str) -> dict[str, float]:
    """Times relative to the base: medians of the ratios within a round."""
    return {
        name: statistics.median(own / least for own, least in zip(own, times[base], strict=True))
        for name, own in times.items()
    }


def alone(loaders: dict[str, Batches], rounds: int) -> dict[str, dict[str, Any]]:
    """Measures each loader without training.

    Workers fill their queues (4 batches) between turns; turns are long enough to make that head
    start small.
    """
    counts = {name: 500 if name == "ours" else 100 for name in loaders}
    turns = {
        name: taking(batches, counts[name], lambda images, labels: None)
        for name, batches in loaders.items()
    }
    raw = interleaved(turns, rounds, warmup=1)
    times = {name: [each / counts[name] for each in own] for name, own in raw.items()}
    slower = ratios(times, "ours")
    return {
        name: {
            "seconds_a_batch": quantiles(own),
            "images_a_second": BATCH / statistics.median(own),
            "ours_faster": slower[name],
        }
        for name, own in times.items()
    }


def in_training(loaders: dict[str, Batches], rounds: int, steps: int) -> dict[str, dict[str, Any]]:
    """Measures training steps with each loader, and on one batch that is already in memory."""
    step = training_step()
    images, labels = next(loaders["ours"])

    def same() -> Batches:
        while True:
            yield images, labels

    turns = {name: taking(batches, steps, step) for name, batches in loaders.items()}
    turns["no loader"] = taking(same(), steps, step)
    raw = interleaved(turns, rounds, warmup=1)
    times = {name: [each / steps for each in own] for name, own in raw.items()}
    slower = ratios(times, "ours")
    return {
        name: {"seconds_a_step": quantiles(own), "ours_faster": slower[name]}
        for name, own in times.items()
    }


def show(console: Console, title: str, rows: dict[str, dict[str, Any]], key: str) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("loader", "ms", "p20-p80", "images/s", "ours is faster by"):
        table.add_column(heading, justify="left" if heading == "loader" else "right")
    for name, row in rows.items():
        seconds = row[key]
        table.add_row(
            name,
            f"{seconds['p50'] * 1e3:.2f}",
            f"{seconds['p20'] * 1e3:.2f}-{seconds['p80'] * 1e3:.2f}",
            f"{BATCH / seconds['p50']:,.0f}",
            f"{row['ours_faster']:.2f}",
            style="bold" if name == "ours" else None,
        )
    console.print(table)


def training_images(data_dir: str | None) -> LabeledImages:
    if data_dir is not None:
        train = cifar.read(find("cifar10"), Path(data_dir)).train
        assert isinstance(train, LabeledImages)
        return train
    generator = torch.Generator().manual_seed(0)
    return LabeledImages(
        images=torch.randint(256, (50_000, 3, 32, 32), generator=generator, dtype=torch.uint8),
        labels=torch.randint(10, (50_000,), generator=generator),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="directory of CIFAR-10 (default: random images)")
    parser.add_argument("--rounds", type=int, default=7, help="turns per loader (default: 7)")
    parser.add_argument("--steps", type=int, default=20, help="steps per turn (default: 20)")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    keep_memory()  # as training does, see mpelu/lab/training/memory.py
    torch.set_num_threads(options.threads)
    console = Console(width=110)
    console.print(f"kernel: {mpelu.kernels.backend()}\nmachine: {machine()['cpu']}")
    start = time.perf_counter()
    images = training_images(options.data_dir)
    config = Config(data="cifar10", augment="pad-crop-flip")
    data = build(config, CPU, Splits(images, first(images, BATCH), tuple("0123456789")))
    makers = {
        "ours": ours(data),
        "Pillow, 0 workers": plain(WithPillow(images), 0),
        "Pillow, 2 workers": plain(WithPillow(images), 2),
        "tensors, 0 workers": plain(WithTensors(images), 0),
        "tensors, 2 workers": plain(WithTensors(images), 2),
    }
    loaders = {name: make() for name, make in makers.items()}
    loading = alone(loaders, options.rounds)
    show(
        console,
        f"Loader alone, batch {BATCH}, {options.threads} threads",
        loading,
        "seconds_a_batch",
    )
    training = in_training(loaders, options.rounds, options.steps)
    show(console, "With a ResNet-20 (MPELU) training step", training, "seconds_a_step")
    share = (
        loading["ours"]["seconds_a_batch"]["p50"] / training["no loader"]["seconds_a_step"]["p50"]
    )
    console.print(f"data share of a training step: {share:.2%}")
    result = {
        "batch": BATCH,
        "threads": options.threads,
        "data": "random" if options.data_dir is None else "cifar10",
        "data_share": share,
        "alone": loading,
        "in_training": training,
    }
    console.print(f"wrote {write('loader', result)} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
