"""What a run does and what its folder holds."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from train_helpers import rows, small

import mpelu
from mpelu import models
from mpelu.lab import data
from mpelu.lab.config import Config
from mpelu.lab.environment import describe_run
from mpelu.lab.optimization import build_optimizer
from mpelu.lab.run import checkpoint
from mpelu.lab.run import folder as runs
from mpelu.lab.training import network
from mpelu.lab.training.display import Lines
from mpelu.lab.training.launch import train
from mpelu.lab.training.process import derive, epoch_batches, session
from mpelu.lab.training.step import set_lr
from mpelu.lab.training.trainer import Outcome, Trainer


def test_a_run_is_what_a_plain_loop_computes(tmp_path: Path) -> None:
    """The engine against torch's own parts, put together by hand."""
    config = small(
        weight_decay=0.01, nesterov=True, milestones=(2,), gamma=0.5, bias_lr_mult=2.0, lr=0.05
    )
    train(config, tmp_path / "run")
    torch.manual_seed(0)
    dataset = data.load(config, torch.device("cpu"))
    model = network.build(config, 10, 1, 8)
    assert isinstance(model, models.residual.ResidualNetwork)
    activation = [p for m in model.modules() if isinstance(m, mpelu.MPELU) for p in m.parameters()]
    bias = [model.classifier.bias]
    special = {id(p) for p in activation + bias}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if id(p) not in special]},
        {"params": activation, "lr": 0.25},
        {"params": bias, "lr": 0.1},
    ]
    sgd = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [2], 0.5)
    for epoch in (1, 2, 3):
        batches = epoch_batches(96, 20, 0, epoch)
        for images, labels in dataset.train(batches, derive(0, epoch, "augment")):
            sgd.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            sgd.step()
        scheduler.step()
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


def test_the_run_folder(tmp_path: Path) -> None:
    run, config = tmp_path / "new" / "run", small(data_dir="unused")
    outcome = train(config, run)
    seen = runs.read(run)
    assert seen.problems == ()
    assert seen.config == json.loads(config.to_json())
    assert {path.name for path in run.iterdir()} == {
        "config.json", "environment.json", "data.json", "preprocess.safetensors", "metrics.jsonl",
        "speed.jsonl", "status.json", "activations", "checkpoints", "model.safetensors", "lock",
        "metrics.csv",
    }  # fmt: skip
    assert [row["step"] for row in seen.steps] == [4, 8, 12]
    assert [row["step"] for row in seen.tests] == [5, 10, 15]
    assert [row["epoch"] for row in seen.tests] == [1, 2, 3]
    assert set(seen.steps[0]) == {"kind", "step", "epoch", "loss", "error", "lr"}
    best = min(seen.tests, key=lambda row: row["test_error"])
    told = seen.status
    assert (told["state"], told["step"], told["steps"], told["epoch"]) == ("finished", 15, 15, 3)
    assert told["test_error"] == seen.tests[-1]["test_error"] == outcome.test_error
    assert told["best_error"] == best["test_error"] == outcome.best_error
    assert told["best_step"] == best["step"]
    assert {"pid", "host", "updated", "message"} < set(told)
    assert {"torch", "cpu", "cores", "threads", "command", "settings"} < set(seen.environment)
    about = json.loads((run / "data.json").read_text())
    assert (about["name"], about["channels"], about["size"]) == ("digits", 1, 8)
    assert (about["train_count"], about["test_count"]) == (96, 32)
    speeds = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines()]
    assert [row["step"] for row in speeds] == [4, 8, 12]
    assert all(row["images_per_second"] > 0 for row in speeds)


def test_rows_are_means_over_the_samples_since(tmp_path: Path) -> None:
    every = tmp_path / "every"
    train(small(log_every=1), every)
    train(small(log_every=4), tmp_path / "fourth")
    steps = [row for row in rows(every) if row["kind"] == "step"]
    counts = [20, 20, 20, 20, 16] * 3
    for row in rows(tmp_path / "fourth"):
        first = row["step"] - 4 if row["kind"] == "step" else row["step"] - 5
        span = slice(first, row["step"])
        total = sum(each["loss"] * n for each, n in zip(steps[span], counts[span], strict=True))
        mean = total / sum(counts[span])
        found = row["loss"] if row["kind"] == "step" else row["train_loss"]
        assert found == pytest.approx(mean)


def test_snapshots_of_activations(tmp_path: Path) -> None:
    train(small(epochs=2), tmp_path / "run")
    folder = tmp_path / "run" / runs.SNAPSHOTS
    assert sorted(path.name for path in folder.iterdir()) == [
        f"epoch-000{epoch}.safetensors" for epoch in (0, 1, 2)
    ]
    start = load_file(folder / "epoch-0000.safetensors")
    assert all((value == 1).all() for value in start.values())
    last = load_file(folder / "epoch-0002.safetensors")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert set(last) == {name for name in weights if name.endswith((".alpha", ".beta"))}
    assert all(torch.equal(last[name], weights[name]) for name in last)


def test_prelu_is_kept_and_relu_has_nothing_to_keep(tmp_path: Path) -> None:
    kept = {}
    for name in ("prelu", "relu"):
        (tmp_path / name / runs.SNAPSHOTS).mkdir(parents=True)
        model = network.build(small(activation=name), 10, 1, 8)
        checkpoint.write_snapshot(tmp_path / name, 0, model)
        kept[name] = runs.find_snapshots(tmp_path / name)
    found = checkpoint.read_snapshot(kept["prelu"][0]).tensors
    assert found
    assert all(name.endswith(".weight") for name in found)
    assert kept["relu"] == {}


def test_learns_the_digits(tmp_path: Path) -> None:
    config = small(
        train_limit=None, test_limit=None, epochs=3, batch_size=64, augment="none",
        model_options={"width": 8},
    )  # fmt: skip
    outcome = train(config, tmp_path / "run")
    assert outcome.test_error is not None
    assert outcome.test_error < 15


@pytest.mark.parametrize(
    "values",
    [
        {"accumulate": 7},
        {"gradient_checkpointing": True},
        {"channels_last": True},
    ],
)
def test_ways_to_compute_the_same(tmp_path: Path, values: dict[str, Any]) -> None:
    """Batch norm sees parts of a batch, so these networks have none."""
    base = {
        "model": "plain-15",
        "model_options": {"width": 2, "fc_width": 8, "batch_norm": False},
        "image_size": 19,
        "augment": "none",
        "epochs": 1,
    }
    if "gradient_checkpointing" in values:
        base = {"epochs": 1}
    train(small(**base), tmp_path / "plain")
    train(small(**base, **values), tmp_path / "other")
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("plain", "other"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)


def test_bfloat16_rounds_and_still_learns(tmp_path: Path) -> None:
    config = small(train_limit=None, epochs=2, batch_size=64, augment="none")
    single = train(config, tmp_path / "single")
    half = train(small(**{**vars_of(config), "precision": "bf16"}), tmp_path / "half")
    assert rows(tmp_path / "single")[0]["loss"] != rows(tmp_path / "half")[0]["loss"]
    assert half.test_error == pytest.approx(single.test_error, abs=10)


def vars_of(config: Config) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.to_json())
    return values | {"milestones": ()}


def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch.compile's front end, which is quick; what code it makes isn't the engine's."""
    backends = []

    def compile(module: torch.nn.Module) -> None:
        backends.append(type(module).__name__)
        torch.nn.Module.compile(module, backend="eager")

    monkeypatch.setattr(models.residual.ResidualNetwork, "compile", compile, raising=False)
    config = {"model_options": {"width": 2}, "epochs": 1, "train_limit": 36}
    train(small(**config), tmp_path / "plain")
    train(small(**config, compile=True), tmp_path / "compiled")
    assert backends == ["ResidualNetwork"]
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("plain", "compiled"))
    assert set(one) == set(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)


def test_deep_supervision_weighs_its_companions(tmp_path: Path) -> None:
    config = small(model="dsn", activation="relu", model_options={}, train_limit=20, epochs=1, lr=1)
    outcome = train(config, tmp_path / "run")
    assert outcome.state == "finished"
    before = network.build(config, 10, 1, 8).state_dict()
    after = load_file(tmp_path / "run" / "model.safetensors")
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any(name.startswith("companions") for name in moved)
    assert any(name.startswith("stages") for name in moved)


def test_the_caller_keeps_random_numbers_and_threads(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(small(train_limit=20, epochs=1, threads=2), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == 1


def test_in_another_thread(tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(train(small(epochs=1), tmp_path / "run"))
    )
    thread.start()
    thread.join()
    assert [outcome.state for outcome in outcomes] == ["finished"]


def test_tensorboard_events(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is optional"
    )

    train(small(), tmp_path / "run", tensorboard=True)
    events = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {"step/loss", "step/error", "step/lr", "test/test_error"} <= set(
        events.Tags()["scalars"]
    )
    expected = [row["test_error"] for row in rows(tmp_path / "run") if row["kind"] == "test"]
    found = [event.value for event in events.Scalars("test/test_error")]
    assert found == pytest.approx(expected)


def test_every_setting_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(
        milestones=(2,), warmup=1, init="msra", init_mode="fan_out", last_lr_mult=0.1,
        bias_lr_mult=2, bias_decay_mult=0, linear_std=(0.01,), nesterov=True,
    )  # fmt: skip
    train(config, tmp_path / "run", display=Lines())
    output = " ".join(capsys.readouterr().out.split())  # lines are folded to the terminal
    for expected in (
        "resnet-8, ", " parameters, activation mpelu, width=4", "digits, 96 training images, 32",
        "(x - mean) / std per channel, mean 7", "std 9",
        "msra, fan_out, linear layers with standard deviation 0.01",
        "padded by 4 pixels, random 8 x 8 crop, random horizontal flip",
        "momentum 0.9, Nesterov", "with learning rate x 5, weight decay x 1", "rate x 0.1,",
        "milestones 2, gamma 0.1, warm-up 1, momentum 0.9", "15 steps in 3 epochs",
        "precision fp32", "cpu, 1 thread,", "test error",
    ):  # fmt: skip
        assert expected in output, expected
    assert "finished after 15 steps" in output


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(small(epochs=1), tmp_path / "run")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_groups_and_their_counts() -> None:
    config = small(last_lr_mult=0.1, bias_lr_mult=2.0, bias_decay_mult=0.0)
    model = network.build(config, 10, 1, 8)
    sgd = build_optimizer(model, config, network.last_layer(model, config, 1, 8))
    total = sum(p.numel() for group in sgd.param_groups for p in group["params"])
    assert total == sum(p.numel() for p in model.parameters())
    set_lr(sgd, 0.5)
    assert {group["lr"] for group in sgd.param_groups} == {0.5, 2.5, 0.05}


def by_name(**values: Any) -> dict[str, tuple[float, float]]:
    """Learning rate and weight decay of each parameter, as multiples of the config's."""
    config = small(weight_decay=0.5, **values)
    model = network.build(config, 10, 1, 8)
    of = {
        id(parameter): (group["lr"] / config.lr, group["weight_decay"] / 0.5)
        for group in build_optimizer(
            model, config, network.last_layer(model, config, 1, 8)
        ).param_groups
        for parameter in group["params"]
    }
    return {name: of[id(parameter)] for name, parameter in model.named_parameters()}


def test_the_multipliers_of_the_paper() -> None:
    of = by_name(
        model="mpelu-resnet-a-8", bias_lr_mult=2.0, bias_decay_mult=0.0, activation_decay_mult=3.0,
        beta_decay_mult=0.0, last_lr_mult=0.125,
    )  # fmt: skip
    # The last layer has a rate of its own and keeps its decay.
    assert (of.pop("classifier.weight"), of.pop("classifier.bias")) == ((0.125, 1), (0.125, 0))
    for name, found in of.items():
        if name.endswith("alpha"):
            assert found == (5, 3)
        elif name.endswith("beta"):
            assert found == (5, 0)
        else:  # a norm layer's bias isn't a layer's
            assert found == (1, 1), name
    nin = by_name(
        model="nin", model_options={}, image_size=20, bias_lr_mult=2.0, bias_decay_mult=0.0,
        activation="prelu", activation_decay_mult=0.0, crop=20,
    )  # fmt: skip
    prelu = {name for name, found in nin.items() if found == (1, 0)}
    biases = {name for name in nin if name.endswith("bias")}
    assert {name for name, found in nin.items() if found == (2, 0)} == biases
    assert len(prelu) == len(biases)


def multipliers(**values: Any) -> set[tuple[float, float]]:
    """Learning rate and weight decay of each group, as multiples of the config's."""
    config = small(weight_decay=0.5, **values)
    model = network.build(config, 10, 1, 8)
    groups = build_optimizer(model, config).param_groups
    return {(group["lr"] / config.lr, group["weight_decay"] / 0.5) for group in groups}


def test_decoupled_weight_decay_spares_activations() -> None:
    assert multipliers() == multipliers(optimizer="torch.optim:SGD") == {(1, 1), (5, 1)}
    for name in ("adamw", "torch.optim:AdamW", "torch.optim:Adafactor"):
        assert multipliers(optimizer=name) == {(1, 1), (5, 0)}
        assert multipliers(optimizer=name, activation_decay_mult=2.0) == {(1, 1), (5, 0.4)}
        assert multipliers(optimizer=name, activation="prelu") == {(1, 1), (1, 0)}
        assert multipliers(optimizer=name, activation="relu", bias_lr_mult=2.0) >= {(2, 0.5)}
    assert multipliers(optimizer="torch.optim:Adam") == {(1, 1), (5, 1)}
    assert multipliers(activation="relu") == {(1, 1)}


def test_the_decay_of_activations_follows_the_optimizer() -> None:
    of = {name: small(optimizer=name).activation_decay_mult for name in ("sgd", "adamw", "mine:a")}
    assert of == {"sgd": 1.0, "adamw": 0.0, "mine:a": None}
    for name in of:
        config = small(optimizer=name)
        assert Config.from_json(config.to_json()) == config
        other = small(optimizer=name, activation_decay_mult=1.0)
        assert (config.fingerprint() == other.fingerprint()) == (name == "sgd")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "the network's own, taylor fan_out, slope 1"),
        ({"alpha": 0.25, "linear_std": (0.5,)}, "own, taylor fan_out, slope 0.25, linear layers"),
        ({"model": "nin", "model_options": {}, "image_size": 20}, "own, gaussian std 0.05"),
        (
            {"model": "plain-15", "model_options": {"fc_width": 8}, "image_size": 19},
            "own, taylor fan_in, slope 1, linear layers std 0.01, 0.01, 0.01",
        ),
        ({"preprocess": "gcn-zca"}, "normalized to norm 55, then ZCA-whitened with 0.1 added to"),
        ({"image_size": 12, "crop": 10}, "random 10 x 10 crop, random horizontal flip"),
        ({"image_size": 12, "crop": 10}, "resized to 12 x 12; (x - mean)"),
        ({"crop": 6, "augment": "none"}, "none; center crop 6 x 6"),
    ],
)
def test_settings_in_words(tmp_path: Path, values: dict[str, Any], expected: str) -> None:
    with session(small(**values)) as world:
        trainer = Trainer(small(**values), tmp_path / "run", world)
        told = describe_run(
            trainer.config,
            trainer.dataset,
            trainer.model,
            trainer.optimizer,
            trainer.schedule,
            world,
        )
    assert expected in "\n".join(told.values())


ALLOCATIONS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def faults(size=8 << 20, times=20):
    '''Pages faulted in while a block is allocated, filled and freed over and over.'''
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

from mpelu.lab.training.process import keep_freed_memory
usual = faults()
with keep_freed_memory():
    kept = faults()
print(usual, kept, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's thresholds")
def test_memory_is_kept_after_a_run_as_it_was_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATIONS], capture_output=True, text=True, check=True
    )
    usual, kept, after = map(int, done.stdout.split())
    block = (8 << 20) // 4096
    assert max(usual, kept, after) < 4 * block, (usual, kept, after)  # 20 * block if none is kept
