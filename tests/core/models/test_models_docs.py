"""Examples in docstrings and docs/models.md give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

MODULES = ["parts", "plain", "registry"]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"mpelu.models.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_page() -> None:
    page = Path(__file__).parents[3] / "docs" / "models.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
