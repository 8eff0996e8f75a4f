"""Our own studies: their settings, what is kept, tables and figures, and the page of results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import t as student  # type: ignore[import-untyped]

from mpelu.lab import paper
from mpelu.lab.errors import UserError
from mpelu.lab.sweep.study import SCALES, Options
from research import depth, results, summary
from research.kept import KEPT, KeptRun, KeptStudy, read, steps_to, write

STUDIES = (
    "research.activations:normalized",
    "research.activations:unnormalized",
    "research.activations:advice",
    "research.activations:anchor",
    "research.activations:pilot",
    "research.coordinates:limits",
    "research.coordinates:grid",
    "research.depth:study",
    "research.depth:rivals",
)

RELU = [40.0, 41.0, 39.5]
ELU = [38.0, 38.5, 38.0]


def kept(**changes: object) -> KeptStudy:
    runs = [
        KeptRun(
            setting=name,
            seed=seed,
            test_error=error,
            tests=[(100, error + 10), (200, error)],
            learned={"1.alpha": (1.0, 0.5, 1.5), "1.beta": (1.0, 0.9, 1.1)},
        )
        for name, errors in {"relu": RELU, "elu": ELU}.items()
        for seed, error in enumerate(errors)
    ]
    machine = {
        "cpu": "a CPU", "kernel": "native (avx2): compiled", "torch": "2.13.0", "mpelu": "0.1.0",
        "revision": "0123456789", "threads": 1,
    }  # fmt: skip
    study = KeptStudy(
        study="study-bn",
        title="Activations",
        labels={"relu": "ReLU", "elu": "ELU"},
        configs={"relu": {"activation": "relu"}, "elu": {"activation": "elu"}},
        comparisons=[("elu", "relu")],
        runs=runs,
        machines=[machine],
    )
    return replace(study, **changes)  # type: ignore[arg-type]


def test_kept_runs_are_read_as_written(tmp_path: Path) -> None:
    write(kept(), tmp_path / KEPT)
    assert read(tmp_path / KEPT) == kept()
    assert read(tmp_path / KEPT).runs[0].tests == [(100, 50.0), (200, 40.0)]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1}'])
def test_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / KEPT).write_text(text)
    with pytest.raises(UserError, match=r"kept\.json: expected the kept runs of a study"):
        read(tmp_path / KEPT)
    with pytest.raises(UserError, match="expected the kept runs"):
        read(tmp_path / "missing")


def test_differences_pair_seeds() -> None:
    found = kept().difference("elu")
    assert found is not None
    assert found.difference == pytest.approx(-2.0)
    spread = 0.5  # of -2.0, -2.5 and -1.5
    half = float(student.ppf(0.975, 2)) * spread / 3**0.5
    assert (found.low, found.high) == pytest.approx((-2 - half, -2 + half))
    assert kept().difference("relu") is None
    alone = kept(runs=[each for each in kept().runs if each.setting == "elu"])
    assert alone.difference("elu") is None


@pytest.mark.parametrize(
    ("diverged", "said"),
    [
        ({"elu": 1}, "better in 2 and worse in 1 of 3 pairs, no difference found"),
        ({"relu": 1}, "better in 3 and worse in 0 of 3 pairs, no difference found"),
        ({"elu": 3, "relu": 3}, "better in 0 and worse in 0 of 3 pairs, no difference found"),
    ],
)
def test_a_diverged_run_loses_its_pair_in_tables_and_figures(
    diverged: dict[str, int], said: str
) -> None:
    runs = [
        replace(each, test_error=None, tests=each.tests[:1])
        if each.seed < diverged.get(each.setting, 0)
        else each
        for each in kept().runs
    ]
    less = kept(runs=runs)
    _, rows = summary.cells(less)
    assert rows[1][2].text.startswith(said)
    assert rows[1][2].value is None
    assert less.diverged("elu") == diverged.get("elu", 0)
    forest, curves = summary.figure(less).axes
    (text,) = [each.get_text() for each in forest.texts]
    assert "worse in" in text
    steps = [list(map(float, line.get_xdata())) for line in curves.lines]  # type: ignore[arg-type]
    assert steps == [[100.0] if name in diverged else [100.0, 200.0] for name in ("relu", "elu")]


def test_the_table() -> None:
    header, rows = summary.cells(kept(), reach=41.0)
    assert header == (
        "setting", "test error %", "difference to ReLU", "could show", "steps to 41 %", "n",
        "diverged",
    )  # fmt: skip
    texts = [[cell.text for cell in row] for row in rows]
    assert texts[0] == ["ReLU", "40.17 ± 0.76", "", "", "200", "3", "0"]
    assert texts[1][:3] == ["ELU", "38.17 ± 0.29", "-2.00 [-3.24, -0.76]"]
    _, rows = summary.cells(kept(), reach=38.2)
    assert [row[4].text for row in rows] == ["not reached", "200 (1 of 3 never)"]
    assert steps_to(kept().runs[0], 50.0) == 100


def test_figures_show_every_difference(tmp_path: Path) -> None:
    both = summary.forests({"first": kept(), "second": kept()}, "a machine")
    assert [each.get_title().splitlines()[0] for each in both.axes] == ["first", "second"]
    axes = both.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ELU"]
    assert axes.get_xlabel() == "test error minus that of ReLU, percentage points"
    assert len(summary.figure(kept()).axes) == 2
    assert len(summary.figure(kept(comparisons=[])).axes) == 1
    drawn = summary.learned(kept(), ("elu", "relu"))
    assert [each.get_ylabel() for each in drawn.axes] == ["α", "β"]
    drawn.savefig(tmp_path / "learned.png")


def test_a_study_keeps_its_runs_and_compares_nothing_in_a_smoke_test(tmp_path: Path) -> None:
    (result,) = paper.reproduce("research.activations:anchor", scale="smoke", out=tmp_path)
    found = read(tmp_path / "study-anchor-smoke" / KEPT)
    assert [(each.setting, each.seed) for each in found.runs] == [("relu", 0), ("mpelu", 0)]
    assert found.runs[0].learned == {}
    assert next(iter(found.runs[1].learned)).endswith("alpha")
    assert found.comparisons == []
    assert result.header == ("setting", "test error %", "n", "diverged")
    assert "data_dir" not in found.configs["relu"]


def test_the_template_is_filled() -> None:
    text = "a {{x.y}} b\n<!-- if bn -->\nwith {{x.y}}\n<!-- end -->\nend"
    assert results.fill(text, {"x.y": "1"}, set()) == "a 1 b\nend"
    assert results.fill(text, {"x.y": "1"}, {"bn"}) == "a 1 b\nwith 1\nend"
    assert results.fill(text.replace("if bn", "unless bn"), {"x.y": "1"}, {"bn"}) == "a 1 b\nend"
    with pytest.raises(KeyError, match=r"x\.y"):
        results.fill(text, {}, set())


def test_every_number_of_the_page_is_from_the_kept_runs() -> None:
    """The page is what its template and the kept data give."""
    assert (results.RESULTS / "README.md").read_text() == results.page()
    for name, found in results.kept_studies().items():
        assert name in results.WITHOUT_FIGURE or (results.RESULTS / f"{name}.png").is_file()
        pairs = [(each.setting, each.seed) for each in found.runs]
        assert len(set(pairs)) == len(pairs)
        machines = {json.dumps(each) for each in found.machines}
        assert len(machines) == len(found.machines)


@pytest.mark.parametrize("reference", STUDIES)
@pytest.mark.parametrize("scale", SCALES)
def test_our_studies_are_found_like_anybodys(reference: str, scale: str) -> None:
    study = paper.find(reference)
    options = Options(scale=scale, seeds=2)
    runs = study.runs(options)
    assert len({run.name for run in runs}) == len(runs)
    assert {run.config.seed - study.first_seed for run in runs} == {0, 1}
    for each in study.at_scale(options):  # they are small as they are
        assert bool(each.shrunk) == (scale == "smoke")
    assert all(run.config.data == "digits" for run in runs if scale == "smoke")
    known = {each.name for each in study.settings("paper")}
    assert {name for pair in study.comparisons for name in pair} <= known


def test_the_wheel_contains_no_research() -> None:
    root = Path(__file__).parents[2]
    program = (
        "from setuptools.dist import Distribution; d = Distribution({'script_name': 'setup.py'}); "
        "d.parse_config_files(); build = d.get_command_obj('build_py'); build.ensure_finalized(); "
        "print(*(file for _, _, file in build.find_all_modules()))"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=root, capture_output=True, text=True
    )
    files = found.stdout.split()
    assert "src/mpelu/lab/cli.py" in files, found.stderr
    assert all(each.startswith("src/mpelu/") for each in files)
    assert "research" not in found.stdout


class TestDepth:
    def test_every_depth_has_its_controls(self) -> None:
        names = [each.name for each in depth.settings("paper")]
        assert "softmax" in names
        for layers in (15, 30, 60, 100, 200):
            for arm in ("mpelu-taylor", "mpelu-exact", "mpelu-deep", "identity-orthogonal"):
                assert f"{layers}-{arm}" in names

    def test_the_grid_has_every_initialization(self) -> None:
        for layers in depth.GRID:
            assert {name for activation, name in depth.arms(layers) if activation == "mpelu"} == {
                *depth.INITS
            }

    def test_all_runs_have_the_same_budget(self) -> None:
        decided = ("iterations", "batch_size", "warmup", "clip_norm", "train_limit", "schedule")
        study = depth.study()
        runs = [*study.tuning_runs(Options()), *study.runs(Options())]
        assert len({tuple(getattr(each.config, name) for name in decided) for each in runs}) == 1
        assert sum(each.setting == "softmax" for each in study.tuning_runs(Options())) == 3

    def test_rules_get_the_size_of_the_images_where_they_can_use_it(self) -> None:
        for name, changes in depth.INITS.items():
            if changes["init"] == "exact":
                assert changes["init_sized"], name
