"""Recipes as data: the paper's values, the configs, and what is said to be shrunk."""

import subprocess
import sys
from dataclasses import replace

import pytest

from mpelu.lab import cli
from mpelu.lab import studies as recipes
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.studies.differences import differences
from mpelu.lab.studies.paper import figure2, table04, table07, table08
from mpelu.lab.studies.recipe import SCALES, Options, Setting


def settings(name: str, reading: str = "paper") -> dict[str, Setting]:
    return {each.name: each for each in recipes.find(name).settings(reading)}


def test_all_tables_figures_and_claims() -> None:
    expected = [f"table{n}" for n in range(1, 13)] + [f"figure{n}" for n in range(1, 6)]
    assert recipes.names() == [*expected, "convergence", "lsuv"]
    for name in recipes.names():
        assert recipes.find(name).name == name


@pytest.mark.parametrize(
    ("recipe", "setting", "printed"),
    [
        ("table1", "prelu-augmented", "7.28 (7.49 ± 0.14)"),
        ("table1", "mpelu-0.25", "9.10 (9.27 ± 0.12)"),
        ("table2", "mpelu-0-gaussian-decay10", "37.92"),
        ("table2", "mpelu-0.25-gaussian-decay0", "40.94"),
        ("table2", "mpelu-1-ours-decay1", "37.33"),
        ("table3", "slope-0.5", "42.76"),
        ("table5", "mpelu-30-gaussian-bn", "44.28"),
        ("table5", "elu-30-gaussian", "× (fails to converge)"),
        ("table6", "mpelu-0.25-lsuv-decay0", "39.93"),
        ("table9", "mpelu-resnet-a-110", "6.21 (6.89 ± 0.47)"),
        ("table9", "elu-resnet-44", "7.714"),
        ("table10", "mpelu-resnet-56", "5.95"),
        ("table11", "nopre-resnet", "4.87 (5.04 ± 0.14)"),
        ("table11", "nopre-bn-resnet", "diverged within few steps"),
        ("table12", "nopre-1001-alpha0.25-dagger-cifar100", "18.81 (18.98 ± 0.19)"),
        ("table12", "nopre-164-alpha0.25-cifar10", "4.87 (5.06 ± 0.14)"),
        ("figure2", "relu", "25k"),
        ("convergence", "prelu-fan_out", "converges"),
        ("convergence", "prelu-fan_in", "fails to converge"),
        ("lsuv", "52-lsuv", "explodes within several iterations"),
    ],
)
def test_printed_values(recipe: str, setting: str, printed: str) -> None:
    assert settings(recipe)[setting].paper == printed


def test_printed_values_of_measurements() -> None:
    assert table04.PAPER["mpelu"] == "0.2441"
    assert table07.PAPER["variance", "mpelu"] == ("1840.65", "74.43", "0.71", "0.07", "0.01")
    assert table08.PAPER[0.5] == ("51.65", "50.00", "84.75", "99.60", "1")
    assert figure2.ERROR["full"] == 15


def test_the_papers_setting_of_residual_networks() -> None:
    config = settings("table9")["resnet-110"].config
    assert config is not None
    assert (config.epochs, config.milestones, config.batch_size) == (200, (80, 121), 128)
    assert (config.lr, config.momentum, config.nesterov) == (0.1, 0.9, True)
    assert (config.weight_decay, config.augment) == (1e-4, "pad-crop-flip")
    dagger = settings("table12")["nopre-1001-alpha1-dagger-cifar100"].config
    assert dagger is not None
    assert (dagger.epochs, dagger.milestones, dagger.batch_size) == (300, (149, 224), 64)
    assert dagger.accumulate == 2  # batch normalization saw 32 images
    assert (dagger.data, dagger.alpha, dagger.model) == ("cifar100", 1.0, "nopre-resnet-1001")
    warm = settings("table11")["nopre-bn-resnet-warmup"].config
    assert warm is not None
    assert (warm.warmup, warm.warmup_lr, warm.lr) == (1, 0.01, 0.1)


def test_the_papers_setting_of_the_15_layer_network() -> None:
    config = settings("table2")["mpelu-0-gaussian-decay10"].config
    assert config is not None
    assert (config.iterations, config.milestones) == (750_000, (100_000, 600_000))
    assert (config.batch_size, config.lr, config.weight_decay) == (64, 0.01, 5e-4)
    assert (config.image_size, config.crop, config.preprocess) == (256, 224, "mean-image")
    assert (config.activation_decay_mult, config.beta_decay_mult) == (1.0, 0.0)
    assert (config.init, config.init_std, config.linear_std) == ("gaussian", 0.01, None)


def test_readings_differ_where_paper_and_code_do() -> None:
    paper, code = (settings("table1", reading) for reading in ("paper", "code"))
    stds = [each["mpelu-0.25"].config.init_std for each in (paper, code)]  # type: ignore[union-attr]
    assert stds == [0.01, 0.05]
    decays = [each["mpelu-0.25"].config.activation_decay_mult for each in (paper, code)]  # type: ignore[union-attr]
    assert decays == [0.0, 5.0]
    case = "mpelu-0.25-ours-decay1"
    rates = [settings("table2", each)[case].config for each in ("paper", "code")]
    assert [each.activation_lr_mult for each in rates] == [5.0, 2.0]  # type: ignore[union-attr]
    assert [each.activation_decay_mult for each in rates] == [1.0, 2.0]  # type: ignore[union-attr]
    prelu = settings("table2", "code")["prelu-0.25-msra-decay1"].config
    assert prelu is not None
    assert (prelu.init_mode, prelu.linear_std) == ("fan_out", (0.01, 0.01, 0.001))


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("scale", SCALES)
def test_runs_have_names_of_their_own_and_say_what_shrank(name: str, scale: str) -> None:
    recipe = recipes.find(name)
    runs = recipe.runs(Options(scale=scale, seeds=2))
    assert len({run.name for run in runs}) == len(runs)
    assert {run.config.seed for run in runs} <= {0, 1}
    for run in runs:
        assert bool(run.shrunk) == (scale != "full")
        if scale == "smoke":
            assert (run.config.data, run.config.data_dir) == ("digits", None)
    known = {each.name for reading in ("paper", "code") for each in recipe.settings(reading)}
    assert {name for pair in recipe.comparisons for name in pair} <= known


def test_another_reading_has_a_folder_of_its_own() -> None:
    recipe = recipes.find("table1")
    assert recipe.folder(Options(scale="full")) == "table1-full"
    assert recipe.folder(Options(scale="full", reading="code")) == "table1-full"
    assert recipe.folder(Options(scale="full", reading="paper")) == "table1-full-paper"
    assert recipes.find("figure1").folder(Options(reading="code")) == "figure1-small"


def test_differences_name_every_field_that_decides() -> None:
    full = Config(epochs=200, model_options={"width": 16}, lr=0.1, milestones=(80,))
    other = replace(
        full, epochs=2, model_options={"width": 4}, lr=0.2, milestones=(), train_limit=9, seed=5
    )
    assert differences(full, full) == ()
    assert differences(full, other) == (
        "2 epochs in place of 200",
        "the first 9 training images",
        "width 4 in place of 16",
        "learning rate 0.2 in place of 0.1",
        "learning rate falls after never in place of 80",
    )


def test_fewer_layers_of_a_network_are_said_as_such() -> None:
    full = Config(model="nopre-resnet-164")
    assert differences(full, replace(full, model="nopre-resnet-29")) == (
        "29 layers in place of 164",
    )
    assert differences(full, replace(full, model="nin")) == (
        "network nin in place of nopre-resnet-164",
    )


def test_the_closest_recipe_is_named() -> None:
    with pytest.raises(UserError, match=r"got 'tabel9' \(closest: 'table9'\)"):
        recipes.find("tabel9")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list"])
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("recipe")
    assert [line.split()[0] for line in lines] == recipes.names()
    assert "CIFAR-10" in next(line for line in lines if line.startswith("table9"))


def test_recipes_do_not_load_torch() -> None:
    program = (
        "import sys\n"
        "from mpelu.lab import studies as recipes\n"
        "for name in recipes.names(): recipes.find(name).runs(recipes.Options(scale='full'))\n"
        "from mpelu.lab.commands import list, reproduce\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
