"""Studies as data: the paper's values, the configs, and what is said to be scaled down."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refusal

from mpelu.lab import cli, paper
from mpelu.lab.config import FIELDS, Config, differing
from mpelu.lab.paper import figure2, table04, table07, table08
from mpelu.lab.paper.settings import PRESETS, preset
from mpelu.lab.sweep.study import SCALES, Options, Setting, differences
from mpelu.models import registry


def settings(name: str, source: str = "paper") -> dict[str, Setting]:
    return {each.name: each for each in paper.find(name).settings(source)}


def test_all_tables_figures_and_claims() -> None:
    expected = [f"table{n}" for n in range(1, 13)] + [f"figure{n}" for n in range(1, 6)]
    assert paper.names() == [*expected, "convergence", "lsuv"]
    for name in paper.names():
        assert paper.find(name).name == name


@pytest.mark.parametrize(
    ("study", "setting", "printed"),
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
def test_printed_values(study: str, setting: str, printed: str) -> None:
    assert settings(study)[setting].paper == printed


def test_printed_values_of_measurements() -> None:
    assert table04.PAPER["mpelu"] == "0.2441"
    assert table07.PAPER["variance", "mpelu"] == ("1840.65", "74.43", "0.71", "0.07", "0.01")
    assert table08.PAPER[0.5] == ("51.65", "50.00", "84.75", "99.60", "100")
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
    paper, code = (settings("table1", source)["mpelu-0.25"].config for source in ("paper", "code"))
    assert paper is not None
    assert code is not None
    assert (paper.init_std, code.init_std) == (0.01, 0.05)
    assert (paper.activation_decay_mult, code.activation_decay_mult) == (0.0, 5.0)
    case = "mpelu-0.25-ours-decay1"
    paper, code = (settings("table2", source)[case].config for source in ("paper", "code"))
    assert paper is not None
    assert code is not None
    assert (paper.activation_lr_mult, code.activation_lr_mult) == (5.0, 2.0)
    assert (paper.activation_decay_mult, code.activation_decay_mult) == (1.0, 2.0)
    prelu = settings("table2", "code")["prelu-0.25-msra-decay1"].config
    assert prelu is not None
    assert (prelu.init_mode, prelu.linear_std) == ("fan_out", (0.01, 0.01, 0.001))


@pytest.mark.parametrize(
    ("name", "study", "setting"),
    [
        ("nin-cifar10", "table1", "mpelu-1-augmented"),
        ("resnet-cifar", "table11", "nopre-resnet"),
        ("resnet-cifar-dagger", "table12", "nopre-164-alpha0.25-dagger-cifar10"),
        ("plain-imagenet", "table2", "mpelu-1-ours-decay1"),
    ],
)
def test_a_preset_is_a_setting_of_its_study(name: str, study: str, setting: str) -> None:
    chosen = PRESETS[name]
    source = paper.find(study).source(Options(scale="full"))
    assert chosen.help.endswith("published code)" if source == "code" else "paper)")
    config = settings(study, source)[setting].config
    assert config is not None
    different = differing(chosen.config, config)
    assert set(different) <= {"activation", "alpha"}
    # What a preset leaves to the network is what the setting names.
    family, _ = registry.find(config.model)
    for field in different:
        assert getattr(chosen.config, field) is None
        assert getattr(config, field) == getattr(family, field)


def test_the_presets_of_residual_networks_are_the_settings_of_all_their_tables() -> None:
    counts = {"resnet-cifar": 0, "resnet-cifar-dagger": 0}
    free = {
        "model",
        "data",
        "alpha",
        "coordinates",
        "gradient_checkpointing",
        "warmup",
        "warmup_lr",
    }
    for table in ("table9", "table10", "table11", "table12"):
        for each in settings(table, paper.find(table).source(Options())).values():
            if each.config is not None:
                name = f"resnet-cifar{'-dagger' * ('dagger' in each.name)}"
                counts[name] += 1
                assert set(differing(PRESETS[name].config, each.config)) <= free
    assert counts == {"resnet-cifar": 20 + 10 + 11 + 2, "resnet-cifar-dagger": 8}


@pytest.mark.parametrize("name", PRESETS)
def test_the_values_of_a_preset_give_its_config(name: str) -> None:
    values = preset(name)
    assert Config.from_values(values) == PRESETS[name].config
    assert ("epochs" in values) != ("iterations" in values)


def test_the_docs_name_the_networks_that_no_study_trains() -> None:
    trained = {
        each.config.model
        for name in paper.names()
        for each in paper.find(name).settings("paper")
        if each.config is not None
    }
    untrained = [name for name in registry.names() if name not in trained]
    text = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()
    assert f"{len(untrained)} of the {len(registry.names())} networks" in text
    assert [name for name in untrained if f"`{name}`" not in text] == []


def test_an_unknown_preset() -> None:
    with refusal("'resnet'", field="preset"):
        preset("resnet")


@pytest.mark.parametrize("name", paper.names())
@pytest.mark.parametrize("scale", SCALES)
def test_runs_have_names_of_their_own_and_say_what_shrank(name: str, scale: str) -> None:
    study = paper.find(name)
    runs = study.runs(Options(scale=scale, seeds=2))
    assert len({run.name for run in runs}) == len(runs)
    assert {run.config.seed - study.first_seed for run in runs} <= {0, 1}
    for each in study.at_scale(Options(scale=scale)):
        assert bool(each.shrunk) == (scale != "full" and each.config is not None)
    for run in runs:
        if scale == "smoke":
            assert (run.config.data, run.config.data_dir) == ("digits", None)
    known = {each.name for source in ("paper", "code") for each in study.settings(source)}
    assert {name for pair in study.comparisons for name in pair} <= known


def test_another_reading_has_a_folder_of_its_own() -> None:
    study = paper.find("table1")
    assert study.folder(Options(scale="full")).name == "table1-full"
    assert study.folder(Options(scale="full", follow="code")).name == "table1-full"
    assert study.folder(Options(scale="full", follow="paper")).name == "table1-full-paper"
    assert paper.find("figure1").folder(Options(follow="code")).name == "figure1-small"


def test_differences_name_every_field_that_matters() -> None:
    full = Config(epochs=200, model_options={"width": 16}, lr=0.1, milestones=(80,))
    other = replace(
        full, epochs=2, model_options={"width": 4}, lr=0.2, milestones=(), train_limit=9, seed=5
    )
    assert differences(full, full) == ()
    assert differences(full, other) == (
        "2 epochs instead of 200",
        "only the first 9 training images",
        "width 4 instead of 16",
        "learning rate 0.2 instead of 0.1",
        "milestones none instead of 80",
    )


def test_every_field_that_decides_has_a_difference_in_words() -> None:
    changes: dict[str, Any] = {
        "data": "cifar100", "image_size": 48, "crop": 12, "preprocess": "none",
        "augment": "crop-flip", "train_limit": 9, "test_limit": 8, "model": "nin",
        "model_options": {"width": 4}, "activation": "elu", "alpha": 2.0, "beta": 2.0,
        "init": "lsuv", "init_mode": "fan_out", "init_std": 0.5, "linear_std": (0.1,),
        "epochs": 7, "batch_size": 7, "accumulate": 2, "lr": 0.7, "milestones": (3,),
        "gamma": 0.7, "warmup": 7, "warmup_lr": 0.7, "momentum": 0.7, "nesterov": True,
        "weight_decay": 0.7, "activation_lr_mult": 7.0, "activation_decay_mult": 7.0,
        "beta_decay_mult": 7.0, "bias_lr_mult": 7.0, "bias_decay_mult": 7.0, "last_lr_mult": 7.0,
        "precision": "bf16", "channels_last": True, "compile": True,
    }  # fmt: skip
    unmentioned = {"seed", "log_every", "test_every", "gradient_checkpointing"}
    deciding = {name for name, info in FIELDS.items() if info.decides} - unmentioned
    assert set(changes) <= deciding
    full = Config(data="cifar10")
    for name, value in changes.items():
        (phrase,) = differences(full, replace(full, **{name: value}))
        assert "instead of" in phrase or "only the first" in phrase
    shorter = replace(full, epochs=None, iterations=1)
    assert differences(full, shorter) == ("1 iteration",)
    others: dict[str, Any] = {"seed": 7, "log_every": 7, "test_every": 7, "threads": 7}
    assert differences(full, replace(full, **others)) == ()


def test_sizes_are_those_of_the_images() -> None:
    full = Config(data="folder", image_size=256, crop=224)
    assert differences(full, Config(data="cifar10")) == (
        "CIFAR-10 instead of ImageNet",
        "image size 32 instead of 256",
        "crop size 32 instead of 224",
    )
    assert differences(full, Config(data="folder")) == ()  # the same by default


def test_fewer_layers_of_a_network_are_said_as_such() -> None:
    full = Config(model="nopre-resnet-164")
    assert differences(full, replace(full, model="nopre-resnet-29")) == (
        "29 layers instead of 164",
    )
    assert differences(full, replace(full, model="nin")) == (
        "network nin instead of nopre-resnet-164",
    )


def test_only_a_close_study_is_suggested() -> None:
    with refusal("'tabel9'", "did you mean 'table9'", field=""):
        paper.find("tabel9")
    with refusal("'vgg'", "`mpelu list`", field="") as refused:
        paper.find("vgg")
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(("field", "value"), [("scale", "huge"), ("follow", "blog"), ("seeds", 0)])
def test_bad_options(field: str, value: Any) -> None:
    with refusal(value, field=field):
        Options(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("executor", "cloud", "'cloud'"),
        ("jobs", 0, "got 0"),
        ("cpus_per_run", 0, "got 0"),
        ("gpus_per_run", -1, "got -1"),
        ("cpus_per_run", 2, "--executor ray"),
        ("gpus_per_run", 1, "--executor ray"),
        ("ray_address", "auto", "--executor ray"),
    ],
)
def test_bad_executions(field: str, value: Any, shown: str) -> None:
    with refusal(shown, field=field):
        Options(**{field: value})


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["study", "smoke", "small", "full", "data", "about"]
    first_words = [line.split()[0] for line in lines[2:-2] if not line.startswith(" ")]
    assert first_words == paper.names()
    (table9,) = (line for line in lines if line.startswith("table9"))
    assert table9.split()[:5] == ["table9", "20", "24", "100", "CIFAR-10"]


def test_studies_do_not_load_torch() -> None:
    program = (
        "import sys\n"
        "from mpelu.lab import paper\n"
        "from mpelu.lab.sweep import Options\n"
        "for name in paper.names(): paper.find(name).runs(Options(scale='full'))\n"
        "from mpelu.lab.commands import list, reproduce\n"
        "from argparse import Namespace\n"
        "list.run(Namespace(what='studies'))\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
