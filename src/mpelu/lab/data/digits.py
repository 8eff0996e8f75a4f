"""The built-in data set: 1797 handwritten digits, gray images of 8x8 pixels.

They come with the package, in digits.npz; digits.txt beside it names their source and licence.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

from mpelu.lab.data.images import LabeledImages, Splits

FILE = Path(__file__).with_suffix(".npz")


def read() -> Splits:
    """Reads the 1437 training and 360 test images; the split is always the same.

    With the images sorted by class, every fifth goes to the test set, so each class contributes a
    fifth of its images. Both splits then keep the original order. Pixel values from 0 to 16 become
    0 to 255.
    """
    with numpy.load(FILE) as arrays:
        images = torch.from_numpy(arrays["images"]).double().mul(255 / 16).round().byte()[:, None]
        labels = torch.from_numpy(arrays["labels"]).long()
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    in_test[labels.argsort(stable=True)[::5]] = True
    train = LabeledImages(images=images[~in_test], labels=labels[~in_test])
    test = LabeledImages(images=images[in_test], labels=labels[in_test])
    return Splits(train, test, tuple("0123456789"))
