"""What the report reads: downsampled, checked, cached; no run folder is trusted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import LAYERS, result, write_all, write_run
from safetensors.numpy import save_file
from torch import nn

import mpelu
from mpelu.lab.config import Config
from mpelu.lab.reporting import collection
from mpelu.lab.reporting.collection import Cache, collect, problems, shortest_names
from mpelu.lab.reporting.results import read_result
from mpelu.lab.reporting.runs import BINS, MOST_EPOCHS, read_run
from mpelu.lab.reporting.values import LONGEST_TEXT, MOST_POINTS, downsample, number, text
from mpelu.lab.run import checkpoint


@given(st.lists(st.floats(-1e6, 1e6), max_size=2000), st.integers(4, 400))
def test_downsampling_keeps_ends_extremes_and_order(values: list[float], most: int) -> None:
    x, y = downsample(range(len(values)), values, most)
    assert len(x) == len(y) <= max(most, 0)
    assert x == sorted(set(x))
    assert [values[int(index)] for index in x] == y
    if values:
        assert (y[0], y[-1]) == (values[0], values[-1])
        assert (min(y), max(y)) == (min(values), max(values))
    if len(values) <= most:
        assert y == values


def test_downsampling_keeps_the_peak_of_every_part() -> None:
    values = [0.0] * 10_000
    for index in range(50, 10_000, 100):
        values[index] = 1.0 if index % 200 == 50 else -1.0
    _, y = downsample(range(10_000), values)
    assert len(y) <= MOST_POINTS
    assert (y.count(1.0), y.count(-1.0)) == (50, 50)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (1.23456789, 1.23457),
        (3.0, 3),
        (10**400, None),
        (float("inf"), None),
        ("1", None),
        (True, None),
        (None, None),
        ([], None),
    ],
)
def test_numbers_are_finite_numbers(value: object, taken: float | None) -> None:
    assert number(value) == taken


def test_long_text_is_cut() -> None:
    assert len(text("a" * 10_000)) == LONGEST_TEXT + 1
    assert text({"a": 1}) == ""


def test_a_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", epochs=5, floor=8.0, learned=True, variances=[1, 2]))
    assert (run["state"], run["step"], run["steps"]) == ("finished", 5 * 391, 5 * 391)
    assert run["curves"]["epoch_length"] == 391
    assert run["curves"]["test_error"]["x"] == [391 * epoch for epoch in range(1, 6)]
    assert run["curves"]["test_error"]["y"][-1] == run["test_error"]
    assert run["inspected"]["kinds"] == ["conv", "activation"] * 2
    assert run["inspected"]["measured"]["variance"] == [1, 0.5, 2, 1]
    assert run["problems"] == []


def test_loss_of_logged_steps_before_the_second_test(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", epochs=1)
    rows = [{"kind": "step", "step": step, "loss": 1 / step} for step in (1, 2, 4)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_run(path)["curves"]["train_loss"] == {"x": [1, 2, 4], "y": [1, 0.5, 0.25]}


def test_values_that_are_no_numbers_leave_the_curve(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", epochs=3)
    rows = [
        {"kind": "test", "step": 1, "epoch": 1, "test_error": 50.0, "train_loss": float("nan")},
        {"kind": "test", "step": 2, "epoch": 2, "test_error": "<b>", "train_loss": 1.0},
        {"kind": "test", "step": "3", "epoch": 3, "test_error": 40.0, "train_loss": 1.0},
        {"kind": "test", "step": 4, "epoch": 4, "test_error": 30.0, "train_loss": 0.5},
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves = read_run(path)["curves"]
    assert curves["test_error"] == {"x": [1, 4], "y": [50, 30]}
    assert curves["train_loss"] == {"x": [2, 4], "y": [1, 0.5]}


def test_learned_parameters(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", epochs=3, learned=True)
    alpha, beta = read_run(path)["learned"]
    assert (alpha["name"], beta["name"]) == ("alpha", "beta")
    assert alpha["epochs"] == [0, 1, 2, 3]
    assert len(alpha["edges"]) == BINS + 1
    assert [sum(counts) for counts in alpha["counts"]] == [LAYERS * 16] * 4
    in_depth = ["stem.2", *(f"blocks.{i}.activation" for i in range(LAYERS - 1))]
    assert alpha["layers"]["names"] == in_depth
    assert alpha["layers"]["in_depth"]
    assert alpha["layers"]["first"] == [[1, 1, 1]] * LAYERS
    low, median, high = alpha["layers"]["last"][0]
    assert low < median < high


@pytest.mark.parametrize("metadata", [None, {"order": "a.10.alpha\nelse"}])
def test_activations_without_an_order_are_sorted_by_number(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    path = write_run(tmp_path / "run", epochs=1)
    (path / "activations").mkdir()
    tensors = {f"a.{index}.alpha": np.ones(2, np.float32) for index in (10, 2, 1)}
    save_file(tensors, path / "activations" / "epoch-0000.safetensors", metadata=metadata)
    (alpha,) = read_run(path)["learned"]
    assert alpha["layers"]["names"] == ["a.1", "a.2", "a.10"]
    assert not alpha["layers"]["in_depth"]


def test_training_writes_the_order_the_report_reads(tmp_path: Path) -> None:
    model = nn.Sequential(OrderedDict(stem=mpelu.MPELU(2), blocks=mpelu.MPELU(2)))
    path = write_run(tmp_path / "run", epochs=1)
    (path / "activations").mkdir()
    checkpoint.write_snapshot(path, 1, model)
    assert [kind["layers"]["names"] for kind in read_run(path)["learned"]] == [
        ["stem", "blocks"],
        ["stem", "blocks"],
    ]


def test_values_beyond_all_bounds_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", epochs=1)
    (path / "activations").mkdir()
    values = np.array([1.0, 1.001, np.nan, np.inf, -1e308])
    save_file({"a.alpha": values}, path / "activations" / "epoch-0000.safetensors")
    (alpha,) = read_run(path)["learned"]
    assert (alpha["values"], alpha["edges"][0], alpha["edges"][-1]) == (2, 1, 1.001)
    assert len(set(alpha["edges"])) == BINS + 1


def test_many_epochs_are_spread(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", epochs=1)
    (path / "activations").mkdir()
    for epoch in range(51):
        tensors = {"a.weight": np.full(3, 0.25, np.float32)}
        save_file(tensors, path / "activations" / f"epoch-{epoch:04}.safetensors")
    (slope,) = read_run(path)["learned"]
    assert len(slope["epochs"]) == MOST_EPOCHS
    assert (slope["epochs"][0], slope["epochs"][-1]) == (0, 50)
    assert sum(slope["counts"][-1]) == 3


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("metrics.jsonl", b'{"kind": "test"}\n{"kin', "metrics.jsonl: 1 of 2 lines can't be read"),
        ("metrics.jsonl", None, "metrics.jsonl is missing"),
        ("status.json", b"[]", "status.json can't be read: expected an object, got list"),
        ("config.json", b"{", "config.json can't be read"),
        (
            "config.json",
            b"[" * 100_000,
            "config.json can't be read: it is nested more than 64 levels deep",
        ),
        ("inspect.json", b"\xff\xfe", "inspect.json can't be read"),
        ("inspect.json", b'{"layers": [1]}', "inspect.json: expected a list of layers"),
        ("activations/epoch-0001.safetensors", b"junk", "epoch-0001.safetensors is damaged"),
    ],
)
def test_damage_is_told(tmp_path: Path, file: str, content: bytes | None, said: str) -> None:
    path = write_run(tmp_path / "run", epochs=2, learned=True, variances=[1.0])
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
    assert any(said in problem for problem in read_run(path)["problems"])


def test_settings_and_speed_of_a_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", epochs=5, speed=[100, 900, 200]))
    assert (run["epochs"], run["lr"], run["seed"], run["speed"]) == (5, 0.1, 0, 200)
    assert read_run(write_run(tmp_path / "other", epochs=1))["speed"] is None


def test_the_activation_of_a_run_is_the_one_that_it_was_converted_to(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", activation=None)
    assert (read_run(path)["activation"], read_run(path)["color"]) == ("", "")
    config = json.loads((path / "config.json").read_text()) | {"convert": "gelu"}
    (path / "config.json").write_text(json.dumps(config))
    assert (read_run(path)["activation"], read_run(path)["color"]) == ("gelu", "gelu")


def test_images_in_a_directory_are_named_after_it(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", epochs=1)
    config = json.loads((path / "config.json").read_text())
    config |= {"data": "folder", "data_dir": "/somewhere/photos"}
    (path / "config.json").write_text(json.dumps(config))
    assert read_run(path)["data"] == "photos/"


def test_a_run_of_schema_3_is_shown_and_an_older_one_says_what_reads_it(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[1] / "run_folders", tmp_path / "runs")
    old = write_run(tmp_path / "runs" / "old", epochs=1)
    (old / "config.json").write_text(Config().to_json())
    by_name = {run["name"]: run for run in collect([tmp_path / "runs"], Cache())["runs"]}
    kept = by_name["version3-interrupted"]
    assert (kept["state"], kept["problems"], kept["set"]) == ("interrupted", [], "runs")
    assert len(kept["learned"]) == 2
    (problem,) = by_name["old"]["problems"]
    assert problem == "expected a schema from 3 to 4, got 1; mpelu at commit 6a35e59 reads it"


@pytest.mark.parametrize(
    ("changes", "smoke"),
    [
        ({}, False),
        ({"scale": "smoke"}, True),
        ({"smoke": True}, True),
        ({"scale": "smoke", "smoke": False}, False),
    ],
)
def test_smoke_tests_are_marked(tmp_path: Path, changes: dict[str, object], smoke: bool) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result(**changes)))
    assert read_result(path)["smoke"] is smoke


def test_a_result(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result()))
    table = read_result(path)
    assert table["compare"] == [[1, 2]]
    assert table["rows"][0][2] == {"text": "9.10 ± 0.20", "value": 9.1}
    assert [series["name"] for series in table["plots"][0]["series"]] == [
        "gaussian",
        "Taylor",
        "exact",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "expected format 1, got 2"),
        ({"rows": [[{"text": "a"}]]}, "expected rows of 5 cells"),
        ({"rows": "none"}, "expected rows of 5 cells"),
    ],
)
def test_a_result_of_another_shape(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result(**changes)))
    with pytest.raises(ValueError, match=said):
        read_result(path)


def test_odd_parts_of_a_result_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    odd = {"compare": [[0, 9], [1], "x", [1, 2]], "notes": [1, "kept"], "plots": [{"series": 3}]}
    path.write_text(json.dumps(result(**odd)))
    table = read_result(path)
    assert (table["compare"], table["notes"], table["plots"]) == ([[1, 2]], ["kept"], [])


def test_runs_of_a_table_are_one_set(tmp_path: Path) -> None:
    collected = collect([write_all(tmp_path / "all")], Cache())
    assert [result["set"] for result in collected["results"]] == ["table9-small"]
    by_name = {run["name"]: run for run in collected["runs"]}
    assert len(by_name) == 9
    assert by_name["relu-seed1"]["set"] == "table9-small"
    assert by_name["relu-seed1"]["group"] == by_name["relu-seed0"]["group"] == "relu"
    assert by_name["gone"]["set"] == "single"
    assert by_name["gone"]["message"].startswith("diverged at step 13")
    assert problems(collected) == ["single/damaged: metrics.jsonl: 2 of 18 lines can't be read"]


@pytest.mark.parametrize(
    ("given", "run", "expected"),
    [
        (".", "runs/first", "runs"),
        ("runs", "runs/first", "runs"),
        ("runs/first", "runs/first", "runs"),
        (".", "out/table9-small/runs/relu-seed0", "table9-small"),
        ("out", "out/table9-small/runs/relu-seed0", "table9-small"),
        ("out/table9-small", "out/table9-small/runs/relu-seed0", "runs"),
    ],
)
def test_a_run_belongs_to_its_study_or_its_directory(
    tmp_path: Path, given: str, run: str, expected: str
) -> None:
    write_run(tmp_path / "project" / run, epochs=1)
    (found,) = collect([tmp_path / "project" / given], Cache())["runs"]
    assert found["set"] == expected


def test_a_finished_study_names_its_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "table9-small" / "runs" / "relu-seed0", epochs=1)
    (tmp_path / "table9-small" / "result.json").write_text(json.dumps(result()))
    (found,) = collect([tmp_path / "table9-small"], Cache())["runs"]
    assert found["set"] == "table9-small"


def test_runs_named_by_their_seed_alone_are_a_group_named_after_the_directory(
    tmp_path: Path,
) -> None:
    for seed in range(2):
        write_run(tmp_path / "relu" / f"seed{seed}", epochs=1, seed=seed)
    assert [run["group"] for run in collect([tmp_path], Cache())["runs"]] == ["relu", "relu"]


def test_a_running_experiment_that_has_fallen_silent(tmp_path: Path) -> None:
    an_hour_ago = time.time() - 3600
    write_run(tmp_path / "old", state="running", status={"updated": an_hour_ago})
    write_run(tmp_path / "new", state="running", status={"updated": time.time()})
    new, old = collect([tmp_path], Cache())["runs"]
    assert (new["name"], new["silent"], old["silent"]) == ("new", False, True)


@given(st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=4).map(tuple))
def test_names_of_folders_tell_them_apart(parts: tuple[str, ...]) -> None:
    folders = [Path("/", *parts), Path("/a/x"), Path("/b/x"), Path("/x")]
    names = dict(zip(folders, shortest_names(folders), strict=True))
    assert len(set(names.values())) == len(names)


def test_nothing_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = write_all(tmp_path / "all")
    kept = tmp_path / "cache.json"
    cache = Cache(kept)
    first = collect([runs], cache)
    cache.save()
    read: list[str] = []

    def counted(path: Path) -> dict[str, object]:
        read.append(path.name)
        return read_run(path)

    monkeypatch.setattr(collection, "read_run", counted)
    again = collect([runs], Cache(kept))
    assert {**again, "made": 0} == {**first, "made": 0}
    assert read == []
    with (runs / "single" / "going" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "test", "step": 2737, "epoch": 7, "test_error": 30.0}\n')
    changed = collect([runs], Cache(kept))
    assert read == ["going"]
    going = next(run for run in changed["runs"] if run["name"] == "going")
    assert going["curves"]["test_error"]["y"][-1] == 30


@pytest.mark.parametrize("damage", ["", "{}", "truncated", "other entries", "\x00\x01"])
def test_a_damaged_cache_is_ignored(tmp_path: Path, damage: str) -> None:
    runs = write_all(tmp_path / "all")
    kept = tmp_path / "cache.json"
    cache = Cache(kept)
    first = collect([runs], cache)
    cache.save()
    whole = kept.read_text()
    damaged = {"truncated": whole[:-100], "other entries": whole.replace("finished", "<script>")}
    kept.write_text(damaged.get(damage, damage))
    assert collect([runs], Cache(kept))["runs"] == first["runs"]


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    runs = write_all(tmp_path / "all")
    program = (
        "import sys; from mpelu.lab.cli import main;"
        f"main(['report', {str(runs)!r}, '-o', {str(tmp_path / 'report')!r}]);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
