"""Data sets: from files to preprocessed, augmented batches on the device.

Names are imported at first use, so that `mpelu.lab.data.registry` can be read without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpelu.lab.data.dataset import Dataset, load, read_image
    from mpelu.lab.data.preprocess import Preprocess, restore_preprocess

__all__ = ["Dataset", "Preprocess", "load", "read_image", "restore_preprocess"]

if not TYPE_CHECKING:  # or mypy would accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mpelu.lab.data import dataset, preprocess

        value = getattr(dataset if hasattr(dataset, name) else preprocess, name)
        globals()[name] = value
        return value
