"""Examples in docstrings and docs/inspection.md give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

import mpelu

NAMES = {"torch": torch, "nn": nn, "mpelu": mpelu}


@pytest.mark.parametrize(
    "name",
    ["accumulators", "gradients", "layers", "learned", "residuals", "statistics", "tables"],
)
def test_docstrings(name: str) -> None:
    module = importlib.import_module(f"mpelu.lab.inspecting.{name}")
    result = doctest.testmod(module, extraglobs=NAMES)
    assert result.attempted > 0
    assert result.failed == 0


def test_page() -> None:
    page = Path(__file__).parents[1] / "docs" / "inspection.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
