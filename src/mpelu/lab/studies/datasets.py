"""Facts about data sets that studies need without loading any."""

from __future__ import annotations

from dataclasses import dataclass

from mpelu.lab.config import Config


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSetInfo:
    """What is known about a data set before it is read."""

    label: str
    channels: int
    image_size: int
    crop: int | None = None
    num_classes: int
    train_count: int
    test_count: int


DATA_SETS = {
    "digits": DataSetInfo(
        label="digits", channels=1, image_size=8, num_classes=10, train_count=1437, test_count=360
    ),
    "cifar10": DataSetInfo(
        label="CIFAR-10", channels=3, image_size=32, num_classes=10, train_count=50_000,
        test_count=10_000,
    ),
    "cifar100": DataSetInfo(
        label="CIFAR-100", channels=3, image_size=32, num_classes=100, train_count=50_000,
        test_count=10_000,
    ),
    "folder": DataSetInfo(
        label="ImageNet", channels=3, image_size=256, crop=224, num_classes=1000,
        train_count=1_281_167, test_count=50_000,
    ),
}  # fmt: skip


def find(name: str) -> DataSetInfo:
    """The facts about a data set."""
    return DATA_SETS[name]


def image_sizes(config: Config) -> tuple[int, int]:
    """The size images are scaled to and the size of the crop the network sees."""
    info = find(config.data)
    image_size = config.image_size or info.image_size
    return image_size, config.crop or min(info.crop or image_size, image_size)
