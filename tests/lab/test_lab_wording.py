"""The lines that the lab refuses with, word for word. Other tests ask for what they name."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_helpers import refused
from torch import nn

from mpelu.lab import Config, data, load_network, paper
from mpelu.lab.compare.comparison import parse_budget
from mpelu.lab.inspecting import activation_statistics
from mpelu.lab.paper.settings import preset
from mpelu.lab.sweep.study import Options
from mpelu.lab.training import launch

OWN = """
from torch import nn

def network(num_classes=10, in_channels=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))

number = 3

def broken():
    raise RuntimeError("it is broken")

def not_a_module(num_classes):
    return num_classes

def wants_more(num_classes, depth):
    return nn.Linear(1, 1)

def seven(in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, 7))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of the user's own in it."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


COMMANDS = [
    # The command line itself
    ("modles", "unknown command 'modles'; did you mean 'models'?"),
    ("dance", "unknown command 'dance' (see mpelu --help)"),
    ("--vresion", "unknown option --vresion; did you mean --version?"),
    ("--modle x train", "unknown option --modle before the command (see mpelu --help)"),
    (
        "--epochs 3",
        "unknown option --epochs before the command; did you mean mpelu train --epochs 3?",
    ),
    (
        "--data digits compare mine:net",
        "unknown option --data before the command; did you mean mpelu compare --data digits "
        "mine:net?",
    ),
    (
        "train --device gpu",
        "--device: unknown value 'gpu'; did you mean 'cuda'? Choose auto, cpu, cuda or mps",
    ),
    *(
        (
            f"train --{name} {given}",
            f"--{name}: unknown activation {given!r}; did you mean 'mpelu'? "
            "(`mpelu train --help` lists them)",
        )
        for name in ("activation", "convert")
        for given in ("mplu", "MPELU")
    ),
    (
        "train --activation mpelu --beta -1",
        "--beta: MPELU: expected beta >= 1e-06, got -1",
    ),
    (
        "train --activation relu --beta 2",
        "--beta: relu takes no beta, got 2.0",
    ),
    (
        "train --model plain-15",
        "--model: plain-15: input_size: expected a whole number >= 19, got 8 (use --image-size 32)",
    ),
    ("train --modle resnet-20", "unknown option --modle; did you mean --model?"),
    ("train --modle=resnet-20", "unknown option --modle; did you mean --model?"),
    ("train --epoch 3", "unknown option --epoch; did you mean --epochs?"),
    ("train -epochs 3", "unknown option -epochs; did you mean --epochs?"),
    (
        "train --checkpointing",
        "unknown option --checkpointing; did you mean --gradient-checkpointing?",
    ),
    ("train --dance", "unknown option --dance (see mpelu train --help)"),
    ("train dance", "unexpected argument 'dance' (see mpelu train --help)"),
    ("train --lr", "--lr: expected one argument"),
    ("train --lr fast", "--lr: expected a number, got 'fast'"),
    ("train --lr -1", "--lr: expected a number > 0, got -1.0"),
    ("train --lr nan", "--lr: expected a finite number, got nan"),
    ("train --batch-size 0", "--batch-size: expected a number >= 1, got 0"),
    ("train --batch-size 1.5", "--batch-size: expected an integer, got '1.5'"),
    ("train --milestones 5 3", "--milestones: expected increasing numbers, got 5, 3"),
    ("train --model-options width", "--model-options: expected NAME=VALUE, got 'width'"),
    (
        "train --data mnist",
        "--data: unknown data set or directory 'mnist'; choose digits, cifar10, cifar100, "
        "folder or npz (use folder for ImageNet)",
    ),
    (
        "train --augment flip",
        "--augment: unknown value 'flip'; did you mean 'crop-flip'? Choose none, "
        "pad-crop-flip, crop-flip or resized-crop-flip",
    ),
    (
        "train --epochs 2 --iterations 3",
        "--epochs: expected epochs or iterations, got both (2 and 3)",
    ),
    ("train --config none.json", "--config: none.json is missing"),
    (
        "train --preset resnet-cifar --config c.json",
        "--preset: can't be combined with --config",
    ),
    *(
        (
            f"train --resume run --{name} x",
            f"--{name}: can't be combined with --resume, which continues with the settings and "
            "in the folder of the run",
        )
        for name in ("preset", "config", "out")
    ),
    (
        "train --resume none",
        "none: expected a run folder (with config.json), got none",
    ),
    ("eval", "the following arguments are required: RUN (see mpelu eval --help)"),
    ("eval none", "none: expected a run folder (with config.json), got none"),
    (
        "eval none --weights first",
        "--weights: unknown value 'first'; choose final, best or last",
    ),
    ("eval none --which best", "unknown option --which (see mpelu eval --help)"),
    ("predict run a.png --top 0", "--top: expected a number >= 1, got 0"),
    ("predict run a.png --top two", "--top: expected an integer, got 'two'"),
    ("models --long", "unknown option --long (see mpelu models --help)"),
    # Code of the user's own
    (
        "train --model nowhere:network",
        "--model: nowhere:network: can't import nowhere: No module named 'nowhere'",
    ),
    ("train --model own:nothing", "--model: own:nothing: own has no 'nothing'"),
    ("train --model own:number", "--model: own:number: expected a callable, got int"),
    ("train --model own:broken", "--model: own:broken raised RuntimeError: it is broken"),
    (
        "train --model own:not_a_module",
        "--model: own:not_a_module: expected a torch.nn.Module, got int",
    ),
    (
        "train --model own:wants_more",
        "--model: own:wants_more needs depth; give it with --model-options depth=VALUE",
    ),
    (
        "train --model own:seven --batch-size 20 --train-limit 20",
        "--model: expected outputs of shape [batch, 10], one per class of the data, got [20, "
        "7] for 20 images",
    ),
    (
        "train --model own:seven --activation mpelu",
        "--activation: own:seven takes no argument activation; to replace the activations "
        "that it has, use --convert mpelu",
    ),
    (
        "train --model own:network --model-options deep=3",
        "--model-options: own:network takes no argument deep",
    ),
    ("train --model own:network --alpha 2", "--alpha: own:network is your own and can't take it"),
    (
        "train --schedule builtins:str",
        "--schedule: builtins:str: expected a finite factor >= 0 at progress 0, got '0.0'",
    ),
    (
        "train --data builtins:list",
        "--data: builtins:list: expected a pair of data sets, train and test, got list",
    ),
    (
        "train --optimizer adam",
        "--optimizer: unknown optimizer 'adam'; did you mean 'adamw'? Choose sgd or adamw",
    ),
    ("train --logger own:number", "--logger: own:number: expected a callable, got int"),
    ("train --logger wandb", "--logger: expected package.module:factory, got 'wandb'"),
    # Other commands
    (
        "compare own:network --data digits --quiet --activations ,",
        "--activations: expected a name, got none",
    ),
    (
        "compare own:network --data digits --quiet --activations own",
        "model: compare swaps activations of the table, such as torch.nn.ReLU(), and "
        "own:network has none; add one, or take it as an argument: def net(num_classes, "
        "activation)",
    ),
    (
        "compare own:network --data digits --quiet --inits best",
        "--inits: unknown initialization 'best'",
    ),
    (
        "compare own:network --data digits --quiet --budget soon",
        "--budget: expected a time such as 90s, 30m or 2h, or steps such as '500 steps', got "
        "'soon'",
    ),
    (
        "compare own:network --data . --data-dir .",
        "--data-dir: can't be combined with the directory --data .",
    ),
    (
        "compare own:network --data digits --quiet --lr fast",
        "--lr: expected a number or auto, got 'fast'",
    ),
    (
        "compare own:network --data digits --quiet --lr auto --budget 20steps",
        "--lr: auto requires a budget of at least 40 steps, got '20steps'; give one rate, "
        "such as --lr 0.1",
    ),
    ("doctor own:network", "doctor: expected --input or --data, got neither"),
    ("doctor own:network --input 3 --data digits", "doctor: expected --input or --data, got both"),
    (
        "doctor own:not_a_module --input 3",
        "model: own:not_a_module needs num_classes; give it with --model-options num_classes=VALUE",
    ),
    ("doctor own:network --input 3xa", "--input: expected a shape such as 3x224x224, got '3xa'"),
    ("doctor own:network --input 32 --seed 1", "--seed: needs --data"),
    ("doctor own:network --input 64 --samples 1", "--samples: expected a number >= 2, got 1"),
    ("inspect", "inspect: expected RUN or --model, got neither"),
    ("inspect none --model nin", "inspect: expected RUN or --model, got both"),
    (
        "inspect --model nin --weights best",
        "--weights: needs RUN: a network before training has no checkpoints",
    ),
    (
        "inspect --model resnet-21",
        "--model: resnet-21: this CIFAR network has 6n+2 layers (8, 14, 20, ...), got 21 "
        "(closest: 20)",
    ),
    (
        "reproduce tabel9",
        "unknown study 'tabel9'; did you mean 'table9'? (`mpelu list` lists all studies)",
    ),
    ("reproduce vgg", "unknown study 'vgg' (`mpelu list` lists all studies)"),
    ("reproduce table9 --cpus-per-run 0", "--cpus-per-run: expected a number > 0, got 0.0"),
    ("reproduce table9 --ray-address auto", "--ray-address: requires --executor ray"),
    (
        "reproduce table7 --scale small",
        "--data-dir: required here: a directory with images in train/CLASS/ and val/CLASS/",
    ),
    ("reproduce table9 --follow blog", "--follow: unknown value 'blog'; choose paper or code"),
    ("report .", ".: expected run folders or results of studies, found none"),
    ("report none", "none: expected a directory with runs, got none"),
    ("verify none", "none: expected a run folder or a directory with some, got none"),
]


@pytest.mark.parametrize(("command", "line"), COMMANDS)
def test_a_command_that_is_refused_writes_nothing_and_says(
    command: str, line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(command.split(), capsys) == line
    assert [path.name for path in here.iterdir()] == ["own.py"]


def npz(**changes: object) -> Callable[[], object]:
    """Reads arrays of which one doesn't fit."""

    def read() -> object:
        arrays = {"images": np.zeros((4, 9, 9, 3), np.uint8), "labels": np.arange(4) % 3}
        for name, values in (("train", {**arrays, **changes}), ("test", arrays)):
            given = {key: value for key, value in values.items() if value is not None}
            np.savez(f"{name}.npz", **given)  # type: ignore[arg-type]
        return data.load(Config(data="npz", data_dir="."), torch.device("cpu"))

    return read


def train(**values: object) -> Callable[[], object]:
    few = {"model": "resnet-8", "epochs": 1, "train_limit": 20, "test_limit": 10}
    return lambda: launch.train(Config.from_values({**few, **values}), "run")


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: Config.from_values({"lr": "fast"}), "lr: expected a number, got 'fast'"),
    (lambda: Config(lr=math.nan), "lr: expected a finite number, got nan"),
    (lambda: Config(lr=1e300), "lr: expected a number <= 1,000,000,000, got 1e+300"),
    (lambda: Config(seed=True), "seed: expected an integer, got True"),
    (lambda: Config.from_values({"nesterov": 1}), "nesterov: expected True or False, got 1"),
    (
        lambda: Config.from_values({"threads": "all"}),
        "threads: expected an integer or None, got 'all'",
    ),
    (lambda: Config(momentum=1.0), "momentum: expected a number < 1, got 1.0"),
    (lambda: Config(weight_decay=-1.0), "weight_decay: expected a number >= 0, got -1.0"),
    (lambda: Config(milestones=(5, 3)), "milestones: expected increasing numbers, got 5, 3"),
    (
        lambda: Config(seed=2**63),
        "seed: expected a number <= 9,223,372,036,854,775,807, got 9223372036854775808",
    ),
    (
        lambda: Config(data="cifar"),
        "data: unknown data set 'cifar'; did you mean 'cifar10'? Choose digits, cifar10, "
        "cifar100, folder or npz (use folder for ImageNet)",
    ),
    (
        lambda: Config(data="imagenet"),
        "data: unknown data set 'imagenet'; choose digits, cifar10, cifar100, folder or npz "
        "(use folder for ImageNet)",
    ),
    (
        lambda: Config(device="opencl"),
        "device: unknown value 'opencl'; choose auto, cpu, cuda or mps",
    ),
    (lambda: Config(nesterov=True, momentum=0.0), "nesterov: requires a momentum above 0, got 0"),
    (lambda: Config(accumulate=200), "accumulate: expected at most the batch size, 128, got 200"),
    (
        lambda: Config(epochs=2, iterations=5),
        "epochs: expected epochs or iterations, got both (2 and 5)",
    ),
    (
        lambda: Config(nesterov=True, optimizer="adamw"),
        "nesterov: requires --optimizer sgd, got adamw",
    ),
    (
        lambda: Config(optimizer="adamw", milestones=(1,), schedule="cosine"),
        "milestones: require --schedule steps, got cosine",
    ),
    (lambda: Config.from_json("[]"), "config: expected an object, got list"),
    (
        lambda: Config.from_json('{"epoch": 1}'),
        "config: unknown field 'epoch'; did you mean 'epochs'?",
    ),
    (lambda: Config.from_json('{"zzz": 1}'), "config: unknown field 'zzz'"),
    (lambda: Options(scale="huge"), "scale: unknown scale 'huge'; choose smoke, small or full"),
    (lambda: Options(follow="blog"), "follow: unknown source 'blog'; choose paper or code"),
    (lambda: Options(seeds=0), "seeds: expected a number >= 1, got 0"),
    (
        lambda: Options(executor="cloud"),
        "executor: unknown executor 'cloud'; choose local or ray",
    ),
    (lambda: Options(jobs=0), "jobs: expected a number >= 1, got 0"),
    (lambda: Options(gpus_per_run=-1), "gpus_per_run: expected a number >= 0, got -1"),
    (lambda: Options(gpus_per_run=1), "gpus_per_run: requires --executor ray"),
    (
        lambda: paper.find("tabel9"),
        "unknown study 'tabel9'; did you mean 'table9'? (`mpelu list` lists all studies)",
    ),
    (
        lambda: preset("resnet"),
        "preset: unknown preset 'resnet'; did you mean 'resnet-cifar'? Choose nin-cifar10, "
        "resnet-cifar, resnet-cifar-dagger or plain-imagenet",
    ),
    (
        lambda: parse_budget("1.5 steps"),
        "budget: expected a time such as 90s, 30m or 2h, or steps such as '500 steps', got "
        "'1.5 steps'",
    ),
    (
        lambda: activation_statistics(nn.ReLU(), []),
        "activation_statistics: expected at least one batch, got none",
    ),
    (
        lambda: activation_statistics(nn.ReLU(), torch.empty(0, 3)),
        "activation_statistics: expected a batch with values, got shape [0, 3]",
    ),
    (
        lambda: activation_statistics(nn.ReLU(), [torch.empty(2, 3, device="meta")]),
        "activation_statistics: expected a batch with values, got one on meta",
    ),
    (
        lambda: activation_statistics(nn.ReLU(), [torch.tensor([[math.nan]])]),
        "activation_statistics: expected a batch without NaN, got NaN",
    ),
    (
        lambda: activation_statistics(nn.LazyLinear(2), torch.ones(1, 2)),
        "activation_statistics: weight is lazy; run the model once to set its shape",
    ),
    (
        lambda: activation_statistics(nn.Sequential(nn.ReLU()), torch.ones(1, 1), layers=["1"]),
        "layers: unknown module '1'; choose 0",
    ),
    (lambda: load_network("none"), "none: expected a run folder (with config.json), got none"),
    (
        lambda: load_network("none", "first"),
        "weights: unknown value 'first'; choose final, best or last",
    ),
    (
        train(model_options={"depth": 3}),
        "model_options: resnet-8: unknown option 'depth'; did you mean 'width'? Choose "
        "width, shortcut or gradient_checkpointing",
    ),
    (
        train(model_options={"num_classes": 100}),
        "model_options: expected num_classes=10, as the data has, got 100",
    ),
    (train(model_options={"alpha": 1}), "model_options: give alpha as --alpha instead"),
    (
        train(model="all-cnn-c"),
        "model: the network can't take a batch of 20 images of 1 x 8 x 8: all-cnn-c: "
        "expected images [batch, 1, height, width] of 9x9 or larger, got [20, 1, 8, 8]",
    ),
    (
        train(activation="gellu"),
        "activation: unknown activation 'gellu'; did you mean 'gelu'? (`mpelu train --help` "
        "lists them)",
    ),
    (train(linear_std=(0.1, 0.1)), "linear_std: expected 1 number, one per linear layer, got 2"),
    (train(device="mps"), "device: no MPS device available"),
    (
        train(model="nin", gradient_checkpointing=True),
        "gradient_checkpointing: expected a residual network, which can recompute its "
        "blocks, got nin",
    ),
    (
        train(data="folder", data_dir="own.py"),
        "data_dir: expected a directory, got the file own.py",
    ),
    (train(initial_weights="none"), "initial_weights: not found: none"),
    (
        train(data="cifar10", crop=40, augment="crop-flip"),
        "crop: expected at most the image size, 32, got 40",
    ),
    (npz(images=None), "train.npz: expected arrays images and labels, got no images"),
    (npz(labels=np.arange(7)), "data: train.npz: expected 4 integer labels, got int64 [7]"),
    (npz(labels=np.full(4, -1)), "data: *.npz: expected labels from 0 to 99,999, got -1 to -1"),
    (
        npz(images=np.zeros((4, 0, 9, 3), np.uint8)),
        "data: train.npz: expected images with pixels, got shape [4, 0, 9, 3]",
    ),
    (
        npz(images=np.zeros((4, 9, 9, 5), np.uint8)),
        "data: train.npz: expected images with 1 or 3 channels, got shape [4, 9, 9, 5]",
    ),
    (
        npz(images=np.zeros((4, 9, 9, 3))),
        "data: train.npz: expected images of type uint8, got float64",
    ),
    (
        npz(classes=np.array("cat")),
        "data: train.npz: expected classes as a list of names, got shape []",
    ),
    (npz(classes=np.array(["cat"])), "data: *.npz: expected a name for each of 3 classes, got 1"),
    (
        npz(images=np.zeros((4, 9, 8, 3), np.uint8)),
        "data: *.npz: expected test images of the size of the training images, [3, 9, 8], got "
        "[3, 9, 9]",
    ),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("call", "line"), CALLS, ids=[line for _, line in CALLS])
def test_a_call_that_is_refused_says(call: Callable[[], object], line: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        call()
    assert str(refusal.value) == line
