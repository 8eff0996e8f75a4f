"""Sides of images: as stored, as scaled, as the network sees them."""

from __future__ import annotations

from mpelu.lab.config import Config
from mpelu.lab.errors import UserError

OWN = {"digits": 8, "cifar10": 32, "cifar100": 32, "folder": 256}
CHANNELS = {"digits": 1, "cifar10": 3, "cifar100": 3, "folder": 3}
FOLDER_CROP = 224


def sides(config: Config) -> tuple[int, int]:
    """Side images are scaled to, and side of the crop the network sees.

    Raises:
        UserError: if the crop is larger than the image.
    """
    whole = config.image_size or OWN[config.data]
    crop = config.crop or (min(FOLDER_CROP, whole) if config.data == "folder" else whole)
    if crop > whole:
        raise UserError(f"crop: expected at most the side of the images, {whole}, got {crop}")
    return whole, crop
