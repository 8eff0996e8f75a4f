"""The data sets that `--data` can name, with every fact about them.

Importing this module doesn't import torch. To add a data set, add a record to `DATA_SETS` whose
`read` returns the images (see `mpelu.lab.data.images.Splits`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mpelu.lab.errors import UserError, choose
from mpelu.lab.references import is_reference

if TYPE_CHECKING:
    from mpelu.lab.config import Config
    from mpelu.lab.data.download import DownloadProgress
    from mpelu.lab.data.images import Splits

HINT = "use folder for ImageNet"
"""Added to the error for an unknown data set."""


class Download(Protocol):
    """Downloads a data set into a directory, unless it is there already."""

    def __call__(
        self,
        info: DataSetInfo,
        data_dir: Path,
        *,
        mirror: str | None = None,
        progress: DownloadProgress | None = None,
    ) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSetInfo:
    """What is known about a data set before it is read."""

    name: str
    """The value of Config's `data`."""
    label: str
    """The name for tables and text."""
    channels: int
    """0 if only the data says; likewise below."""
    image_size: int
    """Height and width of the images, or what they are scaled to by default."""
    crop: int | None = None
    """Default height and width of the crop the network sees; None for the whole image."""
    num_classes: int
    train_count: int
    test_count: int
    channel_mean: tuple[float, ...] | None = None
    """Published mean of each channel of the whole training set, for pixels from 0 to 255."""
    channel_std: tuple[float, ...] | None = None
    needs_data_dir: bool
    read: Callable[[DataSetInfo, Path | None], Splits]
    """Reads all images from the data directory, or raises UserError if they aren't there. It is
    called with this record."""
    download: Download | None = None
    """None if the data set can't be downloaded."""


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
    if is_reference(name):
        return _unknown(name, needs_data_dir=False, read=partial(_read_reference, name))
    choose("data", name, DATA_SETS, noun="data set", hint=HINT)
    return DATA_SETS[name]


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


def _read_digits(info: DataSetInfo, data_dir: Path | None) -> Splits:
    from mpelu.lab.data import images

    return images.read_digits()


def _read_cifar(info: DataSetInfo, data_dir: Path | None) -> Splits:
    from mpelu.lab.data import cifar

    assert data_dir is not None
    return cifar.read(info, data_dir)


def _download_cifar(
    info: DataSetInfo,
    data_dir: Path,
    *,
    mirror: str | None = None,
    progress: DownloadProgress | None = None,
) -> None:
    from mpelu.lab.data import cifar

    cifar.download(info, data_dir, mirror=mirror, progress=progress)


def _read_folder(info: DataSetInfo, data_dir: Path | None) -> Splits:
    from mpelu.lab.data import folder

    assert data_dir is not None
    return folder.read(data_dir)


def _read_npz(info: DataSetInfo, data_dir: Path | None) -> Splits:
    from mpelu.lab.data import own

    assert data_dir is not None
    return own.read_npz(data_dir)


def _read_reference(name: str, info: DataSetInfo, data_dir: Path | None) -> Splits:
    from mpelu.lab.data import own

    return own.read_reference(name, data_dir)


def _unknown(
    name: str, *, needs_data_dir: bool, read: Callable[[DataSetInfo, Path | None], Splits]
) -> DataSetInfo:
    """A data set that nothing is known about before it is read."""
    return DataSetInfo(
        name=name,
        label=name,
        channels=0,
        image_size=0,
        num_classes=0,
        train_count=0,
        test_count=0,
        needs_data_dir=needs_data_dir,
        read=read,
    )


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
        read=_read_digits,
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
        needs_data_dir=True,
        read=_read_cifar,
        download=_download_cifar,
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
        needs_data_dir=True,
        read=_read_cifar,
        download=_download_cifar,
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
        needs_data_dir=True,
        read=_read_folder,
    ),
    _unknown("npz", needs_data_dir=True, read=_read_npz),
)
DATA_SETS: dict[str, DataSetInfo] = {each.name: each for each in _RECORDS}
"""All data sets by name."""
