"""What tools/golden.py calls equal and different, on made-up results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import golden
import golden_compare
import pytest
import torch
from safetensors.torch import save_file

Results = dict[str, Any]


def results() -> Results:
    """One run and one study, as plain values that a test changes before they are written."""
    step = {"kind": "step", "step": 1, "epoch": 1, "loss": 2.25, "lr": 0.1}
    test = {"kind": "test", "step": 2, "epoch": 1, "test_loss": 2.125, "test_error": 80.0}
    cell = {"text": "80.00", "value": 80.0, "values": [79.0, 81.0]}
    plot = {"title": "error", "series": [{"name": "mpelu", "x": [1, 2], "y": [90.0, 80.0]}]}
    return {
        "weights": {"conv.weight": torch.randn(4, 3), "half": torch.ones(2).bfloat16()},
        "metrics": [step, test],
        "speed": [{"step": 1, "images_per_second": 2806.3}],
        "result": {"rows": [[{"text": "ResNet"}, cell]], "plots": [plot], "environment": {"n": 2}},
        "inspect": {"format": 1, "layers": [{"name": "conv", "mean": 0.5, "dead_share": None}]},
        "eval": "run: test error 7.00 %, loss 0.1732, 100 images of digits\n",
    }


def write(folder: Path, found: Results) -> golden_compare.Values:
    (folder / "run").mkdir(parents=True)
    save_file(found["weights"], folder / "run" / "model.safetensors")
    for name in ("metrics", "speed"):
        lines = "".join(json.dumps(row) + "\n" for row in found[name])
        (folder / "run" / f"{name}.jsonl").write_text(lines)
    (folder / "run" / "inspect.json").write_text(json.dumps(found["inspect"]))
    (folder / "result.json").write_text(json.dumps(found["result"]))
    (folder / "eval.txt").write_text(found["eval"])
    return golden_compare.read(folder)


def compared(tmp_path: Path, edit: Callable[[Results], object]) -> tuple[str, str]:
    """The verdict and its details, where the second version has the edit."""
    torch.manual_seed(0)
    found = results()
    old = write(tmp_path / "old", found)
    edit(found)
    verdict, details = golden_compare.compare(old, write(tmp_path / "new", found))
    return verdict, "; ".join(details)


def flip_last_bit(found: Results) -> None:
    found["weights"]["conv.weight"].view(torch.int32)[2, 1] ^= 1


def test_the_same_results_are_equal_and_all_numbers_are_read(tmp_path: Path) -> None:
    assert compared(tmp_path, lambda found: None) == ("equal", "")
    kinds = [kind for kind, _ in golden_compare.read(tmp_path / "old")]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"weights": 2, "metrics": 6, "table": 7, "inspection": 1, "evaluation": 2}


@pytest.mark.parametrize(
    "edit",
    [
        lambda found: found["speed"][0].update(images_per_second=1.0),
        lambda found: found["result"]["rows"][0][1].update(text="80 %"),
        lambda found: found["result"]["environment"].update(n=4),
        lambda found: found["inspect"].update(format=2),
        lambda found: found.update(eval="Test error: 7.00%, loss: 0.1732 (digits, 100 images)\n"),
    ],
)
def test_text_and_times_are_not_compared(edit: Callable[[Results], object], tmp_path: Path) -> None:
    assert compared(tmp_path, edit) == ("equal", "")


def test_one_bit_of_a_weight_is_a_difference(tmp_path: Path) -> None:
    verdict, details = compared(tmp_path, flip_last_bit)
    assert verdict == "different"
    assert details.startswith("1 changed, by up to ")
    assert details.endswith("first weights of run: conv.weight")


def test_the_sign_of_zero_is_a_difference() -> None:
    assert golden_compare.change(torch.zeros(2), -torch.zeros(2)) == (0.0, 0.0)
    assert golden_compare.change(0.0, -0.0) == (0.0, 0.0)


def test_another_dtype_or_shape_is_a_difference(tmp_path: Path) -> None:
    change = (torch.inf, torch.inf)
    assert golden_compare.change(torch.ones(2), torch.ones(2).double()) == change
    assert golden_compare.change(torch.ones(2), torch.ones(2, 1)) == change
    assert golden_compare.change(torch.ones(1), 1.0) == change


def test_differences_are_measured() -> None:
    old, new = torch.tensor([1.0, 4.0, 0.0]), torch.tensor([1.0, 3.0, 0.5])
    assert golden_compare.change(old, new) == (1.0, 1.0)
    assert golden_compare.change(4.0, 3.0) == (1.0, 0.25)
    assert golden_compare.change(1.0, float("nan")) == (torch.inf, torch.inf)
    assert golden_compare.change(float("nan"), float("nan")) is None
    assert golden_compare.change(2, 2.0) is None


@pytest.mark.parametrize(
    ("edit", "first"),
    [
        (
            lambda found: found["metrics"][0].update(loss=2.25 + 1e-9),
            "metrics of run: step 1 loss",
        ),
        (
            lambda found: found["result"]["rows"][0][1]["values"].__setitem__(1, 81 + 1e-9),
            "table of .: row 0 1 values 1",
        ),
        (
            lambda found: found["result"]["plots"][0]["series"][0]["y"].__setitem__(0, 90 - 1e-9),
            "table of .: plot 0 series 0 y 0",
        ),
        (
            lambda found: found["inspect"]["layers"][0].update(mean=0.5 + 1e-9),
            "inspection of run: layers 0 mean",
        ),
    ],
)
def test_a_billionth_is_a_difference(
    edit: Callable[[Results], object], first: str, tmp_path: Path
) -> None:
    verdict, details = compared(tmp_path, edit)
    assert (verdict, details.count(";")) == ("different", 0)
    assert details.startswith("1 changed, by up to 1e-09 (relative ")
    assert details.endswith(f"first {first}")


def test_what_eval_prints_is_compared(tmp_path: Path) -> None:
    verdict, details = compared(
        tmp_path, lambda found: found.update(eval="run: test error 7.00 %, loss 0.1733\n")
    )
    assert verdict == "different"
    assert details.endswith("first evaluation of .: loss")


def test_a_missing_number_is_a_difference(tmp_path: Path) -> None:
    verdict, details = compared(tmp_path, lambda found: found["metrics"][1].pop("test_loss"))
    assert (verdict, details) == (
        "different",
        "1 missing, first metrics of run: test 2 test_loss",
    )


def test_a_missing_file_is_a_difference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old, new = (write(tmp_path / name, results()) for name in ("old", "new"))
    assert golden_compare.compare(old, new)[0] == "different"  # other random weights
    (tmp_path / "new" / "run" / "model.safetensors").unlink()
    verdict, details = golden_compare.compare(old, golden_compare.read(tmp_path / "new"))
    assert (verdict, details) == (
        "different",
        ["2 missing, first weights of run: conv.weight"],
    )


def test_a_new_number_is_a_note(tmp_path: Path) -> None:
    verdict, details = compared(tmp_path, lambda found: found["metrics"][0].update(norm=1.0))
    assert (verdict, details) == (
        "equal",
        "note: 1 new, first metrics of run: step 1 norm",
    )


def test_a_step_logged_twice_does_not_hide_the_first(tmp_path: Path) -> None:
    def edit(found: Results) -> None:
        found["metrics"].insert(0, {**found["metrics"][0], "loss": 9.0})

    verdict, details = compared(tmp_path, edit)
    assert verdict == "different"
    assert "1 changed" in details
    assert "step 1 again" in details


def test_every_command_of_every_case_has_something_to_compare() -> None:
    kinds = {kind for kind, _ in golden_compare.READERS.values()}
    assert set().union(*golden.YIELDS.values()) == kinds
    for commands in golden.CASES.values():
        for command in commands:
            assert len(golden.YIELDS.keys() & set(command.split())) == 1


@pytest.mark.parametrize(
    ("edit", "without", "verdict"),
    [
        (None, "", "equal"),
        (flip_last_bit, "", "different"),
        (None, "old/eval-inspect/eval.txt", "could not run"),
        (None, "new/eval-inspect/eval.txt", "different"),
    ],
)
def test_a_case_gets_a_line_and_a_verdict(
    edit: Callable[[Results], object] | None,
    without: str,
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    found = results()
    for name in ("old", "new"):
        if name == "new" and edit is not None:
            edit(found)
        write(tmp_path / name / "eval-inspect", found)
    if without:
        (tmp_path / without).unlink()

    def run(command: str, sides: Sequence[golden.Side], name: str) -> None:
        assert name == "eval-inspect"

    monkeypatch.setattr(golden, "run", run)
    sides = [golden.Side(name, tmp_path, tmp_path / name, {}) for name in ("old", "new")]
    assert golden.check("eval-inspect", sides) == verdict
    printed = capsys.readouterr().out
    assert printed.startswith(f"eval-inspect    {verdict}: ")
    assert printed.count("\n") == 1


PROGRAM = """
import os, pathlib, sys, time
print(sys.argv[1:], os.environ["PYTHONPATH"])
if "wait" in sys.argv:
    pathlib.Path("run").mkdir()
    pathlib.Path("run/metrics.jsonl").write_text("a line")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
if "--bad" in sys.argv:
    sys.exit("mpelu: error: no option --bad")
"""


def test_each_side_runs_its_own_source_and_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden, "MAIN", PROGRAM)
    old = golden.Side("abc", tmp_path / "a", tmp_path / "old", {"--new": "--old"})
    new = golden.Side("working tree", tmp_path / "b", tmp_path / "new", {})
    golden.run("eval run --new", (old, new), "case")
    for side, flag in ((old, "--old"), (new, "--new")):
        printed = (side.results / "case" / "eval.txt").read_text()
        assert printed == f"['eval', 'run', '{flag}'] {side.source / 'src'}\n"
    golden.run("interrupt train wait", (old, new), "case")
    with pytest.raises(golden.CannotRun, match="abc: train ended with exit code 0"):
        golden.run("interrupt train", (old, new), "other")
    with pytest.raises(golden.CannotRun, match=r"abc: train .* code 1: mpelu: error: no option"):
        golden.run("train --bad", (old, new), "case")


def test_a_flag_that_the_old_commit_lacks_is_left_out_there_with_its_values() -> None:
    words = ["train", "--out", "run", "--new-list", "1", "-2", "--new-switch", "--old", "3"]
    lacking = {"--new-list": "", "--new-switch": "", "--old": "--older"}
    assert golden.spelled(words, lacking) == ["train", "--out", "run", "--older", "3"]
    assert golden.spelled(words, {}) == words


def test_an_unknown_commit_ends_with_2_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["golden.py", "--against", "no-such-commit"])
    assert golden.main() == 2
    assert capsys.readouterr().err.startswith("golden: git ")
