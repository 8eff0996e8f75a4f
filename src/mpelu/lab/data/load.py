"""From a config to its data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mpelu.lab.config import Config
from mpelu.lab.data import cifar, digits, folder, preprocess
from mpelu.lab.data.dataset import Dataset
from mpelu.lab.data.memory import Memory
from mpelu.lab.data.pictures import CHUNK, Pictures, combined
from mpelu.lab.data.preprocess import Preprocess, fitted_once
from mpelu.lab.data.shapes import CHANNELS, sides
from mpelu.lab.data.workers import Decoded, Reader
from mpelu.lab.errors import UserError

SAMPLED = 10_000
"""Images of a folder that preprocessing is fitted on, at most."""


def load(
    config: Config, device: torch.device, *, mirror: str | None = None, quiet: bool = False
) -> Dataset:
    """The data of a run, found or downloaded, checked, and its preprocessing fitted.

    Args:
        config: its data fields decide.
        device: where batches go; images that fit in memory lie there too.
        mirror: base address of the archives of CIFAR, in place of the official one.
        quiet: without progress of a download.

    Raises:
        UserError: if the data is missing, damaged or doesn't fit the config.

    Example:
        >>> data = load(Config(data="digits"), torch.device("cpu"))
        >>> images, labels = next(data.train([torch.arange(16)], seed=0))
        >>> images.shape, data.train_count, data.test_count
        (torch.Size([16, 1, 8, 8]), 1437, 360)
    """
    whole, _ = sides(config)
    preprocess.check_size(config.preprocess, whole)
    if config.data == "digits":
        return in_memory(config, device, *digits.read(), digits.CLASSES)
    if config.data_dir is None:
        raise UserError(f"data_dir: expected a folder for {config.data}, got none")
    data_dir = Path(config.data_dir).expanduser()
    if data_dir.exists() and not data_dir.is_dir():
        raise UserError(f"data_dir: expected a folder, got the file {data_dir}")
    if config.data == "folder":
        return _from_files(config, device, *folder.find(data_dir))
    return in_memory(config, device, *cifar.read(config.data, data_dir, mirror=mirror, quiet=quiet))


def in_memory(
    config: Config,
    device: torch.device,
    train: Pictures,
    test: Pictures,
    classes: tuple[str, ...],
) -> Dataset:
    """A data set from pictures in memory, limited, scaled and preprocessed as the config says."""
    whole, size = sides(config)
    complete = len(train.labels)
    train, test = train.first(config.train_limit), test.first(config.test_limit)
    prints = train.fingerprint(), test.fingerprint()
    as_published = len(train.labels) == complete and train.images.shape[-1] == whole
    train, test = train.scaled(whole), test.scaled(whole)
    channels = train.images.shape[1]
    parts: dict[str, Tensor]
    if config.preprocess == "channel" and as_published and config.data in cifar.PUBLISHED:
        mean, std = cifar.PUBLISHED[config.data]
        parts = {"mean": torch.tensor(mean), "std": torch.tensor(std)}
    elif config.preprocess == "gcn-zca":
        parts = fitted_once(
            config, prints[0], channels, (part.to(device) for part in train.images.split(CHUNK))
        )
    else:
        parts = preprocess.fit(config.preprocess, train.images.split(CHUNK))
    fitted = Preprocess(config.preprocess, parts, size).to(device)
    return Dataset(
        name=config.data,
        classes=classes,
        channels=channels,
        whole=whole,
        fingerprint=combined(prints, classes),
        preprocess=fitted,
        train=Memory(train, fitted, device),
        test=Memory(test, fitted, device),
        augment=config.augment,
        device=device,
    )


def _from_files(
    config: Config,
    device: torch.device,
    train: folder.Files,
    test: folder.Files,
    classes: tuple[str, ...],
) -> Dataset:
    whole, size = sides(config)
    train, test = train.first(config.train_limit), test.first(config.test_limit)
    prints = train.fingerprint(), test.fingerprint()
    pin = device.type == "cuda"
    train_reader, test_reader = (
        Reader(files, whole, CHANNELS["folder"], pin=pin) for files in (train, test)
    )
    if config.preprocess == "none":
        parts = preprocess.fit("none", ())
    else:
        sample = (images.to(device) for images in train_reader.sample(SAMPLED))
        parts = fitted_once(config, prints[0], CHANNELS["folder"], sample)
    fitted = Preprocess(config.preprocess, parts, size).to(device)
    return Dataset(
        name=config.data,
        classes=classes,
        channels=CHANNELS["folder"],
        whole=whole,
        fingerprint=combined(prints, classes),
        preprocess=fitted,
        train=Decoded(train_reader, device),
        test=Decoded(test_reader, device),
        augment=config.augment,
        device=device,
    )
