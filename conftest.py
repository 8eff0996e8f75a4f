"""Names that examples in docstrings use without importing them."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _names_in_examples(request: pytest.FixtureRequest) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    import torch
    from torch import nn

    import mpelu

    torch.manual_seed(0)
    names: dict[str, Any] = request.getfixturevalue("doctest_namespace")
    names.update(torch=torch, nn=nn, mpelu=mpelu)
