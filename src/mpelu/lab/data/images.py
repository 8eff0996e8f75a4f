"""Image files, decoded."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mpelu.lab.config import Config
from mpelu.lab.data.shapes import sides
from mpelu.lab.errors import UserError


def decode(path: str | Path, side: int, channels: int) -> Tensor:
    """One file, scaled bilinearly to side x side.

    Grey, palette, CMYK and images with 16 bits or transparency become grey (1 channel) or RGB (3).

    Returns:
        uint8 [channels, side, side]

    Raises:
        Exception: whatever the decoder says to a damaged file.
    """
    import numpy
    from PIL import Image

    with Image.open(path) as file:
        # A large JPEG is decoded at a half, quarter or eighth, but not below twice the side.
        file.draft(None, (2 * side, 2 * side))
        image: Image.Image = file
        if image.mode.startswith("I"):
            image = Image.fromarray((numpy.asarray(image) / 257).round().astype(numpy.uint8))
        if image.mode == "P":
            image = image.convert("RGBA")
        image = image.convert("L" if channels == 1 else "RGB")
        image = image.resize((side, side), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(numpy.array(image)).view(side, side, channels)
    return pixels.permute(2, 0, 1).contiguous()


def read_image(path: Path, config: Config, *, channels: int) -> Tensor:
    """One file as a run with this config sees test images, for Preprocess.

    Args:
        path: any format Pillow reads.
        config: of the run.
        channels: 1 or 3.

    Returns:
        uint8 [1, channels, side, side], the whole image scaled; Preprocess takes the middle after
        normalising, because whitening and mean images need all of it.

    Raises:
        UserError: if the file is missing or isn't an image.
    """
    whole, _ = sides(config)
    try:
        return decode(path, whole, channels)[None]
    except FileNotFoundError:
        raise UserError(f"{path}: expected an image, got no such file") from None
    except Exception as error:
        raise UserError(f"{path}: expected an image, got {type(error).__name__}: {error}") from None
