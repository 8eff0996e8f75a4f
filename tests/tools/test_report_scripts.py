"""The scripts of the report, and the tool that lints them."""

from __future__ import annotations

from importlib.resources import files

import lint_js
import pytest

from mpelu.lab.reporting.page import EXPLORER_SCRIPTS, REPORT_SCRIPTS, script_of


def test_every_script_is_part_of_a_page() -> None:
    assets = files("mpelu.lab.reporting") / "assets"
    present = {path.name for path in assets.iterdir() if path.name.endswith(".js")}
    assert present == {*REPORT_SCRIPTS, *EXPLORER_SCRIPTS}


@pytest.mark.parametrize("scripts", [REPORT_SCRIPTS, EXPLORER_SCRIPTS])
def test_problems_are_located_in_their_files(scripts: tuple[str, ...]) -> None:
    assets = files("mpelu.lab.reporting") / "assets"
    joined = script_of(scripts).splitlines()
    for number, line in enumerate(joined[2:-1], 3):
        name, place = lint_js.locate(scripts, number)
        assert (assets / name).read_text(encoding="utf-8").splitlines()[place - 1] == line
    assert lint_js.locate(scripts, len(joined))[0] == scripts[-1]
