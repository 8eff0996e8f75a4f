"""A data set as training uses it, and how it is loaded for a config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mpelu.lab.data import preprocess as preprocessing
from mpelu.lab.data.augment import RESIZED, RandomCrop, RandomResizedCrop, make_crop
from mpelu.lab.data.download import DownloadProgress
from mpelu.lab.data.folder import FileReader, decode
from mpelu.lab.data.images import CHUNK, LabeledImages, Splits, first, hold_out
from mpelu.lab.data.preprocess import POINTWISE, Preprocess
from mpelu.lab.data.registry import DataSetInfo, find, image_sizes
from mpelu.lab.errors import UserError, one_line
from mpelu.lab.files import digest

if TYPE_CHECKING:
    from mpelu.lab.config import Config

MAX_FITTED = 10_000
"""Image files that preprocessing is fitted on, at most."""
_LARGEST_WHITENED = 64
"""Image size up to which the whitening matrix is practical."""


@dataclass(kw_only=True, eq=False)
class Dataset:
    """Training, validation and test images as batches for a network. Use `load` to create one."""

    name: str
    """Config's `data`."""
    classes: tuple[str, ...]
    """Class names by label."""
    channels: int
    fingerprint: str
    """SHA-256 of the data."""
    image_size: int
    """Height and width that the images were scaled to before cropping."""
    preprocess: Preprocess
    """The preprocessing fitted on the training set."""
    splits: dict[str, LabeledImages | FileReader] = field(repr=False)
    """Images in memory, which are kept on the device, or a reader of image files: "train", "test"
    and, if there are any, "validation"."""
    crop: RandomCrop | RandomResizedCrop | None
    device: torch.device
    test_note: str = ""
    """Which images the test images are, in words, where that isn't obvious."""

    size: int = field(init=False)
    """Height and width of the images the network sees."""
    train_count: int = field(init=False)
    """Number of training images, without those for validation."""
    validation_count: int = field(init=False)
    """Number of validation images, which may be 0."""
    test_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.preprocess.size
        self.train_count = len(self.splits["train"])
        self.validation_count = len(self.splits.get("validation", ()))
        self.test_count = len(self.splits["test"])

    def close(self) -> None:
        """Ends the worker processes, which otherwise stay until the data set is gone."""
        train = self.splits["train"]
        if isinstance(train, FileReader):
            train.close()

    def describe(self) -> dict[str, Any]:
        """Returns name, classes, shape, counts and fingerprint, for the run folder."""
        validation = {"validation_count": self.validation_count} if self.validation_count else {}
        return {
            "name": self.name,
            "classes": list(self.classes),
            "channels": self.channels,
            "image_size": self.image_size,
            "size": self.size,
            "train_count": self.train_count,
            **validation,
            "test_count": self.test_count,
            "fingerprint": self.fingerprint,
        }

    def train(self, batches: Iterable[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields augmented training batches.

        Args:
            batches: int64 indices into the training set, on the CPU.
            seed: seed of the epoch. Crop and flip of sample i depend on (seed, i) alone.

        Yields:
            Images, float32 [b, channels, size, size], and labels, int64 [b], on the device. b is
            smaller than asked for, and may be 0, where files are damaged.
        """
        crop, reader = self.crop, self.splits["train"]
        if crop is None:
            yield from self._centered("train", batches)
        elif isinstance(crop, RandomResizedCrop) and isinstance(reader, FileReader):
            # Workers crop out of all pixels of the file, before it is scaled.
            for _, images, labels in reader.read(batches, crop.numbers(seed, len(reader))):
                yield self.preprocess(images), labels
        else:
            codes = crop.draw(seed, self.train_count)
            for index, images, labels in self._read("train", batches):
                if crop.interpolates or not self.preprocess.pointwise:
                    images = self.preprocess.normalize(images)
                crops, mask = crop(images, codes.index_select(0, index))
                crops = self.preprocess.normalize(crops)
                # Padding is the mean, which is 0 after normalization.
                yield crops if mask is None else crops.mul_(mask), labels

    def test(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields test batches: the center of each image, without augmentation.

        Args:
            batches: int64 indices into the test set, on the CPU.

        Yields:
            Images, float32 [b, channels, size, size], and labels, int64 [b], on the device.
        """
        return self._tested("test", batches)

    def validation(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields validation batches, as `test` yields test batches. There may be none."""
        return self._tested("validation", batches) if self.validation_count else iter(())

    def _tested(self, name: str, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self._centered(name, batches):
            if len(labels):  # not all of its files are damaged
                yield images, labels

    def _centered(self, name: str, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for _, images, labels in self._read(name, batches):
            yield self.preprocess(images), labels

    def _read(
        self, name: str, batches: Iterable[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yields indices, whole images and labels; float32 images have been normalized already.

        Whitening multiplies each image by a 3072 x 3072 matrix for CIFAR, which would take a tenth
        of a training step. So a split in memory is whitened once, when it is first read.
        """
        split = self.splits[name]
        if isinstance(split, FileReader):
            yield from split.read(batches)
            return
        if self.preprocess.kind == "gcn-zca" and split.images.dtype == torch.uint8:
            whitened = torch.empty(split.images.shape, device=self.device)
            for raw, target in zip(split.images.split(CHUNK), whitened.split(CHUNK), strict=True):
                target.copy_(self.preprocess.normalize(raw))
            split = self.splits[name] = replace(split, images=whitened)
        for batch in batches:
            index = batch.to(self.device, non_blocking=True)
            yield index, split.images.index_select(0, index), split.labels.index_select(0, index)


def load(
    config: Config,
    device: torch.device,
    *,
    download: bool = False,
    mirror: str | None = None,
    progress: DownloadProgress | None = None,
) -> Dataset:
    """Loads the data set of a config and fits its preprocessing.

    Args:
        config: its data fields are used.
        device: device of the batches. Images that fit in memory are kept there.
        download: download the data set into Config's `data_dir` if it isn't there.
        mirror: base URL to download from in place of the official one.
        progress: shows the download, for example `mpelu.lab.training.display.show_download`. By
            default nothing is shown.

    Raises:
        UserError: if the data is missing or damaged, or doesn't fit the config.

    Example:
        >>> from mpelu.lab.config import Config
        >>> data = load(Config(data="digits"), torch.device("cpu"))
        >>> images, labels = next(data.train([torch.arange(16)], seed=0))
        >>> images.shape, data.train_count, data.test_count
        (torch.Size([16, 1, 8, 8]), 1437, 360)
    """
    info = find(config.data)
    if info.image_size:
        _check(config)
    data_dir = _data_dir(config, info)
    if download and info.download is not None and data_dir is not None:
        info.download(info, data_dir, mirror=mirror, progress=progress)
    splits = info.read(info, data_dir)
    if not info.image_size:
        config = with_image_size(config, splits)
        _check(config)
    return build(config, device, splits)


def has_validation(config: Config) -> bool:
    """Whether the data comes with validation images of its own."""
    info = find(config.data)
    if info.name != "folder":  # no other data does
        return False
    return info.read(info, _data_dir(config, info)).validation is not None


def with_image_size(config: Config, splits: Splits) -> Config:
    """The config with the size of the images, where only the data says what it is."""
    if config.image_size is not None:
        return config
    assert isinstance(splits.train, LabeledImages)
    height, width = splits.train.images.shape[2:]
    if height != width:
        raise UserError(
            f"required for images of {height} x {width}, which are resized to a square",
            field="image_size",
        )
    return replace(config, image_size=height)


def read_image(path: Path, config: Config, *, channels: int) -> Tensor:
    """Reads an image file as a run with this config sees test images.

    Args:
        path: a JPEG, PNG, BMP, WebP, PPM or TIFF file.
        config: config of the run. Its `max_pixels` bounds the size of the image.
        channels: 1 (gray) or 3 (RGB).

    Returns:
        The whole image, scaled: uint8 [1, channels, image_size, image_size]. Pass it to
        `Preprocess`, which normalizes it and crops the center.

    Raises:
        UserError: if the file doesn't exist or isn't an image.
    """
    image_size, _ = image_sizes(config)
    try:
        return decode(path, image_size, channels, config.max_pixels)[None]
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # decoders raise errors of many types
        raise UserError(f"{path}: expected an image, got {_instead(path, error)}") from None


def _instead(path: Path, error: Exception) -> str:
    """What a file is that can't be decoded, in words."""
    from PIL import UnidentifiedImageError

    if path.is_dir():
        return "a directory"
    if isinstance(error, UnidentifiedImageError):
        return "a file that isn't one"
    return f"{type(error).__name__}: {one_line(error)}"


def build(config: Config, device: torch.device, splits: Splits) -> Dataset:
    """Creates a data set from its images, limited, scaled and preprocessed as the config says.

    Validation images that the config asks for are drawn from the training images that it allows.
    Preprocessing is fitted on those that are left.
    """
    image_size, size = image_sizes(config)
    given = {
        "train": first(splits.train, config.train_limit),
        "test": first(splits.test, config.test_limit),
    }
    if splits.validation is not None:
        given["validation"] = splits.validation
    fingerprints = [each.fingerprint() for each in given.values()]
    trained_on = fingerprints[0]
    if config.validation:
        if splits.validation is not None:
            raise UserError(
                "can't be combined with data that has validation images (val/) of its own",
                field="validation",
            )
        train = given["train"]
        kept, held = hold_out(torch.as_tensor(train.labels), config.validation, config.seed)
        given |= {"train": train.take(kept), "validation": train.take(held)}
        trained_on = given["train"].fingerprint()
    is_cropped = config.augment != "none"
    crop = make_crop(config.augment, image_size, size, device) if is_cropped else None
    ready: dict[str, LabeledImages | FileReader] = {}
    for name, split in given.items():
        if isinstance(split, LabeledImages):
            ready[name] = split.resized(image_size)
        else:  # only training files are read once per epoch
            ready[name] = FileReader(split, config, device, crop, persists=name == "train")
    is_whole = len(given["train"]) == len(splits.train)
    state = _fit(config, ready["train"], device, trained_on, is_whole)
    return Dataset(
        name=config.data,
        classes=splits.classes,
        channels=ready["train"].channels,
        fingerprint=digest("\n".join([*fingerprints, *splits.classes])),
        preprocess=Preprocess(config.preprocess, state, size).to(device),
        image_size=image_size,
        splits={
            name: split.to(device) if isinstance(split, LabeledImages) else split
            for name, split in ready.items()
        },
        crop=crop,
        device=device,
        test_note=splits.note,
    )


def _check(config: Config) -> None:
    """Raises UserError if the images can't be preprocessed as the config says."""
    image_size, _ = image_sizes(config)
    if config.preprocess == "gcn-zca" and image_size > _LARGEST_WHITENED:
        limit = f"{_LARGEST_WHITENED}x{_LARGEST_WHITENED}"
        raise UserError(
            f"gcn-zca takes images of at most {limit}, got {image_size}x{image_size}",
            field="preprocess",
        )
    if config.data == "folder" and config.augment == RESIZED and config.preprocess not in POINTWISE:
        raise UserError(
            f"{RESIZED} of image files requires --preprocess channel or none, got "
            f"{config.preprocess}",
            field="augment",
        )


def _fit(
    config: Config,
    train: LabeledImages | FileReader,
    device: torch.device,
    fingerprint: str,
    is_whole: bool,
) -> dict[str, Tensor]:
    """The state of the preprocessing: published, from the cache, or fitted on the images."""
    kind, info = config.preprocess, find(config.data)
    if kind == "none":
        return preprocessing.fit(kind, ())
    if isinstance(train, FileReader):
        chunks = train.sample(MAX_FITTED)
    else:
        is_original = is_whole and config.image_size in (None, info.image_size)
        if kind == "channel" and is_original and info.channel_mean and info.channel_std:
            return {"mean": torch.tensor(info.channel_mean), "std": torch.tensor(info.channel_std)}
        if kind != "gcn-zca":  # it takes no time
            return preprocessing.fit(kind, train.images.split(CHUNK))
        chunks = (chunk.to(device) for chunk in train.images.split(CHUNK))
    return preprocessing.fit_cached(config, fingerprint, train.channels, chunks)


def _data_dir(config: Config, info: DataSetInfo) -> Path | None:
    if config.data_dir is None:
        if not info.needs_data_dir:
            return None
        where = "where the data is" + (", or where to download it" if info.download else "")
        raise UserError(f"required for {info.name} ({where})", field="data_dir")
    data_dir = Path(config.data_dir).expanduser()
    if info.needs_data_dir and data_dir.exists() and not data_dir.is_dir():
        raise UserError(f"expected a directory, got the file {data_dir}", field="data_dir")
    return data_dir
