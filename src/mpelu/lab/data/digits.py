"""The embedded data: scikit-learn's handwritten digits, 1797 grey images of 8x8."""

from __future__ import annotations

import torch

from mpelu.lab.data.pictures import Pictures

CLASSES = tuple("0123456789")
SIDE = 8


def read() -> tuple[Pictures, Pictures]:
    """Training and test set, 1437 and 360 images, always the same.

    In the order of their classes every fifth image is for testing, so each class gives its fifth.
    Both sets then keep the order of the file. Values 0..16 become 0..255.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    file = load_digits()
    images = torch.from_numpy(file.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(file.target).long()
    testing = torch.zeros(len(labels), dtype=torch.bool)
    testing[labels.argsort(stable=True)[::5]] = True
    train, test = (
        Pictures(images=images[chosen], labels=labels[chosen]) for chosen in (~testing, testing)
    )
    return train, test
