"""Numbers over seeds, and the tables made of them."""

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpelu.lab.studies import drawing, tables
from mpelu.lab.studies.result import Cell, Plot, Result, Series
from mpelu.lab.studies.statistics import mean_std, paired_bootstrap, paper_value, text_of

numbers = st.floats(-100, 100)


def test_mean_and_sample_deviation() -> None:
    assert mean_std([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == (
        5.0,
        pytest.approx(math.sqrt(32 / 7)),
    )
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


def test_bootstrap_of_a_normal_sample_is_near_the_closed_form() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    common, noise = rng.normal(50, 10, 400), rng.normal(1, 2, 400)
    found = paired_bootstrap((common + noise).tolist(), common.tolist())
    half = 1.96 * noise.std() / math.sqrt(400)
    assert found.difference == pytest.approx(noise.mean())
    assert found.low == pytest.approx(noise.mean() - half, abs=0.05)
    assert found.high == pytest.approx(noise.mean() + half, abs=0.05)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_bootstrap_holds_the_mean_and_turns_with_the_sign(pairs: list) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = paired_bootstrap(first, second, samples=300)
    turned = paired_bootstrap(second, first, samples=300)
    least, most = min(a - b for a, b in pairs), max(a - b for a, b in pairs)
    assert least - 1e-9 <= found.low <= found.high <= most + 1e-9
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=1e-9)


def test_bootstrap_of_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="got 2 and 1"):
        paired_bootstrap([1.0, 2.0], [1.0])
    assert "no interval" in paired_bootstrap([2.0], [1.0]).text()


def result() -> Result:
    return Result(
        recipe="table9",
        title="A title",
        scale="small",
        shrunk=("2 epochs in place of 200",),
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
    assert found["shrunk"] == ["2 epochs in place of 200"]


def test_markdown_escapes_and_csv_quotes() -> None:
    text = tables.markdown(result())
    assert "| a\\|b, c | 8.75 | 9.0 (9.1 ± 0.1) |" in text
    assert "Shrunk: 2 epochs in place of 200." in text
    assert "![A title](figure.png)" in text
    assert "figure.pdf" not in text
    rows = list(csv.reader(io.StringIO(tables.comma_separated(result()))))
    assert rows == [["network", "paper", "measured"], ["a|b, c", "8.75", "9.0 (9.1 ± 0.1)"]]


def test_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(result())
    out = capsys.readouterr().out
    assert "shrunk: 2 epochs in place of 200" in out
    assert "9.0 (9.1 ± 0.1)" in out
    assert "- a note" in out


def test_a_narrow_terminal_cuts_nothing_off(capsys, monkeypatch) -> None:
    monkeypatch.setattr(tables, "_FILE_WIDTH", 40)
    shrunk = Cell("warmup 0 in place of 1, all else alike")
    rows = ((Cell("[bold]a network of many words"), Cell("8.75", 8.75), shrunk),)
    many = replace(result(), header=("network", "paper", "shrunk"), rows=rows * 2)
    tables.show(many)
    out = capsys.readouterr().out
    assert "…" not in out
    assert "[bold]a network of many words" in out
    assert "- shrunk in rows 1, 2: warmup 0 in place of 1" in " ".join(out.split())
    assert max(len(line) for line in out.splitlines()) <= 40


def test_plots_as_png_and_pdf(tmp_path) -> None:
    plot = Plot(
        title="t", x_label="x", y_label="y, %", log_y=True, series=(Series("s", [1, 2], [1, 10]),)
    )
    assert drawing.draw([plot], tmp_path) == ("figure.png", "figure.pdf")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert drawing.draw([], tmp_path) == ()
