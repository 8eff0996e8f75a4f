"""What is run, what isn't repeated, and what happens when something goes wrong."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpelu.lab import cli
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.studies import executor_local, runner, work
from mpelu.lab.studies.gather import gather
from mpelu.lab.studies.paper import learning
from mpelu.lab.studies.recipe import Options, Recipe, Setting
from mpelu.lab.studies.runner import Plan
from mpelu.lab.studies.work import Done, Job

QUICK = Config(
    model="resnet-8", model_options={"width": 2}, iterations=4, batch_size=16, train_limit=64,
    test_limit=32, test_every=2, log_every=1, threads=1,
)  # fmt: skip


def recipe(**configs: Config) -> Recipe:
    chosen = configs or {"one": QUICK, "two": replace(QUICK, activation="elu")}
    names = list(chosen)
    return Recipe(
        name="table9",
        title="Two networks",
        needs="nothing",
        labels=("network",),
        settings=lambda reading: [
            Setting(name=name, labels=(name,), paper="9.10", config=config)
            for name, config in chosen.items()
        ],
        comparisons=((names[0], names[-1]),),
    )


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Reproduces a recipe, one run after the other in this process, two seeds."""

    def reproduce(chosen: Recipe, **changes) -> int:
        monkeypatch.setattr(runner, "_executor", lambda options, plan, jobs: inline(jobs))
        return runner.reproduce([chosen], options(), Plan(out=tmp_path, **changes))

    # Looked up when called, so that tests can replace what performs a run.
    def inline(jobs):
        return executor_local.inline(jobs)

    return reproduce


def options() -> Options:
    return Options(scale="full", seeds=2)


def result(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "table9-full" / "result.json").read_text())


def folder(tmp_path: Path, name: str) -> Path:
    return tmp_path / "table9-full" / "runs" / name


def test_finished_runs_are_not_repeated(run, tmp_path, monkeypatch, capsys) -> None:
    assert run(recipe()) == 0
    first = result(tmp_path)
    assert [row[0]["text"] for row in first["rows"]] == ["one", "two"]
    assert [row[4]["value"] for row in first["rows"]] == [2, 2]
    assert len(first["rows"][0][2]["values"]) == 2
    assert any("2 pairs" in note and "95 % paired bootstrap" in note for note in first["notes"])
    monkeypatch.setattr(executor_local, "perform", lambda *_, **__: pytest.fail("run again"))
    capsys.readouterr()
    assert run(recipe()) == 0
    assert "0 runs, 4 done before" in capsys.readouterr().out
    assert result(tmp_path)["rows"] == first["rows"]


def test_an_interrupted_run_goes_on(run, tmp_path) -> None:
    run(recipe())
    whole = (folder(tmp_path, "one-seed0") / "metrics.jsonl").read_bytes()
    status = folder(tmp_path, "one-seed0") / "status.json"
    values = json.loads(status.read_text())
    status.write_text(json.dumps({**values, "state": "interrupted"}))
    (folder(tmp_path, "one-seed0") / "model.safetensors").unlink()
    assert run(recipe()) == 0
    assert json.loads(status.read_text())["state"] == "finished"
    assert (folder(tmp_path, "one-seed0") / "metrics.jsonl").read_bytes() == whole


def test_a_failed_run_does_not_stop_the_others(run, tmp_path, monkeypatch, capsys) -> None:
    real = work.perform

    def perform(job: Job, *, quiet: bool = True) -> Done:
        if job.name == "one-seed1":
            return work.failed(job.name, RuntimeError("out of\nmemory"))
        return real(job, quiet=quiet)

    monkeypatch.setattr(executor_local, "perform", perform)
    assert run(recipe()) == 1
    assert "one-seed1 failed: RuntimeError: out of" in capsys.readouterr().out
    found = result(tmp_path)
    assert [row[4]["value"] for row in found["rows"]] == [1, 2]
    assert any(note.startswith("1 left out:") and "one-seed1" in note for note in found["notes"])


def test_diverged_runs_are_counted(run, tmp_path, monkeypatch) -> None:
    assert run(recipe(good=QUICK, bad=replace(QUICK, lr=1e9))) == 0
    good, bad = result(tmp_path)["rows"]
    assert (bad[2]["text"], bad[4]["value"], bad[5]["value"]) == ("diverged", 2, 2)
    assert "values" not in bad[2]
    assert bad[3]["text"].startswith("diverged at step ")
    assert (good[4]["value"], good[5]["value"]) == (2, 0)
    assert any("2 of 2 pairs with a diverged run" in note for note in result(tmp_path)["notes"])
    monkeypatch.setattr(executor_local, "perform", lambda *_, **__: pytest.fail("run again"))
    run(recipe(good=QUICK, bad=replace(QUICK, lr=1e9)))


def test_foreign_folders_are_named_left_out_and_kept(run, tmp_path, capsys) -> None:
    run(recipe())
    shutil.rmtree(folder(tmp_path, "one-seed0"))
    folder(tmp_path, "one-seed0").mkdir()
    (folder(tmp_path, "one-seed0") / "holiday.jpg").write_text("not a run")
    other = folder(tmp_path, "two-seed0") / "config.json"
    other.write_text(other.read_text().replace('"lr": 0.1', '"lr": 0.3'))
    (folder(tmp_path, "two-seed1") / "config.json").write_text("{")
    folder(tmp_path, "unknown").mkdir()
    capsys.readouterr()
    assert run(recipe()) == 1
    out = capsys.readouterr().out
    assert "one-seed0: expected a run folder with config.json, got none" in out
    assert "two-seed0: another run's config: lr: 0.3 in the run, 0.1 given" in out
    assert "two-seed1: config.json can't be read" in out
    (note,) = [note for note in result(tmp_path)["notes"] if "left out" in note]
    assert note.startswith("4 left out:")
    assert "unknown: not a run of this recipe" in note
    assert (folder(tmp_path, "one-seed0") / "holiday.jpg").exists()
    assert [row[3]["value"] for row in result(tmp_path)["rows"]] == [1, 0]


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("status.json", '{"state": "finished", "test_error": "low"}', "expected test_error as a"),
        ("status.json", '{"state": "finished", "test_error": NaN}', "expected test_error as a"),
        ("metrics.jsonl", "damaged", "expected the tests of a finished run"),
        ("data.json", '{"classes": 3}', "data.json can't be read"),
        ("data.json", "", "data.json can't be read"),
    ],
)
def test_damaged_runs_are_left_out(run, tmp_path, capsys, file, text, reason) -> None:
    chosen = replace(recipe(), summarize=learning.table)
    run(chosen)
    (folder(tmp_path, "one-seed0") / file).write_text(text)
    capsys.readouterr()
    assert run(chosen) == 1
    assert reason in capsys.readouterr().out
    assert [row[4]["value"] for row in result(tmp_path)["rows"]] == [1, 2]


def test_damaged_rows_are_left_out_of_curves(run, tmp_path) -> None:
    chosen = replace(recipe(), summarize=learning.table)
    run(chosen)
    with (folder(tmp_path, "one-seed0") / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "loss": 1}\n{"kind": "step", "step": 9, "loss": "nan"}\n')
    assert run(chosen) == 0
    series = result(tmp_path)["plots"][0]["series"]
    assert [each["x"] for each in series] == [[1, 2, 3, 4], [1, 2, 3, 4]]


def test_a_diverged_run_without_details(run, tmp_path) -> None:
    chosen = recipe(good=QUICK, bad=replace(QUICK, lr=1e9))
    run(chosen)
    status = folder(tmp_path, "bad-seed0") / "status.json"
    status.write_text('{"state": "diverged", "step": 7, "diverged": "early"}')
    assert run(chosen) == 0
    assert result(tmp_path)["rows"][1][3]["text"].startswith("diverged at step 7")


def test_a_recipe_without_runs_does_not_stop_the_others(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(
        executor_local, "perform", lambda job, **_: work.failed(job.name, UserError("no luck"))
    )
    with pytest.raises(SystemExit) as caught:
        cli.main(["reproduce", "lsuv", "figure4", "--scale", "smoke", "--out", str(tmp_path)])
    assert caught.value.code == 2
    assert "lsuv: expected at least one finished run" in capsys.readouterr().err
    assert (tmp_path / "figure4-smoke" / "result.json").exists()


def test_no_runs_at_all(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        executor_local, "perform", lambda job, **_: work.failed(job.name, UserError("no luck"))
    )
    with pytest.raises(UserError, match="table9: expected at least one finished run, got none"):
        run(recipe())
    assert not (tmp_path / "table9-full" / "result.json").exists()


def test_a_full_disk_keeps_finished_runs(run, tmp_path, monkeypatch) -> None:
    real, count = work.perform, 0

    def perform(job: Job, *, quiet: bool = True) -> Done:
        nonlocal count
        count += 1
        if count < 3:
            return real(job, quiet=quiet)
        try:
            raise UserError("cannot write") from OSError(errno.ENOSPC, "No space left on device")
        except UserError as error:
            return work.failed(job.name, error)

    monkeypatch.setattr(executor_local, "perform", perform)
    with pytest.raises(UserError, match=r"no space left .*finished runs are kept"):
        run(recipe())
    assert count == 3  # the fourth would meet the same
    kept = gather(recipe(), options(), tmp_path / "table9-full").kept()
    assert [each.named.name for each in kept] == ["one-seed0", "two-seed0"]


def test_a_full_disk_while_writing_the_result(run, tmp_path, monkeypatch) -> None:
    def write(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runner.tables, "write", write)
    with pytest.raises(UserError, match="no space left"):
        run(recipe())


def test_learning_is_told_from_guessing(run, tmp_path, monkeypatch) -> None:
    stuck = replace(QUICK, lr=1e-9)
    able = replace(QUICK, iterations=60, lr=0.05, test_every=60)
    chosen = replace(recipe(stuck=stuck, able=able), summarize=learning.table)
    run(chosen)
    texts = [row[2]["text"] for row in result(tmp_path)["rows"]]
    assert texts[0].startswith("fails: ")
    assert texts[1].startswith("converges: ")
    assert result(tmp_path)["figures"] == ["figure.png", "figure.pdf"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel9"], "closest: 'table9'"),
        (["table9", "--seeds", "0"], "seeds: expected a number >= 1, got 0"),
        (["table9", "--jobs", "0"], "jobs: expected a number >= 1, got 0"),
        (["table9", "--cpus-per-run", "0"], "expected --cpus-per-run > 0"),
        (["table9", "--ray-address", "auto"], "expected --executor ray"),
        (["table7", "--scale", "small"], "data-dir: expected a folder of images"),
        (["figure4", "table8", "--scale", "small"], "data-dir: expected a folder of images"),
        (["table9", "--scale", "huge"], "invalid choice: 'huge'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, message, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        cli.main(["reproduce", *arguments, "--out", str(out)])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_missing_data_is_told_before_anything_runs(tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    arguments = ["--scale", "full", "--data-dir", str(tmp_path / "empty"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "table2", *arguments])
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "table2-full").exists()


def test_dry_run_estimates_and_writes_nothing(tmp_path, capsys) -> None:
    arguments = ["--scale", "smoke", "--seeds", "3", "--dry-run", "--out", str(tmp_path / "out")]
    assert cli.main(["reproduce", "figure3", "figure1", *arguments]) == 0
    out = capsys.readouterr().out
    assert "figure3, smoke: 12 runs" in out
    assert out.count("mpelu-30-ours-seed") == 3
    assert "figure1, smoke: nothing is trained" in out
    assert "estimated from a few steps" in out
    assert not (tmp_path / "out").exists()


def jobs(tmp_path: Path, *names: str, config: Config = QUICK) -> list[Job]:
    return [Job(name=name, config=config, folder=str(tmp_path / name)) for name in names]


def test_processes_do_the_runs(tmp_path) -> None:
    ended = list(executor_local.pool(jobs(tmp_path, "a", "b"), processes=2))
    assert {done.name: done.state for done in ended} == {"a": "finished", "b": "finished"}
    # What a process computes is what this one would.
    work.perform(*jobs(tmp_path, "c"))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in "abc"]
    assert metrics[0] == metrics[1] == metrics[2]


def test_a_process_that_dies_takes_only_its_run(tmp_path) -> None:
    program = tmp_path / "work.py"
    program.write_text(
        "import json, os, sys\n"
        "name = json.loads(sys.stdin.readline())['name']\n"
        "if name == 'a': os.kill(os.getpid(), 9)\n"
        "if name == 'b': sys.exit(3)\n"
        "print(json.dumps({'name': name, 'state': 'finished', 'message': 'well'}))\n"
    )
    command = [sys.executable, str(program)]
    ended = executor_local.pool(jobs(tmp_path, "a", "b", "c"), processes=2, program=command)
    found = {done.name: (done.state, done.message) for done in ended}
    assert found["a"] == ("failed", "its process ended: killed by SIGKILL")
    assert found["b"] == ("failed", "its process ended: exit code 3")
    assert found["c"] == ("finished", "well")


def test_ctrl_c_stops_every_process(tmp_path) -> None:
    long = replace(QUICK, iterations=100_000, test_every=100_000, checkpoint_every=10)
    program = (
        "import sys\n"
        "from mpelu.lab.studies import executor_local\n"
        "from mpelu.lab.studies.work import Job\n"
        "jobs = [Job.from_json(line) for line in sys.argv[1:]]\n"
        "try:\n    list(executor_local.pool(jobs, processes=2))\n"
        "except KeyboardInterrupt:\n    sys.exit(130)"
    )
    texts = [job.to_json() for job in jobs(tmp_path, "a", "b", "c", config=long)]
    process = subprocess.Popen([sys.executable, "-c", program, *texts])
    wait_for(lambda: all(step(tmp_path / name) >= 10 for name in "ab"))
    pids = [json.loads((tmp_path / name / "status.json").read_text())["pid"] for name in "ab"]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    states = [json.loads((tmp_path / n / "status.json").read_text())["state"] for n in "ab"]
    assert states == ["interrupted", "interrupted"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids) or sys.platform != "linux"
    assert not (tmp_path / "c").exists()


def test_sigterm_leaves_no_process(tmp_path) -> None:
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
    assert process.returncode == runner.TERMINATED
    assert "Traceback" not in out
    assert out.endswith("interrupted; the same command goes on from here\n")
    there = list((tmp_path / "table9-smoke" / "runs").iterdir())
    assert len(there) < 20
    assert not (tmp_path / "table9-smoke" / "result.json").exists()


def step(run: Path) -> int:
    """Of the newest checkpoint."""
    found = [path.name for path in (run / "checkpoints").glob("*")]
    return max((int("".join(filter(str.isdigit, name)) or 0) for name in found), default=0)


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_interruption_ends_with_its_own_code(run, monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        executor_local,
        "perform",
        lambda job, **_: Done(name=job.name, state="interrupted", message="interrupted"),
    )
    assert run(recipe()) == runner.INTERRUPTED
    assert "the same command goes on" in capsys.readouterr().out


def test_an_unwritable_folder_is_one_line(tmp_path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "out").write_text("a file")  # root may write anywhere else
        out = tmp_path / "out"
    else:
        out = tmp_path / "out"
        out.mkdir(mode=0o500)
    with pytest.raises(UserError, match="expected"):
        runner.reproduce([recipe()], options(), Plan(out=out, quiet=True))
