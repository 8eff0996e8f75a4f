"""Metrics elsewhere: a CSV file beside the run, and a logger of one's own."""

from __future__ import annotations

import csv
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_helpers import refused
from refusals import refusal
from train_helpers import rows, small, stopped_after

from mpelu.lab import cli, resume, train


class FakeRun:
    """What wandb.init returns, as far as it is used: `log` and `finish`."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def log(self, data: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.logged.append((step, data))

    def finish(self) -> None:
        self.finished += 1


class FakeModule(types.ModuleType):
    """A module of the user's own, whose factories make loggers."""

    def __init__(self) -> None:
        super().__init__("fake_loggers")
        self.made: list[FakeRun] = []

    def wandb(self, config: dict[str, Any], run: str, step: int) -> FakeRun:
        self.made.append(FakeRun(config=config, run=run, step=step))
        return self.made[-1]

    def failing(self) -> FakeRun:
        made = FakeRun()

        def log(data: dict[str, float], step: int | None = None) -> None:
            raise ConnectionError("the network is down")

        made.log = log  # type: ignore[method-assign]
        self.made.append(made)
        return made

    def nothing(self) -> None:
        return None

    def broken(self) -> None:
        raise RuntimeError("no API key")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeModule:
    module = FakeModule()
    monkeypatch.setitem(sys.modules, "fake_loggers", module)
    return module


def test_a_logger_gets_every_row_with_its_step(fake: FakeModule, tmp_path: Path) -> None:
    config = small(epochs=2, validation=0.2)
    train(config, tmp_path / "run", loggers=["fake_loggers:wandb"])
    (logger,) = fake.made
    assert logger.given == {
        "config": {**logger.given["config"], "epochs": 2, "validation": 0.2},
        "run": str(tmp_path / "run"),
        "step": 0,
    }
    assert logger.finished == 1
    expected = []
    for row in rows(tmp_path / "run"):
        values = {name: value for name, value in row.items() if isinstance(value, float)}
        named = {f"{row['kind']}/{name}": value for name, value in values.items()}
        expected.append((row["step"], named))
    assert logger.logged == expected
    assert "test/validation_error" in logger.logged[-1][1]


def test_a_resumed_run_tells_its_logger_where_it_goes_on(fake: FakeModule, tmp_path: Path) -> None:
    stopped_after(7, train, small(), tmp_path / "run", loggers=["fake_loggers:wandb"])
    resume(tmp_path / "run", loggers=["fake_loggers:wandb"])
    first, second = fake.made
    assert first.finished == second.finished == 1
    assert second.given["step"] == 5
    assert min(step for step, _ in second.logged) > 5
    assert max(step for step, _ in second.logged) == 15


def test_a_logger_that_fails_does_not_end_the_run(
    fake: FakeModule, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["fake_loggers:failing", "fake_loggers:wandb"]
    outcome = train(small(epochs=1), tmp_path / "run", loggers=names)
    assert outcome.state == "finished"
    assert caplog.text.count("fake_loggers:failing failed and gets nothing more") == 1
    assert "ConnectionError: the network is down" in caplog.text
    assert fake.made[1].logged
    assert [each.finished for each in fake.made] == [1, 1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fake_loggers:missing", "fake_loggers has no 'missing'"),
        ("fake_loggers:broken", "fake_loggers:broken raised RuntimeError: no API key"),
        ("fake_loggers:nothing", "NoneType"),
        ("wandb", "got 'wandb'"),
    ],
)
def test_a_logger_that_cannot_be_made_is_refused(
    fake: FakeModule, tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusal(said, field="logger"):
        train(small(epochs=1), tmp_path / "run", loggers=[name])
    few = ["--model", "resnet-8", "--epochs", "1", "--train-limit", "20"]
    few += ["--out", str(tmp_path / "other")]
    assert said in refused(["train", *few, "--logger", name, "--quiet"], capsys)


def read_csv(run: Path) -> list[dict[str, str]]:
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def equal_rows(run: Path) -> Callable[[], bool]:
    def check() -> bool:
        told = read_csv(run)
        return [{name: str(value) for name, value in row.items()} for row in rows(run)] == [
            {name: value for name, value in row.items() if value} for row in told
        ]

    return check


def test_the_metrics_are_in_a_csv_file_too_whose_columns_are_their_names(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped_after(7, train, small(validation=0.2), run)
    assert equal_rows(run)()
    resume(run)
    assert equal_rows(run)()
    assert list(read_csv(run)[0]) == [
        "kind", "step", "epoch", "loss", "error", "train_loss", "train_error", "validation_loss",
        "validation_error", "test_loss", "test_error", "lr",
    ]  # fmt: skip


def test_the_command_takes_several_loggers(
    fake: FakeModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--model", "resnet-8", "--model-options", "width=2", "--iterations", "1", "--out", "run"]
    loggers = ["--logger", "fake_loggers:wandb", "fake_loggers:wandb"]
    assert cli.main(["train", *few, "--train-limit", "20", "--quiet", *loggers]) == 0
    assert len(fake.made) == 2
