"""The built-in data set: scikit-learn's handwritten digits, 1797 gray images of 8x8 pixels."""

from __future__ import annotations

import torch

from mpelu.lab.data.images import LabeledImages, Splits


def read() -> Splits:
    """Reads the 1437 training and 360 test images; the split is always the same.

    With the images sorted by class, every fifth goes to the test set, so each class contributes a
    fifth of its images. Both splits then keep the original order. Pixel values from 0 to 16 become
    0 to 255.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    in_test[labels.argsort(stable=True)[::5]] = True
    train = LabeledImages(images=images[~in_test], labels=labels[~in_test])
    test = LabeledImages(images=images[in_test], labels=labels[in_test])
    return Splits(train, test, tuple("0123456789"))
