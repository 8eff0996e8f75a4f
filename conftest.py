"""For every test: a seed, names that examples use without imports, registrations taken back."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

# Modules that can't be imported without an optional package are not searched for examples.
collect_ignore = [] if find_spec("triton") else ["src/mpelu/kernels/triton.py"]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """No test passes or fails by chance."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _names_in_examples(request: pytest.FixtureRequest) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    from torch import nn

    import mpelu

    names: dict[str, Any] = request.getfixturevalue("doctest_namespace")
    names.update(torch=torch, nn=nn, mpelu=mpelu)


@pytest.fixture(autouse=True)
def _activations_stay() -> Iterator[None]:
    """Takes back what a test or an example registers."""
    from mpelu.activations import lookup

    tables: tuple[dict[str, Any], ...] = (lookup.TABLE, lookup.BY_CLASS, lookup._references)
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)
