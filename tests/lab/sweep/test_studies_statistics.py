"""Statistics over seeds, and the tables made of them."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal

from mpelu.lab import plots, tables
from mpelu.lab.plots import Plot, Series
from mpelu.lab.sweep.statistics import (
    Pairing,
    mean_std,
    pair_seeds,
    paper_value,
    student_quantile,
    text_of,
)
from mpelu.lab.tables import (
    SHRUNK,
    SMOKE,
    Cell,
    Result,
    comma_separated,
    console,
    make_table,
    markdown,
    show,
    write,
)

numbers = st.floats(-100, 100)


def paired(first: Sequence[float], second: Sequence[float], comparisons: int = 1) -> Pairing:
    return pair_seeds(dict(enumerate(first)), dict(enumerate(second)), comparisons=comparisons)


def test_mean_and_sample_deviation() -> None:
    found = mean_std([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert found == pytest.approx((5.0, math.sqrt(32 / 7)))
    mean, std = mean_std([3.0])
    assert mean == 3.0
    assert math.isnan(std)


@pytest.mark.parametrize(
    ("values", "diverged", "text"),
    [
        ([9.0, 9.2], 0, "9.00 (9.10 ± 0.14)"),
        ([9.0], 0, "9.00"),
        ([9.0, 9.2], 3, "9.00 (9.10 ± 0.14), 3 of 5 diverged"),
        ([], 5, "diverged"),
        ([], 0, "no run"),
    ],
)
def test_texts_count_diverged_runs(values: list[float], diverged: int, text: str) -> None:
    assert text_of(values, diverged) == text


def test_values_of_printed_texts() -> None:
    assert paper_value("6.43 (6.61 ± 0.16)") == 6.61
    assert paper_value("7.980") == 7.98
    assert paper_value("25k") == 25_000
    assert paper_value("× (fails to converge)") is None
    assert paper_value("") is None


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 10, 29, 200])
@pytest.mark.parametrize("probability", [1e-4, 0.3, 0.5, 0.8, 0.975, 0.995, 0.9999])
def test_quantiles_of_student(degrees: int, probability: float) -> None:
    from scipy.stats import t  # type: ignore[import-untyped]

    expected = float(t.ppf(probability, degrees))
    assert student_quantile(probability, degrees) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_quantiles_that_do_not_exist(probability: float, degrees: int) -> None:
    with refusal("student_quantile", kind=ValueError):
        student_quantile(probability, degrees)


def test_paired_difference_is_that_of_scipy() -> None:
    from scipy.stats import ttest_rel

    first, second = [9.1, 8.7, 9.4, 9.0, 8.8], [9.5, 8.8, 9.9, 9.1, 9.3]
    found = paired(first, second)
    expected = ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    wider = paired(first, second, comparisons=5)
    expected = ttest_rel(first, second).confidence_interval(0.99)
    assert (wider.low, wider.high) == pytest.approx((expected.low, expected.high))
    assert found.excludes_zero
    assert not wider.excludes_zero
    assert "no difference found" in wider.text()


def test_intervals_cover_what_they_promise_and_show_what_they_could() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    covered, shown, trials = 0, 0, 2000
    true = paired([-0.9, -0.3, 0.0, 0.4, 0.8], [0.0] * 5).detectable
    spread = float(np.std([-0.9, -0.3, 0.0, 0.4, 0.8], ddof=1))
    for _ in range(trials):
        found = paired(rng.normal(true, spread, 5).tolist(), [0.0] * 5)
        covered += found.low <= true <= found.high
        shown += found.excludes_zero
    assert covered / trials == pytest.approx(0.95, abs=0.015)
    assert shown / trials == pytest.approx(0.8, abs=0.08)  # the spread is estimated


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
def test_differences_turn_with_the_sign(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found, turned = paired(first, second), paired(second, first)
    assert found.difference is not None
    assert found.low <= found.difference <= found.high
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
    assert turned.detectable == pytest.approx(found.detectable)


def test_one_pair_has_no_interval() -> None:
    alone = paired([2.0], [1.0])
    assert alone.difference == 1.0
    assert "no interval" in alone.text()
    assert not alone.excludes_zero
    assert paired([], []).difference is None


def result() -> Result:
    return Result(
        study="table9",
        title="A title",
        scale="small",
        shrunk=("2 epochs instead of 200",),
        seeds=2,
        data="cifar10",
        header=("network", "paper", "measured"),
        rows=((Cell("a|b, c"), Cell("8.75", 8.75), Cell("9.0 (9.1 ± 0.1)", 9.1, (9.0, 9.2))),),
        compare=((1, 2),),
        notes=("a note",),
        figures=("figure.png", "figure.pdf"),
    )


def test_json_is_what_was_agreed() -> None:
    found = json.loads(result().to_json())
    assert found["format"] == 1
    assert found["rows"][0][2] == {"text": "9.0 (9.1 ± 0.1)", "value": 9.1, "values": [9.0, 9.2]}
    assert found["rows"][0][0] == {"text": "a|b, c"}
    assert found["compare"] == [[1, 2]]
    assert found["shrunk"] == ["2 epochs instead of 200"]


def test_markdown_escapes_and_csv_quotes() -> None:
    text = markdown(result())
    assert "| a\\|b, c | 8.75 | 9.0 (9.1 ± 0.1) |" in text
    assert "Scaled down: 2 epochs instead of 200." in text
    assert "![A title](figure.png)" in text
    assert "figure.pdf" not in text
    rows = list(csv.reader(io.StringIO(comma_separated(result()))))
    assert rows == [["network", "paper", "measured"], ["a|b, c", "8.75", "9.0 (9.1 ± 0.1)"]]


def test_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(result())
    out = capsys.readouterr().out
    assert "scaled down: 2 epochs instead of 200" in out
    assert "9.0 (9.1 ± 0.1)" in out
    assert "- a note" in out
    assert SMOKE not in " ".join(out.split())


def test_a_smoke_test_compares_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    smoke = replace(result(), scale="smoke")
    assert smoke.compare == ()
    assert json.loads(smoke.to_json())["smoke"] is True
    assert f"**{SMOKE}**" in markdown(smoke)
    show(smoke)
    assert SMOKE in " ".join(capsys.readouterr().out.split())
    drawing = replace(smoke, shrunk=())  # the same at every scale
    assert json.loads(drawing.to_json())["smoke"] is False


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_cuts_nothing_off(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FILE_WIDTH", width)
    shrunk = Cell("warm-up 0 instead of 1, all else alike")
    rows = ((Cell("[bold]a network of many words"), Cell("8.75", 8.75), shrunk),)
    many = replace(result(), header=("network", "paper", SHRUNK), rows=rows * 2)
    show(many)
    out = capsys.readouterr().out
    assert "…" not in out
    assert "- scaled down in rows 1, 2: warm-up 0 instead of 1" in " ".join(out.split())
    assert max(len(line) for line in out.splitlines()) <= width
    for word in ("[bold]a", "network", "words", "8.75"):
        assert word in out


def test_words_are_broken_only_where_there_is_no_room(capsys: pytest.CaptureFixture[str]) -> None:
    header = ("initialization", "activation", "measured, top-1 error %")
    rows = [("Gaussian + BN", "MPELU", "37.66"), ("ours", "ReLU", "fails to converge")]
    for width, words in ((37, ("initialization", "activation", "measured,")), (12, ("MPELU",))):
        console().print(make_table(header, rows, width))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        for word in words:
            assert any(word in line for line in lines) == (width == 37)


def test_a_file_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(result(), tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(before) == ["result.csv", "result.json", "result.md"]

    def fail(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk"):
        write(replace(result(), title="Another"), tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_plots_as_png_and_pdf(tmp_path: Path) -> None:
    plot = Plot(
        title="t", x_label="x", y_label="y, %", log_y=True, series=(Series("s", [1, 2], [1, 10]),)
    )
    assert plots.draw([plot], tmp_path) == ("figure.png", "figure.pdf")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert plots.draw([], tmp_path) == ()
