"""`mpelu report` and `mpelu explore` at the terminal, and the file they write."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import webbrowser
from pathlib import Path

import pytest
from report_runs import result, write_all, write_run

from mpelu.lab.cli import main
from mpelu.lab.reporting import write_report
from mpelu.lab.reporting.page import embed, explorer_page


def test_writes_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    assert main(["report", str(write_all(tmp_path / "all")), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out / 'index.html'}: 1 table, 9 runs\n"
    assert said.err == "mpelu: single/damaged: metrics.jsonl: 2 of 18 lines can't be read\n"
    assert sorted(os.listdir(out)) == ["index.cache.json", "index.html"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}"], "{}: "),
        (["{}/none"], "{}/none: "),
        (["{}/file"], "{}/file: "),
        (["{}/none", "--serve"], "{}/none: "),
        (["{}", "--serve", "--port", "99999"], "port: "),
    ],
)
def test_nothing_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "report"
    given = [argument.format(tmp_path) for argument in arguments]
    with pytest.raises(SystemExit) as ended:
        main(["report", *given, "-o", str(out)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("mpelu: error: ")
    assert said.format(tmp_path) in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", epochs=1)
    (tmp_path / "report").write_text("a file")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report")])
    assert ended.value.code == 2
    assert "can't be written" in capsys.readouterr().err


def test_the_old_page_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["report", str(write_run(tmp_path / "run", epochs=1)), "-o", str(tmp_path / "out")]
    main(arguments)
    page = tmp_path / "out" / "index.html"
    page.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(SystemExit):
        main(arguments)
    assert page.read_text() == "old"
    assert sorted(os.listdir(page.parent)) == ["index.cache.json", "index.html"]


def page_of(tmp_path: Path, runs: Path) -> str:
    main(["report", str(runs), "-o", str(tmp_path / "report")])
    return (tmp_path / "report" / "index.html").read_text()


def test_data_cannot_leave_its_block(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--\u2028&{{script}}"
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "result.json").write_text(json.dumps(result(title=evil)))
    write_run(tmp_path / "all" / "<img src=x onerror=alert(1)>", epochs=1, status={"message": evil})
    page = page_of(tmp_path, tmp_path / "all")
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 2
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert block is not None
    assert not set(block[1]) & set("<>&\u2028")
    data = json.loads(block[1])
    assert data["results"][0]["title"] == data["runs"][0]["message"] == evil


def test_embedded_text_reads_back() -> None:
    value = {"a": "<>&\u2028\ud800é", "b": [1, None]}
    assert json.loads(embed(value)) == value
    assert embed(value).isascii()


@pytest.mark.parametrize("kind", ["report", "explorer"])
def test_the_policy_allows_this_script_and_no_other(tmp_path: Path, kind: str) -> None:
    run = write_run(tmp_path / "run", epochs=1)
    page = explorer_page() if kind == "explorer" else page_of(tmp_path, run)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag in ("script", "style"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert body is not None
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert re.findall(r"(?:src|href)=(\S+)", markup) == ['"#main">Skip']


def test_two_hundred_runs_of_a_thousand_epochs_stay_small(tmp_path: Path) -> None:
    one = write_run(tmp_path / "run", epochs=1000, learned=True, variances=[1.0] * 110)
    alone = len(page_of(tmp_path, one))
    frame = len(page_of(tmp_path, write_run(tmp_path / "small" / "run", epochs=1)))
    assert frame + 200 * (alone - frame) < 15e6


@pytest.mark.parametrize("name", ["index.html", "runs.html"])
def test_a_page_or_a_directory_for_it(tmp_path: Path, name: str) -> None:
    run = str(write_run(tmp_path / "run", epochs=1))
    out = tmp_path / "out" if name == "index.html" else tmp_path / "out" / name
    main(["report", run, "-o", str(out)])
    assert sorted(os.listdir(tmp_path / "out")) == sorted([name, f"{Path(name).stem}.cache.json"])
    main(["explore", "-o", str(tmp_path / "explorer"), "--no-open"])
    assert os.listdir(tmp_path / "explorer") == ["mpelu-explorer.html"]


def test_the_python_function_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = write_report([write_all(tmp_path / "all")], tmp_path / "report")
    assert (found.page, found.tables, found.runs) == (tmp_path / "report" / "index.html", 1, 9)
    assert found.problems == ("single/damaged: metrics.jsonl: 2 of 18 lines can't be read",)
    assert capsys.readouterr() == ("", "")


def test_explore_writes_and_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def note(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    page = tmp_path / "a folder" / "explorer.html"
    assert main(["explore", "-o", str(page)]) == 0
    assert opened == [page.as_uri()]
    assert main(["explore", "-o", str(page), "--no-open"]) == 0
    assert len(opened) == 1
    assert capsys.readouterr().out == f"{page}\n" * 2
    assert page.read_text() == explorer_page()
