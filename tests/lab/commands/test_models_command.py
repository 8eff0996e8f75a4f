"""The `mpelu models` command and the numbers it prints."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mpelu import models
from mpelu.lab import cli
from mpelu.lab.commands import models as sizes


@pytest.fixture(scope="module")
def rows() -> dict[str, sizes.NetworkSize]:
    return {row.name: row for row in sizes.rows()}


def test_one_row_per_network(rows: dict[str, sizes.NetworkSize]) -> None:
    assert list(rows) == models.names()
    row = rows["nopre-resnet-164"]
    assert (row.layers, row.parameters, row.input_size) == (164, 1_696_250, 32)
    assert (row.paper, row.remark) == ("1.696M", "")
    assert rows["mpelu-resnet-110"].remark


@pytest.mark.parametrize(
    "name", ["nin", "plain-15", "resnet-20", "mpelu-resnet-b-20", "all-cnn-c", "dsn", "fitnet-19"]
)
def test_multiply_adds(rows: dict[str, sizes.NetworkSize], name: str) -> None:
    side = rows[name].input_size
    with torch.device("meta"):
        network = models.create(name).eval()
        images = torch.empty(1, 3, side, side)
    with FlopCounterMode(display=False) as counter:
        network(images)
    assert rows[name].multiply_adds == counter.get_total_flops() // 2


def printed(
    rows: dict[str, sizes.NetworkSize],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[str], list[str]]:
    """The lines of the table and of the notes."""
    monkeypatch.setattr(sizes, "rows", rows.values)
    assert cli.main(["models"]) == 0
    above, below = capsys.readouterr().out.split("\nnotes:\n")
    return above.splitlines(), below.splitlines()


def test_the_table_fits_80_columns_with_every_number(
    rows: dict[str, sizes.NetworkSize],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    (heading, _, *lines), notes = printed(rows, capsys, monkeypatch)
    assert heading.split() == [
        "network", "layers", "parameters", "multiply-adds", "input", "paper",
    ]  # fmt: skip
    assert [line.split() for line in lines] == [
        [
            row.name,
            f"{row.layers:,}",
            f"{row.parameters:,}",
            f"{row.multiply_adds:,}",
            str(row.input_size),
            *row.paper.split(),
        ]
        for row in rows.values()
    ]
    assert max(map(len, [heading, *lines, *notes])) <= 80
    words = " ".join(notes).split()
    for row in rows.values():
        if row.remark:
            start = words.index(row.name)
            assert words[start + 1 :][: len(row.remark.split())] == row.remark.split()


def test_columns_may_be_set(
    rows: dict[str, sizes.NetworkSize],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines, notes = printed(rows, capsys, monkeypatch)
    assert max(map(len, [*lines, *notes])) <= 60
    characters = "".join("".join(lines).split())
    for row in rows.values():
        assert row.paper in characters
    assert "…" not in characters
