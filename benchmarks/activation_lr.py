"""Does a learning rate multiplier on alpha and beta help? SGD and AdamW, with multipliers 1 and 5.

    python benchmarks/activation_lr.py --data-dir DIR [--epochs 12] [--seeds 3]

ResNet-20 of width 8 with MPELU on the built-in digits and on the first 5000 training images of
CIFAR-10 at 16x16 pixels, one thread. Runs with the same seed have the same initial weights and the
same batches. The learning rate follows a cosine. Writes results/activation-lr.json.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn import functional

import mpelu
from common import machine, write
from mpelu.lab.config import Config
from mpelu.lab.data import Dataset, load

BATCH = 64
MULTIPLIERS = (1.0, 5.0)
OPTIMIZERS = (
    ("AdamW", 1e-3, 0.05),
    ("AdamW", 3e-3, 0.05),
    ("AdamW", 1e-2, 0.05),
    ("SGD", 0.05, 1e-4),
)
"""Name, learning rate and weight decay."""


@dataclass(frozen=True)
class Case:
    data: str
    optimizer: str
    lr: float
    weight_decay: float
    lr_mult: float
    seed: int


def train(case: Case, data: Dataset, epochs: int) -> dict[str, Any]:
    """Test loss and error in percent after training, and the range of alpha and beta."""
    torch.manual_seed(case.seed)
    model = mpelu.models.create(
        "resnet-20", activation="mpelu", in_channels=data.channels, width=8, num_classes=10
    )
    groups = mpelu.param_groups(  # alpha and beta are decayed, with SGD and AdamW alike
        model, lr=case.lr, weight_decay=case.weight_decay, lr_mult=case.lr_mult, decay_mult=1.0
    )
    optimizer = (
        torch.optim.AdamW(groups, lr=case.lr)
        if case.optimizer == "AdamW"
        else torch.optim.SGD(groups, lr=case.lr, momentum=0.9, nesterov=True)
    )
    batches = data.train_count // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    generator = torch.Generator().manual_seed(case.seed)
    for epoch in range(epochs):
        order = torch.randperm(data.train_count, generator=generator)[: batches * BATCH]
        for images, labels in data.train(order.split(BATCH), seed=1000 * case.seed + epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    loss, wrong = 0.0, 0
    with torch.no_grad():
        for images, labels in data.test(torch.arange(data.test_count).split(250)):
            logits = model(images)
            loss += functional.cross_entropy(logits, labels, reduction="sum").item()
            wrong += int((logits.argmax(1) != labels).sum())
    shapes = [module for module in model.modules() if isinstance(module, mpelu.MPELU)]
    ranges = {
        name: [
            min(getattr(module, name).min().item() for module in shapes),
            max(getattr(module, name).max().item() for module in shapes),
        ]
        for name in ("alpha", "beta")
    }
    return {
        **asdict(case),
        "test_loss": loss / data.test_count,
        "test_error": 100 * wrong / data.test_count,
        **ranges,
    }


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation of each case over seeds, and multiplier 5 minus 1 by seed."""
    found = []
    keys = dict.fromkeys((row["data"], row["optimizer"], row["lr"]) for row in rows)
    for data, optimizer, lr in keys:
        summary: dict[str, Any] = {"data": data, "optimizer": optimizer, "lr": lr}
        for quantity in ("test_error", "test_loss"):
            values = {
                mult: [
                    row[quantity]
                    for row in rows
                    if (row["data"], row["optimizer"], row["lr"]) == (data, optimizer, lr)
                    and row["lr_mult"] == mult
                ]
                for mult in MULTIPLIERS
            }
            for mult, each in values.items():
                summary[f"{quantity} x{mult:g}"] = [
                    statistics.mean(each),
                    statistics.stdev(each) if len(each) > 1 else math.nan,
                ]
            summary[f"{quantity} difference"] = [
                five - one for one, five in zip(*values.values(), strict=True)
            ]
        found.append(summary)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, help="directory of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=12, help="default: 12")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=120)
    cifar = Config(
        data="cifar10", data_dir=options.data_dir, image_size=16, train_limit=5000,
        test_limit=5000, augment="pad-crop-flip",
    )  # fmt: skip
    sets = {
        "digits": load(Config(data="digits"), torch.device("cpu")),
        "cifar10": load(cifar, torch.device("cpu")),
    }
    cases = [
        Case(data, name, lr, weight_decay, mult, seed)
        for data in sets
        for name, lr, weight_decay in OPTIMIZERS
        for seed in range(options.seeds)
        for mult in MULTIPLIERS
    ]
    start = time.perf_counter()
    rows = [
        train(case, sets[case.data], options.epochs)
        for case in track(cases, "training", console=console, transient=True)
    ]
    summary = summarize(rows)
    table = Table(title=f"{options.epochs} epochs, {options.seeds} seeds", title_justify="left")
    table.add_column("data, optimizer, learning rate")
    for heading in ("error x1, %", "error x5, %", "x5 - x1", "loss x1", "loss x5", "x5 - x1"):
        table.add_column(heading, justify="right")
    for row in summary:
        table.add_row(
            f"{row['data']}, {row['optimizer']}, {row['lr']:g}",
            *(
                cell
                for quantity, digits in (("test_error", 2), ("test_loss", 4))
                for cell in (
                    *(
                        f"{row[f'{quantity} x{m:g}'][0]:.{digits}f} ± "
                        f"{row[f'{quantity} x{m:g}'][1]:.{digits}f}"
                        for m in MULTIPLIERS
                    ),
                    f"{statistics.mean(row[f'{quantity} difference']):+.{digits}f}",
                )
            ),
        )
    console.print(f"machine: {machine()['cpu']}")
    console.print(table)
    settings = {"epochs": options.epochs, "batch_size": BATCH, "threads": 1}
    path = write("activation-lr", {"settings": settings, "summary": summary, "runs": rows})
    console.print(f"wrote {path} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
