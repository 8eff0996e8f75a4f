"""The example in docs/doctor.md returns what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_page() -> None:
    page = Path(__file__).parents[3] / "docs" / "doctor.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
