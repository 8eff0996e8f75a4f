"""What is run, what isn't repeated, and what happens when something goes wrong."""

import argparse
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from refusals import refusal

from mpelu.lab import cli, files, paper, tables
from mpelu.lab.commands import reproduce
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.paper import convergence
from mpelu.lab.run import folder as runs
from mpelu.lab.sweep import executors, runner
from mpelu.lab.sweep.executors import failed, perform
from mpelu.lab.sweep.gather import gather
from mpelu.lab.sweep.study import Job, Options, Setting, Study

QUICK = Config(
    model="resnet-8", model_options={"width": 2}, iterations=4, batch_size=16, train_limit=64,
    test_limit=32, test_every=2, log_every=1, threads=1,
)  # fmt: skip


def study(**configs: Config) -> Study:
    chosen = configs or {"one": QUICK, "two": replace(QUICK, activation="elu")}
    names = list(chosen)
    return Study(
        name="table9",
        title="Two networks",
        needs="nothing",
        labels=("network",),
        settings=lambda source: [
            Setting(name=name, labels=(name,), paper="9.10", config=config)
            for name, config in chosen.items()
        ],
        comparisons=((names[0], names[-1]),),
    )


class Reproduce(Protocol):
    def __call__(self, chosen: Study, *flags: str) -> int: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reproduce:
    """`mpelu reproduce` with a study, one run after the other in this process, two seeds."""

    def inline(jobs: Sequence[Job], **options: object) -> object:
        return executors.inline(jobs)

    def command(chosen: Study, *flags: str) -> int:
        monkeypatch.setattr(paper, "find", lambda name: chosen)
        monkeypatch.setattr(executors, "local", inline)
        parser = argparse.ArgumentParser()
        reproduce.add(parser)
        words = ["table9", "--scale", "full", "--seeds", "2", "--out", str(tmp_path), *flags]
        return reproduce.run(parser.parse_args(words))

    return command


def options(out: Path) -> Options:
    return Options(scale="full", seeds=2, out=out)


def result(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "table9-full" / "result.json").read_text())
    return found


def folder(tmp_path: Path, name: str) -> Path:
    return tmp_path / "table9-full" / "runs" / name


def test_finished_runs_are_not_repeated(
    run: Reproduce,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(study()) == 0
    first = result(tmp_path)
    assert [row[0]["text"] for row in first["rows"]] == ["one", "two"]
    assert [row[4]["value"] for row in first["rows"]] == [2, 2]
    assert len(first["rows"][0][2]["values"]) == 2
    assert any("2 pairs" in note and "95 % paired t interval" in note for note in first["notes"])
    monkeypatch.setattr(executors, "perform", lambda *_, **__: pytest.fail("run again"))
    capsys.readouterr()
    assert run(study()) == 0
    assert "0 runs, 4 finished before" in capsys.readouterr().out
    assert result(tmp_path)["rows"] == first["rows"]


def test_a_page_shows_every_study_in_the_directory(
    run: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(study()) == 0
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'index.html'}\n")
    assert run(replace(study(), name="another"), "--quiet") == 0
    assert "index.html" not in capsys.readouterr().out
    page = (tmp_path / "index.html").read_text()
    assert page.count('"name":"one-seed0"') == 2
    assert '"another-full"' in page
    assert '"table9-full"' in page


def test_an_interrupted_run_continues(run: Reproduce, tmp_path: Path) -> None:
    run(study())
    whole = (folder(tmp_path, "one-seed0") / "metrics.jsonl").read_bytes()
    status = folder(tmp_path, "one-seed0") / "status.json"
    values = json.loads(status.read_text())
    status.write_text(json.dumps({**values, "state": "interrupted"}))
    (folder(tmp_path, "one-seed0") / "model.safetensors").unlink()
    assert run(study()) == 0
    assert json.loads(status.read_text())["state"] == "finished"
    assert (folder(tmp_path, "one-seed0") / "metrics.jsonl").read_bytes() == whole


def test_runs_of_an_older_schema_count(
    run: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(study(one=QUICK))
    for path in folder(tmp_path, "").iterdir():
        # Schema 3 wrote the rate of a warm-up where there was none.
        old = {**files.read_json(path / "config.json"), "schema": 3, "warmup_lr": 0.01}
        files.write_json(path / "config.json", old)
    monkeypatch.setattr(executors, "perform", lambda *_: pytest.fail("run again"))
    assert run(study(one=QUICK)) == 0


def test_each_run_folder_is_read_once(
    run: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(study())
    shutil.rmtree(folder(tmp_path, "two-seed1"))
    read, real = [], runs.read

    def count(path: Path) -> runs.Run:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(runs, "read", count)
    list(runner.run([study()], options(tmp_path)))  # without the page
    assert sorted(read) == ["one-seed0", "one-seed1", "two-seed0", "two-seed1"]


def test_the_python_api_returns_results_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="mpelu.lab.reproduce"):
        figure, table = paper.reproduce(["figure4", "lsuv"], scale="smoke", out=tmp_path)
    assert capfd.readouterr() == ("", "")
    assert (figure.study, table.study) == ("figure4", "lsuv")
    assert len(table.rows) == 4
    assert "lsuv, smoke: 4 runs" in caplog.messages
    assert caplog.messages[-1] == f"written to {tmp_path / 'lsuv-smoke'}"
    with refusal("'tabel9'", field=""):
        paper.reproduce("tabel9", out=tmp_path)


def test_the_python_api_warns_of_failed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def other(job: Job) -> Job:
        return failed(job, UserError("no luck")) if "52" in job.name else perform(job)

    monkeypatch.setattr(executors, "perform", other)
    (table,) = paper.reproduce("lsuv", scale="smoke", out=tmp_path)
    assert [row[-2].text for row in table.rows] == ["1", "1", "0", "0"]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "lsuv 3/4 52-lsuv-seed0 failed: no luck",
        "lsuv 4/4 52-ours-seed0 failed: no luck",
    ]


def test_a_failed_run_does_not_stop_the_others(
    run: Reproduce,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def other(job: Job) -> Job:
        if job.name == "one-seed1":
            return failed(job, RuntimeError("out of\nmemory"))
        return perform(job)

    monkeypatch.setattr(executors, "perform", other)
    assert run(study()) == 1
    assert "one-seed1 failed: RuntimeError: out of" in capsys.readouterr().out
    found = result(tmp_path)
    assert [row[4]["value"] for row in found["rows"]] == [1, 2]
    assert any(note.startswith("1 left out:") and "one-seed1" in note for note in found["notes"])


def test_diverged_runs_are_counted(
    run: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(study(good=QUICK, bad=replace(QUICK, lr=1e9))) == 0
    good, bad = result(tmp_path)["rows"]
    assert (bad[2]["text"], bad[4]["value"], bad[5]["value"]) == ("diverged", 2, 2)
    assert "values" not in bad[2]
    assert bad[3]["text"].startswith("diverged at step ")
    assert (good[4]["value"], good[5]["value"]) == (2, 0)
    (said,) = [note for note in result(tmp_path)["notes"] if note.startswith("good - bad: ")]
    assert "better in 2 and worse in 0 of 2 pairs, no difference found (sign test, p = 0.5)" in said
    assert said.endswith("; 2 of 4 runs diverged")
    monkeypatch.setattr(executors, "perform", lambda *_, **__: pytest.fail("run again"))
    run(study(good=QUICK, bad=replace(QUICK, lr=1e9)))


def test_foreign_folders_are_named_left_out_and_kept(
    run: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(study())
    shutil.rmtree(folder(tmp_path, "one-seed0"))
    folder(tmp_path, "one-seed0").mkdir()
    (folder(tmp_path, "one-seed0") / "holiday.jpg").write_text("not a run")
    other = folder(tmp_path, "two-seed0") / "config.json"
    files.write_json(other, {**files.read_json(other), "lr": 0.3})
    (folder(tmp_path, "two-seed1") / "config.json").write_text("{")
    folder(tmp_path, "unknown").mkdir()
    capsys.readouterr()
    assert run(study()) == 1
    out = capsys.readouterr().out
    assert "one-seed0: " in out
    assert "two-seed0: a run with other settings: lr is 0.3" in out
    assert "two-seed1: config.json" in out
    (note,) = [note for note in result(tmp_path)["notes"] if "left out" in note]
    assert note.startswith("4 left out:")
    assert "unknown: not a run of this study" in note
    assert (folder(tmp_path, "one-seed0") / "holiday.jpg").exists()
    assert [row[3]["value"] for row in result(tmp_path)["rows"]] == [1, 0]


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        (
            "status.json",
            '{"state": "finished", "test_error": "low"}',
            "test_error",
        ),
        (
            "status.json",
            '{"state": "finished", "test_error": NaN}',
            "test_error",
        ),
        ("metrics.jsonl", "damaged", "metrics.jsonl: 1 of 1 lines"),
        ("metrics.jsonl", "", "metrics.jsonl is shorter"),
        ("data.json", '{"classes": 3}', "data.json"),
        ("data.json", "", "data.json"),
        ("data.json", 100_000 * "[", "data.json"),
        ("config.json", 100_000 * "[", "config.json"),
    ],
)
def test_damaged_runs_are_left_out(
    run: Reproduce,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    text: str,
    reason: str,
) -> None:
    chosen = replace(study(), summarize=convergence.table)
    run(chosen)
    (folder(tmp_path, "one-seed0") / file).write_text(text)
    capsys.readouterr()
    assert run(chosen) == 1
    assert reason in capsys.readouterr().out
    assert [row[4]["value"] for row in result(tmp_path)["rows"]] == [1, 2]


def test_damaged_rows_are_left_out_of_curves(run: Reproduce, tmp_path: Path) -> None:
    chosen = replace(study(), summarize=convergence.table)
    run(chosen)
    with (folder(tmp_path, "one-seed0") / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "loss": 1}\n{"kind": "step", "step": 9, "loss": "nan"}\n')
    assert run(chosen) == 0
    series = result(tmp_path)["plots"][0]["series"]
    assert [each["x"] for each in series] == [[1, 2, 3, 4], [1, 2, 3, 4]]


def test_a_diverged_run_without_details(run: Reproduce, tmp_path: Path) -> None:
    chosen = study(good=QUICK, bad=replace(QUICK, lr=1e9))
    run(chosen)
    status = folder(tmp_path, "bad-seed0") / "status.json"
    status.write_text('{"state": "diverged", "step": 7, "diverged": "early"}')
    assert run(chosen) == 0
    assert result(tmp_path)["rows"][1][3]["text"].startswith("diverged at step 7")


def test_a_recipe_without_runs_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(executors, "perform", lambda job: failed(job, UserError("no luck")))
    with pytest.raises(SystemExit) as caught:
        cli.main(["reproduce", "lsuv", "figure4", "--scale", "smoke", "--out", str(tmp_path)])
    assert caught.value.code == 2
    assert "lsuv: no run has finished" in capsys.readouterr().err
    assert (tmp_path / "figure4-smoke" / "result.json").exists()


def test_no_runs_at_all(run: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "perform", lambda job: failed(job, UserError("no luck")))
    with refusal("table9"):
        run(study())
    assert not (tmp_path / "table9-full" / "result.json").exists()


def test_a_full_disk_keeps_finished_runs(
    run: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def other(job: Job) -> Job:
        nonlocal count
        count += 1
        if count < 3:
            return perform(job)
        try:
            raise UserError("cannot write") from OSError(errno.ENOSPC, "No space left on device")
        except UserError as error:
            return failed(job, error)

    monkeypatch.setattr(executors, "perform", other)
    with refusal(tmp_path, "no space left", "finished runs are kept"):
        run(study())
    assert count == 3  # the fourth would meet the same
    kept = gather(study(), options(tmp_path)).ended()
    assert [each.name for each in kept] == ["one-seed0", "two-seed0"]


def test_a_full_disk_while_writing_the_result(
    run: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tables, "write", write)
    with refusal(tmp_path, "No space left on device"):
        run(study())


def test_learning_is_told_from_guessing(
    run: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = replace(QUICK, lr=1e-9)
    able = replace(QUICK, iterations=60, lr=0.05, test_every=60)
    chosen = replace(study(stuck=stuck, able=able), summarize=convergence.table)
    run(chosen)
    texts = [row[2]["text"] for row in result(tmp_path)["rows"]]
    assert texts[0].startswith("fails: ")
    assert texts[1].startswith("converges: ")
    assert result(tmp_path)["figures"] == ["figure.png", "figure.pdf"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel9"], "'table9'"),
        (["table9", "--seeds", "0"], "--seeds: "),
        (["table9", "--jobs", "0"], "--jobs: "),
        (["table9", "--cpus-per-run", "0"], "--cpus-per-run: "),
        (["table9", "--ray-address", "auto"], "--ray-address: "),
        (["table7", "--scale", "small"], "--data-dir: "),
        (["figure4", "table8", "--scale", "small"], "--data-dir: "),
        (["table9", "--scale", "huge"], "'huge'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        cli.main(["reproduce", *arguments, "--out", str(out)])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_missing_data_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    arguments = ["--scale", "full", "--data-dir", str(tmp_path / "empty"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "table2", *arguments])
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "table2-full").exists()


def test_dry_run_estimates_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scale", "smoke", "--seeds", "3", "--dry-run", "--out", str(tmp_path / "out")]
    assert cli.main(["reproduce", "figure3", "figure1", *arguments]) == 0
    out = capsys.readouterr().out
    assert "figure3, smoke: 12 runs" in out
    assert out.count("mpelu-30-ours-seed") == 3
    assert "figure1, smoke: trains nothing" in out
    assert "estimated from a few steps" in out
    assert not (tmp_path / "out").exists()


def test_dry_run_estimates_every_initialization(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scale", "smoke", "--dry-run", "--out", str(tmp_path / "out")]
    assert cli.main(["reproduce", "research.depth:study", *arguments]) == 0
    out = capsys.readouterr().out
    assert "60-mpelu-orthogonal-depth-shape-seed0" in out
    assert "60-mpelu-deep-seed0" in out


OWN = """
import numpy as np
from dataclasses import replace
from torch import nn

from mpelu.lab import Config
from mpelu.lab.sweep import Setting, Study

dtypes = set()


class Net(nn.Sequential):
    def forward(self, x):
        y = super().forward(x)
        dtypes.add(str(y.dtype))
        assert x.shape[1:] == (3, 10, 10)
        return y


def net(num_classes, in_channels, input_size):
    return Net(nn.Flatten(), nn.Linear(in_channels * input_size**2, num_classes))


def study():
    base = Config(data="npz", model="{module}:net", epochs=1, threads=1)
    return Study(
        name="own", title="own", needs="arrays", labels=("precision",),
        settings=lambda source: [
            Setting(name=each, labels=(each,), paper="", config=replace(base, precision=each))
            for each in ("fp32", "bf16")
        ],
    )
"""


def test_dry_run_of_a_study_of_ones_own_reads_its_data_and_measures_in_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = "own_study_to_estimate"
    (tmp_path / f"{name}.py").write_text(OWN.replace("{module}", name))
    arguments = ["reproduce", f"{name}:study", "--scale", "full", "--seeds", "1", "--dry-run"]
    arguments += ["--data-dir", "arrays"]
    with pytest.raises(SystemExit):
        cli.main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert "arrays" in line
    (tmp_path / "arrays").mkdir()
    for split in ("train", "test"):
        images = np.zeros((20, 10, 10, 3), np.uint8)
        np.savez(tmp_path / "arrays" / f"{split}.npz", images=images, labels=np.arange(20) % 2)
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "own, full: 2 runs" in out
    assert "bf16-seed0" in out
    assert sys.modules[name].dtypes == {"torch.float32", "torch.bfloat16"}
    assert not (tmp_path / "out").exists()


def jobs(tmp_path: Path, *names: str, config: Config = QUICK) -> list[Job]:
    return [
        Job(name=name, setting=name, config=config, folder=str(tmp_path / name)) for name in names
    ]


def test_processes_do_the_runs(tmp_path: Path) -> None:
    ended = list(executors.local(jobs(tmp_path, "a", "b"), processes=2))
    assert {done.name: done.state for done in ended} == {"a": "finished", "b": "finished"}
    # What a process computes is what this one would.
    perform(*jobs(tmp_path, "c"))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in "abc"]
    assert metrics[0] == metrics[1] == metrics[2]


def test_a_process_that_dies_takes_only_its_run(tmp_path: Path) -> None:
    program = tmp_path / "work.py"
    program.write_text(
        "import json, os, sys\n"
        "name = json.loads(sys.stdin.readline())['name']\n"
        "if name == 'a': os.kill(os.getpid(), 9)\n"
        "if name == 'b': sys.exit(3)\n"
        "print(json.dumps({'state': 'finished', 'message': 'well'}))\n"
    )
    command = [sys.executable, str(program)]
    ended = executors.local(jobs(tmp_path, "a", "b", "c"), processes=2, program=command)
    found = {done.name: (done.state, done.message) for done in ended}
    killed = "its process was killed by SIGKILL, after it was killed 3 times before"
    assert found["a"] == ("failed", killed)
    assert found["b"] == ("failed", "its process exited with 3")
    assert found["c"] == ("finished", "well")


LONG = replace(QUICK, iterations=100_000, test_every=100_000, checkpoint_every=10)
TWO_PROCESSES = (
    "import sys\n"
    "from mpelu.lab.sweep import executors\n"
    "from mpelu.lab.sweep.study import Job\n"
    "jobs = [Job.from_json(line) for line in sys.argv[1:]]\n"
    "try:\n    list(executors.local(jobs, processes=2))\n"
    "except KeyboardInterrupt:\n    sys.exit(130)"
)


def test_a_run_whose_process_is_killed_continues(tmp_path: Path) -> None:
    config = replace(QUICK, iterations=150, test_every=150, checkpoint_every=10)
    (job,) = jobs(tmp_path, "a", config=config)
    killed = []

    def kill() -> None:
        wait_for(lambda: step(tmp_path / "a") >= 20)
        killed.append(json.loads((tmp_path / "a" / "status.json").read_text())["pid"])
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    (outcome,) = executors.local([job], processes=1)
    thread.join()
    assert len(killed) == 1
    assert outcome.state == "finished"
    assert outcome.message.endswith("(its process was killed 1 time and it continued)")
    history = (tmp_path / "a" / "history.jsonl").read_text()
    assert json.loads(history)["step"] >= 10  # the checkpoint of step 20 may be half written
    whole = jobs(tmp_path, "whole", config=config)
    perform(*whole)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_end_when_their_runner_is_killed(tmp_path: Path) -> None:
    texts = [job.to_json() for job in jobs(tmp_path, "a", "b", config=LONG)]
    process = subprocess.Popen([sys.executable, "-c", TWO_PROCESSES, *texts])
    wait_for(lambda: all(step(tmp_path / name) >= 10 for name in "ab"))
    status = [tmp_path / name / "status.json" for name in "ab"]
    pids = [json.loads(path.read_text())["pid"] for path in status]
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    states = [json.loads(path.read_text())["state"] for path in status]
    assert states == ["interrupted", "interrupted"]


def test_a_study_that_is_running_is_not_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "lsuv", "--scale", "smoke", "--out", str(tmp_path)]
    events = runner.run([paper.find("lsuv")], Options(scale="smoke", out=tmp_path))
    next(events)
    with pytest.raises(SystemExit):
        cli.main(arguments)
    error = capsys.readouterr().err
    assert f"{tmp_path / 'lsuv-smoke'}: in use by process {os.getpid()} on " in error
    assert error.count("\n") == 1
    events.close()
    assert cli.main(arguments) == 0


def test_ctrl_c_stops_every_process(tmp_path: Path) -> None:
    texts = [job.to_json() for job in jobs(tmp_path, "a", "b", "c", config=LONG)]
    process = subprocess.Popen([sys.executable, "-c", TWO_PROCESSES, *texts])
    wait_for(lambda: all(step(tmp_path / name) >= 10 for name in "ab"))
    pids = [json.loads((tmp_path / name / "status.json").read_text())["pid"] for name in "ab"]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    states = [json.loads((tmp_path / n / "status.json").read_text())["state"] for n in "ab"]
    assert states == ["interrupted", "interrupted"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids) or sys.platform != "linux"
    assert not (tmp_path / "c").exists()


def test_sigterm_leaves_no_process(tmp_path: Path) -> None:
    program = "import sys; from mpelu.lab.cli import main; sys.exit(main())"
    arguments = ["--scale", "smoke", "--jobs", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, "reproduce", "table9", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    # As soon as its workers have begun, most likely while they still import.
    wait_for(lambda: (tmp_path / "table9-smoke" / "runs").exists())
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    # The workers share its output: it ends once the last of them has.
    out, _ = process.communicate(timeout=60)
    assert process.returncode == reproduce.TERMINATED
    assert "Traceback" not in out
    assert out.endswith("interrupted; run the same command again to continue\n")
    there = list((tmp_path / "table9-smoke" / "runs").iterdir())
    assert len(there) < 20
    assert not (tmp_path / "table9-smoke" / "result.json").exists()


def step(run: Path) -> int:
    """Of the newest checkpoint."""
    found = [path.name for path in (run / "checkpoints").glob("*")]
    return max((int("".join(filter(str.isdigit, name)) or 0) for name in found), default=0)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_interruption_ends_with_its_own_code(
    run: Reproduce, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        executors,
        "perform",
        lambda job: replace(job, state="interrupted", message="interrupted"),
    )
    assert run(study()) == reproduce.INTERRUPTED
    assert "run the same command again" in capsys.readouterr().out


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "out").write_text("a file")  # root may write anywhere else
        out = tmp_path / "out"
    else:
        out = tmp_path / "out"
        out.mkdir(mode=0o500)
    with refusal(out, field="out"):
        list(runner.run([study()], options(out)))
