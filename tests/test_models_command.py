"""The `mpelu models` command and the numbers it prints."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mpelu import models
from mpelu.lab import cli
from mpelu.models import table


@pytest.fixture(scope="module")
def rows() -> dict[str, table.NetworkSize]:
    return {row.name: row for row in table.rows()}


def test_one_row_a_network(rows: dict[str, table.NetworkSize]) -> None:
    assert list(rows) == models.names()
    row = rows["nopre-resnet-164"]
    assert (row.layers, row.parameters, row.input_size) == (164, 1_696_250, 32)
    assert (row.paper, row.remark) == ("1.696M", "")
    assert rows["mpelu-resnet-110"].remark


@pytest.mark.parametrize(
    "name", ["nin", "plain-15", "resnet-20", "mpelu-resnet-b-20", "all-cnn-c", "dsn", "fitnet-19"]
)
def test_multiply_adds(rows: dict[str, table.NetworkSize], name: str) -> None:
    side = rows[name].input_size
    with torch.device("meta"):
        network = models.create(name).eval()
        images = torch.empty(1, 3, side, side)
    with FlopCounterMode(display=False) as counter:
        network(images)
    assert rows[name].multiply_adds == counter.get_total_flops() // 2


def test_prints_the_table(
    rows: dict[str, table.NetworkSize],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "rows", rows.values)
    cli.main(["models"])
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["network", "layers", "parameters"]
    assert [line.split()[0] for line in lines] == models.names()
    line = next(line for line in lines if line.startswith("resnet-110 "))
    assert line.split() == ["resnet-110", "110", "1,727,962", "252,887,680", "32", "1.73M"]


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["modles"])
    assert "invalid choice: 'modles'" in capsys.readouterr().err


def test_the_command_itself_does_not_load_torch() -> None:
    program = (
        "import runpy, sys\n"
        f"main = runpy.run_path({cli.__file__!r})['main']\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "models" in result.stdout
