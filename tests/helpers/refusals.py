"""What tests ask of an error: its class, the argument at fault and what came.

The exact lines stand in the tables of tests/lab/test_lab_wording.py and
tests/core/test_core_wording.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpelu.lab.errors import UserError


@contextmanager
def refusal(
    *shown: object, field: str | None = None, kind: type[Exception] = UserError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """What is done inside raises an error that names the field and shows all of this in a line."""
    with pytest.raises(kind) as raised:
        yield raised
    if isinstance(raised.value, UserError):
        assert raised.value.field == field, repr(raised.value.field)
    elif field is not None:
        shown = (field, *shown)
    shows(str(raised.value), *shown)
    del raised  # the error refers to this frame, and may hold a connection


def shows(line: str, *shown: object) -> None:
    """Asserts that a message is one line with all of this in it."""
    assert len(line.splitlines()) == 1, line
    for each in shown:
        assert str(each) in line, line
