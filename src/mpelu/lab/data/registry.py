"""The data sets that `--data` can name, with every fact about them.

Importing this module doesn't import torch. To add a data set, add a record to `DATA_SETS` whose
`read` returns the images (see `mpelu.lab.data.images.Splits`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.errors import UserError, choose
from mpelu.lab.references import is_reference

if TYPE_CHECKING:
    from mpelu.lab.config import Config
    from mpelu.lab.data.images import Splits

HINT = "use folder for ImageNet"
"""Added to the error for an unknown data set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSetInfo:
    """What is known about a data set before it is read."""

    name: str
    """The value of Config's `data`."""
    label: str
    """The name for tables and text."""
    channels: int = 0
    """0 if only the data says; likewise below."""
    image_size: int = 0
    """Height and width of the images, or what they are scaled to by default."""
    crop: int | None = None
    """Default height and width of the crop the network sees; None for the whole image."""
    num_classes: int = 0
    train_count: int = 0
    test_count: int = 0
    channel_mean: tuple[float, ...] | None = None
    """Published mean of each channel of the whole training set, for pixels from 0 to 255."""
    channel_std: tuple[float, ...] | None = None
    needs_data_dir: bool = True
    read: Callable[[DataSetInfo, Path | None], Splits]
    """Reads all images from the data directory, or raises UserError if they aren't there. It is
    called with this record."""
    download: Callable[..., None] | None = None
    """Function of this record, the data directory, `mirror` and `progress` that downloads the data
    set unless it is there (see `mpelu.lab.data.cifar.download`); None if it can't be downloaded."""


def find(name: str) -> DataSetInfo:
    """Returns the record of a data set.

    Raises:
        UserError: if there is no data set of that name.

    Example:
        >>> find("cifar100").label, find("cifar100").num_classes
        ('CIFAR-100', 100)
        >>> find("imagenet")
        Traceback (most recent call last):
        mpelu.lab.errors.UserError: data: unknown data set 'imagenet'; choose digits, cifar10, \
cifar100, folder or npz (use folder for ImageNet)
    """
    if name in DATA_SETS:
        return DATA_SETS[name]
    if not is_reference(name):
        choose("data", name, DATA_SETS, noun="data set", hint=HINT)
    read = _late("own", "read_reference")
    return DataSetInfo(name=name, label=name, needs_data_dir=False, read=read)


def named(text: str, data_dir: str | None = None) -> dict[str, str]:
    """The fields of a config for what --data names: a data set, a reference or a directory.

    Args:
        text: what was given.
        data_dir: what was given as --data-dir, if anything.

    Raises:
        UserError: if it is none of these.

    Example:
        >>> named("cifar10", "~/data")
        {'data': 'cifar10', 'data_dir': '~/data'}
    """
    if text in DATA_SETS or is_reference(text):
        return {"data": text} if data_dir is None else {"data": text, "data_dir": data_dir}
    folder = Path(text).expanduser()
    if folder.is_dir():
        if data_dir is not None:
            raise UserError(f"can't be combined with the directory --data {text}", field="data_dir")
        kind = "npz" if (folder / "train.npz").is_file() else "folder"
        return {"data": kind, "data_dir": str(folder)}
    choose("data", text, DATA_SETS, noun="data set or directory", hint=HINT)
    raise AssertionError


def image_sizes(config: Config) -> tuple[int, int]:
    """Returns the size images are scaled to and the size of the crop the network sees.

    Raises:
        UserError: if the crop is larger than the images.

    Example:
        >>> from mpelu.lab.config import Config
        >>> image_sizes(Config(data="cifar10", crop=28)), image_sizes(Config(data="folder"))
        ((32, 28), (256, 224))
    """
    info = find(config.data)
    image_size = config.image_size or info.image_size
    if not image_size:
        raise UserError(f"required for {config.data} here", field="image_size")
    crop = config.crop or min(info.crop or image_size, image_size)
    if crop > image_size:
        raise UserError(f"expected at most the image size, {image_size}, got {crop}", field="crop")
    return image_size, crop


def _late(module: str, function: str) -> Callable[..., Any]:
    """A function of this package. Its module, which needs torch, is imported by a call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(f"mpelu.lab.data.{module}"), function)(*args, **kwargs)

    return call


_RECORDS = (
    DataSetInfo(
        name="digits",
        label="digits",
        channels=1,
        image_size=8,
        num_classes=10,
        train_count=1437,
        test_count=360,
        needs_data_dir=False,
        read=_late("images", "read_digits"),
    ),
    DataSetInfo(
        name="cifar10",
        label="CIFAR-10",
        channels=3,
        image_size=32,
        num_classes=10,
        train_count=50_000,
        test_count=10_000,
        # As in the paper's code.
        channel_mean=(125.3, 123.0, 113.9),
        channel_std=(63.0, 62.1, 66.7),
        read=_late("cifar", "read"),
        download=_late("cifar", "download"),
    ),
    DataSetInfo(
        name="cifar100",
        label="CIFAR-100",
        channels=3,
        image_size=32,
        num_classes=100,
        train_count=50_000,
        test_count=10_000,
        channel_mean=(129.3, 124.1, 112.4),
        channel_std=(68.2, 65.4, 70.4),
        read=_late("cifar", "read"),
        download=_late("cifar", "download"),
    ),
    # Any directory of images; label, classes and counts are those of ImageNet, for estimates and
    # for networks that are built without data.
    DataSetInfo(
        name="folder",
        label="ImageNet",
        channels=3,
        image_size=256,
        crop=224,
        num_classes=1000,
        train_count=1_281_167,
        test_count=50_000,
        read=_late("folder", "read"),
    ),
    DataSetInfo(name="npz", label="npz", read=_late("own", "read_npz")),
)
DATA_SETS: dict[str, DataSetInfo] = {each.name: each for each in _RECORDS}
"""All data sets by name."""
