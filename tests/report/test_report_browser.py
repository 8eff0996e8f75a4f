"""The page in chromium: what a reader moves, switches, copies and sees."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as driver
import pytest
from report_runs import result, write_all, write_run

import mpelu
from mpelu.activations import TABLE
from mpelu.lab.cli import main
from mpelu.lab.plots import COLORS
from mpelu.lab.reporting.serve import make_server

pytestmark = pytest.mark.skipif(bool(driver.missing()), reason=f"not installed: {driver.missing()}")

SET = """
const [id, value] = arguments;
const field = document.getElementById(id);
field.value = value;
field.dispatchEvent(new Event("input", { bubbles: true }));
"""
VERDICT = "return document.getElementById('explorer-verdict').textContent"


@pytest.fixture(scope="module")
def window() -> Iterator[driver.Browser]:
    with driver.browser() as window:
        window.look(1200, dark=False)
        yield window


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    main(["report", str(write_all(folder / "all")), "-o", str(folder / "report")])
    return (folder / "report" / "index.html").as_uri()


@pytest.fixture
def report(window: driver.Browser, page: str) -> Iterator[driver.Browser]:
    """The page, freshly opened; at the end, its console must be clean and the machine not left."""
    window.open(page)
    window.wait("return document.documentElement.dataset.drawn")
    yield window
    assert window.log("browser") == []
    left = [each for each in window.requested() if not re.match("file:|data:|blob:", each)]
    assert left == []


def pixels(window: driver.Browser, series: str) -> list[tuple[float, float]]:
    path: str = window.run(
        "return document.querySelector(`#shape path[data-series='${arguments[0]}']`)"
        ".getAttribute('d')",
        series,
    )
    pairs = [pair.split() for pair in re.split("[ML]", path)[1:]]
    return [(float(x), float(y)) for x, y in pairs]


def lines(window: driver.Browser, figure: str) -> list[str]:
    keys: list[str] = window.run(
        "return [...document.querySelectorAll(`#${arguments[0]} path.line`)]"
        ".map((path) => path.dataset.series)",
        figure,
    )
    return keys


def slider_to(window: driver.Browser, name: str, value: float) -> None:
    """The slider to the position that stands for the value, as dragging would."""
    low, high = 0, window.run(f"return Number(document.getElementById('{name}-slider').max)")
    while low < high:
        middle = (low + high) // 2
        window.run(SET, f"{name}-slider", middle)
        reached = window.run(f"return Number(document.getElementById('{name}-number').value)")
        low, high = (low, middle) if reached >= value else (middle + 1, high)
    window.run(SET, f"{name}-slider", low)


@pytest.mark.parametrize(
    ("alpha", "beta", "name", "error"),
    [(0, 1, "ReLU", 0.0), (1, 1, "ELU", 0.0), (25.6302, 0.01, "PReLU 0.25", 0.0078)],
)
def test_sliders_reach_the_special_cases(
    report: driver.Browser, alpha: float, beta: float, name: str, error: float
) -> None:
    slider_to(report, "alpha", alpha)
    slider_to(report, "beta", beta)
    shown = report.run(
        "return ['alpha', 'beta'].map((n) => Number(document.getElementById(n + '-number').value))"
    )
    assert shown == [alpha, beta]
    assert report.run(VERDICT).startswith(f"The curve equals {name}")
    stated = report.run(
        "return Number(document.querySelector(`[data-case='${arguments[0]}']`).dataset.value)", name
    )
    assert stated == pytest.approx(error, abs=5e-5)
    ours, theirs = pixels(report, "MPELU"), pixels(report, name)
    unit = (ours[-1][0] - ours[0][0]) / 8  # from -5 to 3
    apart = max(abs(a[1] - b[1]) for a, b in zip(ours, theirs, strict=True))
    assert apart <= error * unit + 0.11  # positions are written to a tenth of a pixel
    others = {"ReLU", "ELU", "PReLU 0.25"} - {name}
    for other in others:
        far = pixels(report, other)
        assert max(abs(a[1] - b[1]) for a, b in zip(ours, far, strict=True)) > 5


def test_typing_moves_the_curve_and_the_slider(report: driver.Browser) -> None:
    before = pixels(report, "MPELU")
    position = report.run("return Number(document.getElementById('alpha-slider').value)")
    report.run(SET, "alpha-number", "3.5")
    assert pixels(report, "MPELU") != before
    assert report.run("return Number(document.getElementById('alpha-slider').value)") > position
    assert report.run(VERDICT) == "The curve equals ELU with α = 3.5."


@pytest.mark.parametrize("typed", ["", "-1", "0", "1e9"])
def test_an_impossible_beta_changes_nothing(report: driver.Browser, typed: str) -> None:
    before = pixels(report, "MPELU")
    report.run(SET, "beta-number", typed)
    assert pixels(report, "MPELU") == before
    invalid = "return document.getElementById('beta-number').getAttribute('aria-invalid')"
    assert report.run(invalid) == "true"


def test_sliders_move_by_keyboard(report: driver.Browser) -> None:
    before = report.run("return Number(document.getElementById('beta-number').value)")
    report.press("#beta-slider", "\ue012")  # left arrow
    assert report.run("return Number(document.getElementById('beta-number').value)") < before


def test_numbers_are_those_of_the_library(report: driver.Browser) -> None:
    pairs = [
        (alpha, beta)
        for alpha in (-100.0, -0.3, 0.0, 0.25, 1.0, 25.6302, 98.0)
        for beta in (0.0001, 0.01, 0.2499, 0.25, 1.0, 2.8284, 2.83, 7.3, 100.0)
    ]
    shown = report.run(
        "const field = (id, v) => { const f = document.getElementById(id); f.value = v;"
        " f.dispatchEvent(new Event('input')); };"
        "const read = (id) => Number(document.getElementById('explorer-' + id).dataset.value);"
        "return arguments[0].map(([a, b]) => { field('alpha-number', a); field('beta-number', b);"
        " return [read('mean'), read('second'), read('taylor')]; })",
        pairs,
    )
    for (alpha, beta), (mean, second, taylor) in zip(pairs, shown, strict=True):
        expected = [moment.item() for moment in mpelu.moments(alpha, beta)]
        assert mean == pytest.approx(expected[0], rel=1e-6)
        assert second == pytest.approx(expected[1], rel=1e-6)
        assert taylor == pytest.approx((1 + alpha**2 * beta**2) / 2, rel=1e-12)


def test_a_group_a_run_and_all_can_be_switched_off(report: driver.Browser) -> None:
    everyone = lines(report, "curves-error")
    assert len(everyone) == 6
    report.run("document.getElementById('group-0').click()")
    left = lines(report, "curves-error")
    assert (
        left == [name for name in everyone if "/elu-" not in name] == lines(report, "curves-loss")
    )
    report.run(
        "[...document.querySelectorAll('.group details label')]"
        ".find((label) => label.textContent === 'mpelu-seed1').querySelector('input').click()"
    )
    assert lines(report, "curves-error") == [name for name in left if "mpelu-seed1" not in name]
    assert report.run("return document.getElementById('group-1').indeterminate")
    report.run("document.getElementById('curves-none').click()")
    assert lines(report, "curves-error") == []
    report.run("document.getElementById('curves-all').click()")
    assert lines(report, "curves-error") == everyone


def test_zoom_by_keyboard_and_log_scale(report: driver.Browser) -> None:
    path = "return document.querySelector('#curves-error path.line').getAttribute('d')"
    whole = report.run(path)
    report.press("#curves-error-plot", "+")
    assert report.run(path) != whole
    report.press("#curves-error-plot", "0")
    assert report.run(path) == whole
    report.run("document.getElementById('curves-error-log').click()")
    assert report.run(path) != whole
    label = "return document.querySelector('#curves-error .label').textContent"
    assert report.run(label) == "test error, % (log scale)"


def test_zoom_ends_before_numbers_do(report: driver.Browser) -> None:
    for key in ("+", "-"):
        report.press("#curves-error-plot", key * 1200)
        texts = report.run(
            "return [...document.querySelectorAll('#curves-error text')].map((t) => t.textContent)"
        )
        assert len(texts) >= 2
        assert not any("NaN" in text or "Infinity" in text for text in texts)


def test_dragging_zooms(report: driver.Browser) -> None:
    report.run("document.getElementById('curves-error').scrollIntoView({behavior: 'instant'})")
    box = report.run(
        "const b = document.getElementById('curves-error-plot').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height]"
    )
    path = "return document.querySelector('#curves-error path.line').getAttribute('d')"
    whole = report.run(path)
    places = [(0.4, 0.3), (0.5, 0.4), (0.8, 0.7)]
    kinds = ["mousePressed", "mouseMoved", "mouseReleased"]
    for kind, (x, y) in zip(kinds, places, strict=True):
        report.command(
            "Input.dispatchMouseEvent",
            type=kind,
            x=box[0] + x * box[2],
            y=box[1] + y * box[3],
            button="left",
            buttons=0 if kind == "mouseReleased" else 1,
            clickCount=1,
        )
    assert report.run(path) != whole
    report.run("document.querySelector('#curves-error button[title=\"Reset zoom\"]').click()")
    assert report.run(path) == whole


def test_another_set_can_be_chosen(report: driver.Browser) -> None:
    report.run(
        "const field = document.getElementById('curves-set'); field.value = 'single|cifar10';"
        "field.dispatchEvent(new Event('change'))"
    )
    report.wait("return document.querySelectorAll('#curves-error path.line').length === 2")
    assert lines(report, "curves-error") == ["single/damaged", "single/going"]


def test_what_the_page_says(report: driver.Browser) -> None:
    said = report.run("return document.getElementById('main').innerText")
    for expected in (
        "Reduced from the paper: 20 epochs in place of 164; 5,000 of 50,000 images.",
        "scale: small",
        "seeds: 2",
        "▲ +0.82",
        "▼ −0.08",
        "2,346 of 7,820",
        "diverged at step 13: loss is not finite",
        "single/damaged: metrics.jsonl: 2 of 18 lines can't be read",
        "Curves of more than 300 points are downsampled",
    ):
        assert expected in said
    headings = report.run("return [...document.querySelectorAll('h2')].map((h) => h.textContent)")
    assert headings == [
        "Paper and measurement",
        "Learning curves",
        "Signal by depth",
        "Learned parameters",
        "Runs",
        "Activation explorer",
    ]


def banner(window: driver.Browser) -> list[str]:
    script = "return [...document.querySelectorAll('.smoke')].map((e) => e.textContent)"
    found: list[str] = window.run(script)
    return found


def test_a_measured_table_has_no_banner(report: driver.Browser) -> None:
    assert banner(report) == []
    assert report.run("return document.querySelectorAll('.higher, .lower').length") > 2


def test_a_smoke_test_says_so_and_compares_nothing(window: driver.Browser, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(result(scale="smoke")))
    main(["report", str(tmp_path), "-o", str(tmp_path / "report")])
    window.open((tmp_path / "report" / "index.html").as_uri())
    window.wait("return document.documentElement.dataset.drawn")
    (said,) = banner(window)
    assert said.endswith("The numbers are not measurements.")
    text = window.run("return document.getElementById('results').innerText")
    assert "9.10 ± 0.20" in text
    assert "measured − paper" not in text
    marks = ".higher, .lower, .same, .far"
    assert window.run(f"return document.querySelectorAll('{marks}').length") == 0


COLUMN = """
const index = [...document.querySelectorAll("#runs-table thead th")]
  .findIndex((head) => head.textContent.replace("\u00a0", " ") === arguments[0]);
return [...document.querySelectorAll(`#runs-table tbody tr > :nth-child(${index + 1})`)]
  .map((cell) => cell.textContent);
"""
SORT = """
[...document.querySelectorAll("#runs-table thead button")]
  .find((button) => button.textContent.replace("\u00a0", " ") === arguments[0]).click();
"""


def test_runs_can_be_sorted(report: driver.Browser) -> None:
    unsorted = report.run(COLUMN, "test error, %")
    report.run(SORT, "test error, %")
    numbers = sorted((each for each in unsorted if each != "–"), key=float)
    assert report.run(COLUMN, "test error, %") == [*numbers, "–"]
    heads = "return [...document.querySelectorAll('[aria-sort]')].map((e) => e.ariaSort)"
    assert report.run(heads) == ["ascending"]
    report.run(SORT, "test error, %")
    assert report.run(COLUMN, "test error, %") == [*reversed(numbers), "–"]
    assert report.run(heads) == ["descending"]
    report.run(SORT, "test error, %")
    assert report.run(COLUMN, "test error, %") == unsorted
    report.run(SORT, "run")
    names = report.run(COLUMN, "run")
    assert names == sorted(names)
    assert set(report.run(COLUMN, "learning rate")) == {"0.1"}


def test_data_sets_never_share_a_chart(window: driver.Browser, tmp_path: Path) -> None:
    for data in ("digits", "cifar10"):
        for place in ("one", "two"):
            write_run(tmp_path / place / f"{data}-run", epochs=3, data=data)
    main(["report", str(tmp_path), "-o", str(tmp_path / "report")])
    window.open((tmp_path / "report" / "index.html").as_uri())
    window.wait("return document.documentElement.dataset.drawn")
    choices = window.run(
        "return [...document.getElementById('curves-set').options].map((o) => [o.value, o.text])"
    )
    assert [text for _, text in choices] == [
        "one (cifar10)", "one (digits)", "two (cifar10)", "two (digits)",
        "all runs on cifar10", "all runs on digits",
    ]  # fmt: skip
    for value, _ in choices:
        window.run(
            "const field = document.getElementById('curves-set'); field.value = arguments[0];"
            "field.dispatchEvent(new Event('change'))",
            value,
        )
        window.wait("return document.querySelectorAll('#curves-error path.line').length")
        shown = lines(window, "curves-error")
        assert len({name.split("/")[1] for name in shown}) == 1


COPY = """
const [kind] = arguments;
let copied = null;
navigator.clipboard.writeText = (text) => { copied = text; return Promise.resolve(); };
const buttons = [...document.querySelectorAll("#result-0-table button")];
buttons.find((button) => button.textContent === kind).click();
return copied;
"""


def test_tables_are_copied(report: driver.Browser) -> None:
    markdown = report.run(COPY, "Copy as Markdown").splitlines()
    assert markdown[0].startswith("| network | paper, test error % | measured, test error % |")
    assert markdown[2] == "| ReLU | 8.28 | 9.10 ± 0.20 | +0.82 | 2 | 0 |"
    rows = report.run(COPY, "Copy as CSV").split("\r\n")
    assert rows[0].startswith('network,"paper, test error %"')
    assert rows[2] == "ELU,7.88,7.80 ± 0.20,-0.08,2,0"


SAVE = """
const [figure, kind] = arguments;
return new Promise((done) => {
  URL.createObjectURL = (blob) => {
    const head = new FileReader();
    head.onload = () => done([blob.type, head.result]);
    if (blob.type === "image/png") createImageBitmap(blob).then((p) => done([blob.type, p.width]));
    else head.readAsText(blob);
    return "blob:none";
  };
  HTMLAnchorElement.prototype.click = () => {};
  [...document.querySelectorAll(`#${figure} button`)].find((b) => b.textContent === kind).click();
});
"""


def test_figures_are_saved(report: driver.Browser) -> None:
    kind, drawing = report.run(SAVE, "curves-error", "SVG")
    assert kind == "image/svg+xml"
    assert "var(--" not in drawing
    for expected in ("test error, %", "epoch", "mpelu", 'stroke="rgb(213, 94, 0)"'):
        assert expected in drawing
    kind, width = report.run(SAVE, "curves-error", "PNG")
    box = report.run("return document.getElementById('curves-error-plot').clientWidth")
    assert (kind, width) == ("image/png", 2 * box)


def test_colours_follow_the_reader_and_the_button(report: driver.Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = report.run(paper)
    report.look(1200, dark=True)
    dark = report.run(paper)
    assert dark != light
    press = "document.getElementById('theme').click()"
    report.run(press)
    assert report.run(paper) == light
    report.run(press)
    report.look(1200, dark=False)
    assert report.run(paper) == dark
    report.run(press)
    assert report.run(paper) == light


OVERLAPS = """
const hits = [];
for (const plot of document.querySelectorAll("svg.plot")) {
  const frame = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll("text")];
  const boxes = texts.map((text) => text.getBoundingClientRect());
  boxes.forEach((p, i) => {
    if (p.left < frame.left - 1 || p.right > frame.right + 1) hits.push([texts[i].textContent]);
    boxes.forEach((q, j) => {
      const beside = p.left >= q.right || q.left >= p.right;
      const above = p.top >= q.bottom - 2 || q.top >= p.bottom - 2;
      if (j > i && !beside && !above) hits.push([texts[i].textContent, texts[j].textContent]);
    });
  });
}
return hits;
"""


@pytest.mark.parametrize("width", [320, 390, 700, 1400])
def test_nothing_sticks_out(report: driver.Browser, width: int) -> None:
    report.look(width, dark=False)
    # The plots are drawn anew when the browser has told them of their new size.
    patience = time.monotonic() + 10
    while (overlaps := report.run(OVERLAPS)) and time.monotonic() < patience:
        time.sleep(0.05)
    assert overlaps == []
    assert report.run("return document.documentElement.scrollWidth") <= width
    report.look(1200, dark=False)


def test_controls_have_names_and_ids_are_unique(report: driver.Browser) -> None:
    nameless = report.run(
        "return [...document.querySelectorAll('button, input, select')].filter((e) =>"
        " !(e.ariaLabel || e.textContent.trim() && e.tagName === 'BUTTON' ||"
        " [...(e.labels || [])].some((l) => l.textContent.trim()))).map((e) => e.outerHTML)"
    )
    assert nameless == []
    ids = report.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_names_with_html_are_text(window: driver.Browser, tmp_path: Path) -> None:
    own = "document.title = 'owned'"
    image = f'<img src=x onerror="{own}">'
    script = f"</script><script>{own}</script>"
    folder = tmp_path / "all" / image
    write_run(folder / "runs" / f"<svg onload={own}>", epochs=2, status={"message": script})
    evil: dict[str, Any] = result(title=script, notes=[image], shrunk=[image], data=script)
    evil["rows"][0][0]["text"] = image
    evil["header"][0] = script
    evil["plots"][0]["series"][0]["name"] = image
    evil["plots"][0]["title"] = script
    (folder / "result.json").write_text(json.dumps(evil))
    main(["report", str(tmp_path / "all"), "-o", str(tmp_path / "report")])
    window.open((tmp_path / "report" / "index.html").as_uri())
    window.wait("return document.documentElement.dataset.drawn")
    assert window.run("return document.title") == "MPELU report"
    assert window.run("return document.querySelectorAll('main img, main script').length") == 0
    said = window.run("return document.getElementById('main').textContent")
    assert said.count(image) >= 4
    assert said.count(script) >= 4
    assert window.log("browser") == []
    assert all(address.startswith("file:") for address in window.requested())


def test_a_long_name_stays_in_its_cell(window: driver.Browser, tmp_path: Path) -> None:
    write_run(tmp_path / ("n" * 200), epochs=2)
    main(["report", str(tmp_path), "-o", str(tmp_path / "report")])
    window.open((tmp_path / "report" / "index.html").as_uri())
    window.wait("return document.documentElement.dataset.drawn")
    wide = "(cell) => cell.scrollWidth > cell.clientWidth"
    cells = "[...document.querySelectorAll('#runs-table tbody th')]"
    assert window.run(f"return {cells}.length") == 1
    assert window.run(f"return {cells}.filter({wide}).length") == 0


def test_extreme_numbers_are_drawn(window: driver.Browser, tmp_path: Path) -> None:
    lists = [
        [0, 1e-300, 1e299, -1e299],
        [1e400, 5, 5, 5],
        [-1, 0, 1e-308, 2],
        [7],
        [1, 1.0000001, 1, 1],
    ]
    plots = [
        {"title": "p", "x_label": "x" * 300, "y_label": "y" * 300, "log_x": log, "log_y": log}
        | {"series": [{"name": "s", "x": x, "y": y}]}
        for x in lists
        for y in lists
        for log in (False, True)
    ]
    (tmp_path / "result.json").write_text(json.dumps(result(plots=plots)))
    main(["report", str(tmp_path), "-o", str(tmp_path / "report")])
    window.open((tmp_path / "report" / "index.html").as_uri())
    window.wait("return document.documentElement.dataset.drawn")
    drawn = window.run(
        "return [...document.querySelectorAll('.plot')].map((p) => p.innerHTML).join(' ')"
    )
    assert not re.search("NaN|Infinity|undefined", drawn)
    assert window.run("return document.documentElement.scrollWidth") <= 1200
    assert window.log("browser") == []


def test_an_activation_has_one_color_on_the_whole_page(
    window: driver.Browser, tmp_path: Path
) -> None:
    lines = [
        {"name": TABLE[name].label, "activation": name, "x": [1, 2, 3], "y": [3, 2, 1]}
        for name in ("relu", "mpelu")
    ]
    plot = {"title": "Error", "x_label": "step", "y_label": "%", "series": lines}
    units = {"series": [{"name": "dead", "x": [1, 2], "y": [0, 0]}], "y_range": [0, 1]}
    (tmp_path / "compare").mkdir()
    shown = result(plots=[plot, {**units, "title": "Units"}])
    (tmp_path / "compare" / "result.json").write_text(json.dumps(shown))
    for name in ("mpelu", "relu", "elu"):
        write_run(tmp_path / "compare" / "runs" / f"{name}-seed0", activation=name)
    main(["report", str(tmp_path), "-o", str(tmp_path / "page")])
    window.open((tmp_path / "page" / "index.html").as_uri())
    window.wait("return document.documentElement.dataset.drawn")
    color = "return getComputedStyle(document.querySelector(arguments[0])).stroke"

    def drawn(place: str, series: str) -> str:
        return str(window.run(color, f"#{place} path[data-series='{series}']"))

    for index, name in enumerate(("relu", "mpelu")):
        parts = [int(COLORS[name][start : start + 2], 16) for start in (1, 3, 5)]
        expected = f"rgb({parts[0]}, {parts[1]}, {parts[2]})"
        assert drawn("result-0-plot-0", str(index)) == expected
        assert drawn("curves-error", f"compare/{name}-seed0") == expected
    ticks = window.run(
        "return [...document.querySelectorAll('#result-0-plot-1 .scale.end')]"
        ".map((tick) => tick.textContent)"
    )
    assert (ticks[0], ticks[-1]) == ("0", "1")


def test_the_explorer_alone(window: driver.Browser, tmp_path: Path) -> None:
    main(["explore", "-o", str(tmp_path / "explorer.html"), "--no-open"])
    window.open((tmp_path / "explorer.html").as_uri())
    assert window.run(VERDICT).startswith("The curve equals ELU")
    window.run("[...document.querySelectorAll('.case')][0].click()")
    assert window.run(VERDICT).startswith("The curve equals ReLU")
    assert window.log("browser") == []
    assert all(address.startswith("file:") for address in window.requested())


def test_a_served_page_follows_its_runs(window: driver.Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "going", epochs=3, planned=9, state="running")
    with make_server([tmp_path / "runs"], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            window.open(server.address)
            window.run("document.getElementById('curves-error-log').click()")
            window.run("document.getElementById('curves-error-log').focus()")
            status = json.loads((run / "status.json").read_text())
            (run / "status.json").write_text(json.dumps({**status, "step": 1300}))
            window.wait("return document.body.textContent.includes('1,300 of 3,519')")
            kept = "const box = document.getElementById('curves-error-log'); return box.checked"
            assert window.run(kept)
            assert window.run("return document.activeElement.id") == "curves-error-log"
            window.open("about:blank")
        finally:
            server.shutdown()
            thread.join()
    assert window.log("browser") == []
    assert all(address.startswith((server.address, "about:")) for address in window.requested())
