"""Data: CIFAR, image folders and the embedded digits, from files to batches on the device."""

from mpelu.lab.data.dataset import Dataset
from mpelu.lab.data.images import read_image
from mpelu.lab.data.load import load
from mpelu.lab.data.preprocess import Preprocess, restore_preprocess

__all__ = ["Dataset", "Preprocess", "load", "read_image", "restore_preprocess"]
