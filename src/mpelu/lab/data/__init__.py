"""Data sets: from files to preprocessed, augmented batches on the device.

Names are imported at first use, so that `mpelu.lab.data.registry` can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpelu.lab.data.dataset import Dataset, load, read_image
    from mpelu.lab.data.preprocess import Preprocess, restore_preprocess

__all__ = ["Dataset", "Preprocess", "load", "read_image", "restore_preprocess"]

_HOMES = {
    "Dataset": "dataset",
    "Preprocess": "preprocess",
    "load": "dataset",
    "read_image": "dataset",
    "restore_preprocess": "preprocess",
}


if not TYPE_CHECKING:  # or mypy would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
