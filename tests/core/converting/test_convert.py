"""convert: what is swapped, with how many channels, in which dimension, and what is left."""

from __future__ import annotations

import copy
import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from convert_models import Bottleneck, ChannelsLast, Functional, ResNet, Untraceable
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import mpelu
from mpelu import MPELU, models
from mpelu.converting import Conversion, MPELUByWidth


def swapped(conversion: Conversion) -> dict[str, tuple[tuple[int, ...], int | None]]:
    return {row.path: (row.channels, row.dim) for row in conversion.swapped}


# Channels


def test_channels_of_convolutions_norms_and_linear_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 8, 3),
        nn.SiLU(), nn.Flatten(), nn.Linear(128, 10), nn.PReLU(), nn.Linear(10, 2), nn.Sigmoid(),
    )  # fmt: skip
    conversion = mpelu.convert(model, torch.randn(2, 3, 8, 8))
    assert conversion.model is model
    assert swapped(conversion) == {"2": ((16,), 1), "4": ((8,), 1), "7": ((10,), -1)}
    assert type(model[9]) is nn.Sigmoid
    assert all(type(model[index]) is MPELU for index in (2, 4, 7))
    assert model(torch.randn(5, 3, 8, 8)).shape == (5, 2)


def test_channels_of_tokens_are_last_whatever_their_number() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 5), nn.LayerNorm(5), nn.ReLU())
    conversion = mpelu.convert(model, torch.randn(5, 5, 6))
    assert swapped(conversion) == {"1": ((5,), -1), "4": ((5,), -1)}


def test_a_permuted_map_has_its_channels_last_and_first_again() -> None:
    model: Any = ChannelsLast(8)
    conversion = mpelu.convert(model, torch.randn(2, 8, 8, 8))
    assert swapped(conversion) == {"act": ((32,), -1), "last": ((8,), 1)}
    # By hand: alpha of channel 3 acts on channel 3.
    with torch.no_grad():
        model.last.alpha.copy_(torch.arange(8.0))
    y = torch.full((1, 8, 2, 2), -1.0)
    expected = torch.arange(8.0) * torch.expm1(torch.tensor(-1.0))
    assert_close(model.last(y)[0, :, 1, 0], expected)


class Reshaped(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.how, self.act = nn.Conv2d(3, 8, 1), how, nn.ReLU()
        self.linear = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        maps, tokens = self.conv(x), self.linear(x)  # [2, 8, 4, 4] and [2, 3, 4, 12]
        ways: dict[str, Callable[[], Tensor]] = {
            "flatten space": lambda: maps.flatten(2),
            "to tokens": lambda: maps.flatten(2).transpose(1, 2),
            "features": lambda: maps.reshape(2, -1),
            "movedim": lambda: maps.movedim(1, -1),
            "mean": lambda: maps.mean((2, 3)),
            "pool": lambda: F.max_pool2d(maps, 2),
            "chunk": lambda: maps.chunk(2, 1)[1],
            "cat": lambda: torch.cat([maps, maps], 1),
            "gate": lambda: maps.mean((2, 3), keepdim=True) * maps,
            "unsqueeze": lambda: maps.mean((2, 3)).unsqueeze(1),
            "first token": lambda: tokens[:, 0],
            "heads": lambda: tokens.view(2, 3, 4, 3, 4),
            "product": lambda: torch.softmax(tokens @ tokens.mT, -1) @ tokens,
            "swapped": lambda: tokens.transpose(-1, -2),
        }
        shown: Tensor = self.act(ways[self.how]())
        return shown


@pytest.mark.parametrize(
    ("how", "channels", "dim"),
    [
        ("flatten space", 8, 1),
        ("to tokens", 8, -1),
        ("features", 128, 1),
        ("movedim", 8, -1),
        ("mean", 8, 1),
        ("pool", 8, 1),
        ("chunk", 4, 1),
        ("cat", 16, 1),
        ("gate", 8, 1),
        ("unsqueeze", 8, -1),
        ("first token", 12, -1),
        ("heads", 4, -1),
        ("product", 12, -1),
        ("swapped", 12, 2),
    ],
)
def test_channels_are_followed_through_changes_of_shape(how: str, channels: int, dim: int) -> None:
    conversion = mpelu.convert(Reshaped(how), torch.randn(2, 3, 4, 4))
    assert swapped(conversion) == {"act": ((channels,), dim)}
    assert ("guessed" in conversion.rows[0].source) == (how == "heads")


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.act(self.query(x) @ self.key(x).mT)
        return scores @ x


def test_attention_scores_have_no_channels() -> None:
    """Their width is the length of the sequence, which changes."""
    conversion = mpelu.convert(model := Scores(), torch.randn(2, 7, 4))
    assert swapped(conversion) == {"act": ((1,), None)}
    assert "no channels found" in conversion.rows[0].note
    assert model(torch.randn(2, 9, 4)).shape == (2, 9, 4)


@pytest.mark.parametrize("how", ["reshape", "flatten", "halves", "linear of itself"])
def test_a_batch_is_never_taken_for_channels(how: str) -> None:
    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(8, 6), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            ways: dict[str, Callable[[], Tensor]] = {
                "reshape": lambda: h.reshape(-1),
                "flatten": lambda: h.flatten(),
                "halves": lambda: h.reshape(2, -1),
                "linear of itself": lambda: F.linear(h, h),
            }
            shown: Tensor = self.act(ways[how]())
            return shown

    for size in (4, 1) if how == "reshape" else (4,):
        conversion = mpelu.convert(model := Batched(), torch.randn(size, 8))
        assert swapped(conversion) == {"act": ((1,), None)}
        assert "no channels found" in conversion.rows[0].note
        model(torch.randn(10, 8))


def test_frames_that_go_back_into_features_have_channels() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(8, 6), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            frames = self.linear(x.flatten(0, 1))
            shown: Tensor = self.act(frames.view(x.size(0), -1))
            return shown

    model = Frames()
    assert swapped(mpelu.convert(model, torch.randn(3, 5, 8))) == {"act": ((30,), -1)}
    assert model(torch.randn(7, 5, 8)).shape == (7, 30)


def test_a_user_says_which_dimension() -> None:
    assert swapped(mpelu.convert(Scores(), torch.randn(2, 7, 4), dim={"act": -1})) == {
        "act": ((7,), -1)
    }
    assert swapped(mpelu.convert(ChannelsLast(8), torch.randn(2, 8, 6, 5), dim=1)) == {
        "act": ((6,), 1), "last": ((8,), 1),
    }  # fmt: skip


def test_the_layer_behind_tells_where_nothing_before_does() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(7, 3), nn.ReLU())
    conversion = mpelu.convert(model, torch.randn(2, 5, 7))
    assert swapped(conversion) == {"0": ((7,), -1), "2": ((3,), -1)}
    assert conversion.rows[0].source == "1 (Linear), which takes it"
    model = nn.Sequential(nn.ReLU(), nn.Conv1d(5, 3, 1))
    assert swapped(mpelu.convert(model, torch.randn(2, 5, 7))) == {"0": ((5,), 1)}


# Several widths, several places


def test_one_relu_for_several_widths_becomes_one_mpelu_per_width() -> None:
    conversion = mpelu.convert(model := ResNet(), torch.randn(2, 3, 8, 8))
    assert swapped(conversion) == {f"layer1.{i}.relu": ((8, 16), 1) for i in range(2)}
    block: Any = model.layer1[0]
    assert type(block.relu) is MPELUByWidth
    narrow: Any = block.relu.widths["8"]
    with torch.no_grad():
        narrow.alpha.fill_(0.5)
    y = torch.full((1, 8, 1, 1), -1.0)
    assert_close(block.relu(y), 0.5 * torch.expm1(y))
    assert_close(block.relu(y.repeat(1, 2, 1, 1)), torch.expm1(y).repeat(1, 2, 1, 1))
    names = [name for name, _ in block.relu.named_parameters()]
    assert names == [f"widths.{width}.{each}" for width in (8, 16) for each in ("alpha", "beta")]


def test_a_width_that_the_inputs_did_not_show_is_refused() -> None:
    mpelu.convert(model := ResNet(), torch.randn(2, 3, 8, 8))
    block: Any = model.layer1[0]
    with pytest.raises(ValueError, match=r"^MPELUByWidth: expected 8 or 16 channels .* got 4 in"):
        block.relu(torch.randn(2, 4, 3, 3))
    with pytest.raises(ValueError, match=r"got no in input of shape \[3\]"):
        block.relu(torch.randn(3))


def test_one_width_at_several_calls_shares_alpha_and_beta() -> None:
    model: Any = Bottleneck(8, 8)
    conversion = mpelu.convert(model, torch.randn(2, 8, 4, 4))
    assert swapped(conversion) == {"relu": ((8,), 1)}
    assert type(model.relu) is MPELU


def test_an_activation_in_several_places_becomes_several() -> None:
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 8), act)
    assert swapped(mpelu.convert(model, torch.randn(2, 4))) == {"1": ((6,), -1), "3": ((8,), -1)}
    assert model[1] is not model[3]


def test_parameters_in_several_places_stay_shared() -> None:
    act = nn.PReLU()
    model = nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 6), act)
    mpelu.convert(model, torch.randn(2, 4))
    assert model[1] is model[3]


@pytest.mark.parametrize("skip", ["1", "3"])
def test_parameters_in_several_places_stay_shared_if_one_is_skipped(skip: str) -> None:
    act = nn.PReLU()
    model = nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 6), act, nn.ReLU())
    conversion = mpelu.convert(model, torch.randn(2, 4), skip=skip, keep_function=True)
    assert model[1] is model[3] is act
    notes = {row.path: row.note for row in conversion.left}
    assert notes.pop(skip) == "skipped"
    assert list(notes.values()) == ["its parameters are shared with one that is left"]


def test_channels_in_different_dimensions_are_left() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear, self.act = nn.Conv1d(3, 6, 1), nn.Linear(5, 6), nn.ReLU()
            self.other = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            shown: Tensor = self.other(self.act(self.linear(x)) + self.act(self.conv(x)).mean())
            return shown

    conversion = mpelu.convert(model := Both(), torch.randn(2, 3, 5))
    assert [row.path for row in conversion.left] == ["act"]
    assert "different dimensions" in conversion.left[0].note
    assert type(model.act) is nn.ReLU


# What is an activation


def test_classes_of_others_count_by_what_they_compute() -> None:
    class QuickGELU(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(1.702 * x)

    class Swish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = F.silu

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    class Halve(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    model = nn.Sequential(nn.Linear(4, 6), QuickGELU(), Halve(), nn.Linear(6, 8), Swish())
    assert swapped(mpelu.convert(model, torch.randn(2, 4))) == {"1": ((6,), -1), "4": ((8,), -1)}


def test_functions_in_attributes_become_modules() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    reference = copy.deepcopy(model)
    x = torch.randn(2, 5, 8)
    conversion = mpelu.convert(model, x, keep_function=True)
    assert swapped(conversion) == {f"layers.{i}.activation": ((16,), -1) for i in range(2)}
    with torch.no_grad():  # where torch would take its fast path
        assert_close(model(x), reference(x), rtol=0, atol=1e-5)
        for each in mpelu.activations.learnable_parameters(model):
            each.parameter.fill_(0.7)
        expected = model.train()(x)
        assert_close(model.eval()(x), expected)
        assert (expected - reference(x)).abs().max() > 1e-3


def test_only_the_classes_named() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 8), nn.SiLU(), nn.Tanh())
    assert list(swapped(mpelu.convert(model, torch.randn(2, 4), replace=(nn.SiLU,)))) == ["3"]
    assert list(swapped(mpelu.convert(model, torch.randn(2, 4), replace=[nn.Tanh]))) == ["4"]


def test_a_registered_activation_is_swapped_too() -> None:
    class Bend(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(channels, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * x.tanh()

    mpelu.register_activation("bend", Bend)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), Bend(6))
    assert swapped(mpelu.convert(model, torch.randn(2, 3, 4, 4))) == {"1": ((6,), 1)}


@pytest.mark.parametrize("pattern", ["layer1", "layer1.1", "layer1.1.relu", "*.1.relu", "layer*"])
def test_skipped_paths(pattern: str) -> None:
    class Twice(ResNet):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            shown: Tensor = self.act(super().forward(x))
            return shown

    conversion = mpelu.convert(model := Twice(), torch.randn(2, 3, 8, 8), skip=pattern)
    kept = [path for path, module in model.named_modules() if type(module) is nn.ReLU]
    assert kept == [row.path for row in conversion.left]
    assert "layer1.1.relu" in kept
    assert "act" not in kept
    assert all(row.note == "skipped" for row in conversion.left)


def test_what_the_inputs_do_not_reach_is_left() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    model[0].spare = nn.ReLU()
    conversion = mpelu.convert(model, torch.randn(2, 4))
    assert [(row.path, row.note) for row in conversion.left] == [
        ("0.spare", "not called on the example inputs")
    ]


def test_calls_of_functions_are_named_with_file_and_line() -> None:
    model = nn.Sequential(Functional(), nn.Linear(4, 4), nn.ReLU())
    conversion = mpelu.convert(model, torch.randn(2, 3, 6, 6))
    source = Path(Functional.forward.__code__.co_filename).read_text().splitlines()
    assert len(conversion.left) == 4
    for row, text in zip(
        conversion.left, ["F.relu(", "x.relu_()", ".relu()", "torch.relu("], strict=True
    ):
        place = row.note.partition("called at ")[2].partition(";")[0]
        name, _, line = place.rpartition(":")
        assert row.path == "0"
        assert Path(name).name == "convert_models.py"
        assert text in source[int(line) - 1]


# What the new parameters are like


def test_dtype_device_mode_and_freedom_are_those_around() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU()).requires_grad_(False),
        nn.Sequential(nn.Linear(6, 6), nn.ReLU()),
    ).to(torch.bfloat16).eval()  # fmt: skip
    mpelu.convert(model, torch.randn(2, 4, dtype=torch.bfloat16))
    frozen, free = (model.get_submodule(path) for path in ("0.1", "1.1"))
    assert isinstance(frozen, MPELU)
    assert isinstance(free, MPELU)
    assert frozen.alpha.dtype == free.alpha.dtype == torch.bfloat16
    assert not frozen.alpha.requires_grad
    assert free.beta.requires_grad
    assert not free.training


def test_initial_values_and_shared_parameters() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    conversion = mpelu.convert(model, alpha=0.25, beta=2.0, shared=True)
    assert conversion.rows[0].channels == (1,)
    assert (model[1].alpha.tolist(), model[1].beta.tolist()) == ([0.25], [2.0])


def test_hooks_move_to_the_new_module_and_can_be_removed() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    seen: list[Tensor] = []
    handle = model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    mpelu.convert(model, torch.randn(2, 4))
    seen.clear()
    output = model(torch.randn(3, 4))
    assert len(seen) == 1
    assert seen[0] is output
    handle.remove()
    model(torch.randn(3, 4))
    assert len(seen) == 1


def test_a_model_that_counts_on_an_activation_in_place() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.act = nn.Linear(4, 6), nn.Linear(6, 2), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            self.act(x)
            shown: Tensor = self.two(x)
            return shown

    model, x = Careless(), torch.randn(8, 4)
    expected = model(x)
    assert mpelu.convert(model, x, keep_function=True).difference is not None
    assert model.act.inplace
    assert_close(model(x), expected, rtol=0, atol=1e-5)


def test_random_state_weights_and_statistics_are_untouched() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    mpelu.convert(model, torch.ones(2, 4))
    assert torch.equal(torch.randn(2), expected)
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)


# The same function


@pytest.mark.parametrize("activation", ["relu", "elu", "celu"])
@pytest.mark.parametrize("network", ["plain-15", "resnet-20"])
def test_relu_and_elu_are_kept(activation: str, network: str) -> None:
    torch.manual_seed(0)
    size: dict[str, Any] = {"input_size": 19, "width": 8} if network == "plain-15" else {}
    model = models.create(network, activation=activation, **size).eval()
    x = torch.randn(4, 3, *[19 if size else 32] * 2)
    reference = copy.deepcopy(model)
    conversion = mpelu.convert(model, x, keep_function=True)
    with torch.no_grad():
        expected, found = reference(x), model(x)
    off = ((found - expected).abs().max() / expected.abs().max()).item()
    assert off <= 1e-5
    assert conversion.difference is not None
    assert conversion.difference <= 1e-5
    assert {row.error for row in conversion.rows} == {1e-6 if activation == "relu" else 0.0}
    loaded = conversion.load_state_dict(reference.state_dict())
    assert len(loaded.new) == 2 * len(conversion.rows)
    assert loaded.dropped == []


@pytest.mark.parametrize(
    "module", [nn.LeakyReLU(0.1), nn.LeakyReLU(0.01), nn.PReLU(), nn.PReLU(6, 0.3)]
)
def test_leaky_relus_are_kept_exactly(module: nn.Module) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), copy.deepcopy(module))
    if isinstance(module, nn.PReLU) and module.num_parameters > 1:
        with torch.no_grad():
            model[1].weight[:2] = torch.tensor([0.0, -0.5])
    reference, x = copy.deepcopy(model), 5 * torch.randn(512, 4)
    conversion = mpelu.convert(model, x, keep_function=True)
    assert conversion.rows[0].error == 0
    assert conversion.difference == 0
    assert torch.equal(model(x), reference(x))
    assert model[1].coordinates == "slope"
    assert model[1].rate.tolist() == [0.0] * 6


def test_without_inputs_a_leaky_relu_is_kept_exactly_too() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.1))
    reference, x = copy.deepcopy(model), torch.randn(8, 4)
    mpelu.convert(model, keep_function=True)
    assert torch.equal(model(x), reference(x))


def test_a_large_alpha_is_kept_in_slope_and_rate() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.CELU(20.0))
    reference, x = copy.deepcopy(model), torch.randn(8, 4)
    mpelu.convert(model, x, keep_function=True)
    assert model[1].coordinates == "slope"
    assert_close(model(x), reference(x))


def test_slope_and_rate_to_start_from() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    mpelu.convert(model, torch.randn(2, 4), slope=0.25)
    assert model[1].slope.tolist() == [0.25] * 6
    assert model[1].rate.tolist() == [1.0] * 6


def test_prelu_slopes_of_a_checkpoint_go_to_slope() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 6, 1), nn.PReLU(6), nn.Conv2d(6, 2, 1))
    trained: Any = copy.deepcopy(model)
    with torch.no_grad():
        trained[1].weight.uniform_(0.1, 0.5)
    x = torch.randn(4, 3, 5, 5)
    conversion = mpelu.convert(model, x, keep_function=True)
    loaded = conversion.load_state_dict(trained.state_dict())
    assert loaded.dropped == ["1.weight"]
    assert torch.equal(model[1].slope, trained[1].weight)
    assert_close(model(x), trained(x), rtol=0, atol=0)


def momentum(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)


def _losses(model: nn.Module, optimizer: Any, lr: float, steps: int = 40) -> list[float]:
    """Losses of a classification that a random teacher labels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(64, 3, 8, 8, generator=generator)
    teacher = torch.randn(3 * 64, 10, generator=generator)
    labels = (images.flatten(1) @ teacher).argmax(1)
    groups = mpelu.param_groups(model, lr=lr, weight_decay=1e-4, optimizer=optimizer)
    made = optimizer(groups, lr=lr)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels)
        made.zero_grad()
        loss.backward()
        made.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("optimizer", "lr"), [(momentum, 0.1), (torch.optim.AdamW, 0.01)])
def test_a_converted_prelu_network_is_fine_tuned_at_ordinary_rates(
    optimizer: Any, lr: float
) -> None:
    """With SGD, the same network doesn't learn in alpha and beta, as the paper writes PReLU."""
    torch.manual_seed(0)
    model = mpelu.models.create("resnet-8", activation="prelu", width=8)
    paper = copy.deepcopy(model)
    mpelu.convert(model, torch.randn(2, 3, 8, 8), keep_function=True)
    mpelu.convert(paper, torch.randn(2, 3, 8, 8), alpha=25.0, beta=0.01)
    losses = _losses(model, optimizer, lr)
    assert losses[-1] < losses[0] / 2
    if optimizer is momentum:  # AdamW's steps don't depend on the size of the gradients
        assert not _losses(paper, optimizer, lr)[-1] < losses[0] / 2


def test_functions_that_no_mpelu_equals_are_left_with_the_reason() -> None:
    others = [nn.SiLU(), nn.GELU(), nn.SELU(), nn.ReLU6(), nn.RReLU(), nn.Hardswish(), nn.Mish()]
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), *others)
    conversion = mpelu.convert(model, torch.randn(2, 4), keep_function=True)
    assert [row.path for row in conversion.swapped] == ["1"]
    assert all(type(model[index + 2]) is type(other) for index, other in enumerate(others))
    for row, other in zip(conversion.left, others, strict=True):
        assert "no MPELU" in row.note
        assert type(other).__name__ in row.note


class Clipped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0, 20)


class NoisyInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + torch.randn_like(x) if self.training else x)


class OtherInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x) if self.training else F.relu(x)


class OwnHardtanh(nn.Hardtanh):
    pass


class OwnReLU(nn.Module):
    """In single precision, whatever comes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float().clamp(min=0).to(x.dtype)


@pytest.mark.parametrize(
    "module",
    [Clipped(), NoisyInTraining(), OtherInTraining(), OwnHardtanh(0.0, 20.0), nn.ReLU6()],
)
def test_what_is_relu_only_nearby_or_only_in_evaluation_is_left(module: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), module)
    conversion = mpelu.convert(model, torch.randn(2, 4), keep_function=True)
    assert model[2] is module
    assert "no MPELU" in conversion.left[0].note


def test_relu_in_a_class_of_ones_own_is_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 6), OwnReLU())
    conversion = mpelu.convert(model, x := torch.randn(8, 4), keep_function=True)
    assert conversion.rows[0].error == 1e-6
    assert_close(model(1e4 * x), F.relu(model[0](1e4 * x)), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "dtype"), [(nn.CELU(1e8), torch.float32), (nn.ELU(1e5), torch.float16)]
)
def test_parameters_that_do_not_fit_are_left_with_a_note(
    module: nn.Module, dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Linear(4, 6), module, nn.ReLU()).to(dtype)
    conversion = mpelu.convert(model, torch.randn(2, 4, dtype=dtype), keep_function=True)
    assert [row.path for row in conversion.left] == ["1"]
    assert type(module).__name__ in conversion.left[0].note
    assert "would be" in conversion.left[0].note


def test_functions_called_with_more_than_their_input_are_left() -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.last = nn.Linear(4, 6), nn.ReLU()
            self.relu, self.leaky, self.plain = F.relu, F.leaky_relu, F.relu

        def forward(self, x: Tensor) -> Tensor:
            h = self.leaky(self.relu(self.linear(x), inplace=True) - 0.5, 0.3)
            shown: Tensor = self.last(self.plain(h) - 0.5)
            return shown

    model, x = Called(), torch.randn(16, 4)
    expected = model(x)
    conversion = mpelu.convert(model, x, keep_function=True)
    assert list(swapped(conversion)) == ["last", "plain"]
    notes = {row.path: row.note for row in conversion.left}
    assert "more than its input" in notes["relu"]
    assert "more than its input" in notes["leaky"]
    assert model.relu is F.relu
    assert_close(model(x), expected, rtol=0, atol=1e-5)


# Together with the rest


def test_initialization_and_parameter_groups() -> None:
    torch.manual_seed(0)
    mpelu.convert(model := ResNet(), x := torch.randn(8, 3, 8, 8))
    report = mpelu.init.initialize_(model, x, method="exact")
    feeds = {row.layer: row.feed for row in report.rows}
    assert feeds["layer1.0.conv2.weight"] == "layer1.0.relu.widths.8 (MPELU)"
    _weights, shapes = mpelu.param_groups(model, lr=0.1)
    assert len(shapes["params"]) == 8
    optimizer = torch.optim.SGD(mpelu.param_groups(model, lr=0.01), lr=0.01)
    before = [each.detach().clone() for each in shapes["params"]]
    model(x).square().mean().backward()
    optimizer.step()
    assert all(
        not torch.equal(one, other) for one, other in zip(before, shapes["params"], strict=True)
    )


def test_compiled_and_exported() -> None:
    mpelu.convert(model := ResNet().eval(), x := torch.randn(2, 3, 8, 8))
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    program = torch.export.export(model, (x,))
    with torch.no_grad():
        assert_close(compiled(x), model(x))
        assert_close(program.module()(x), model(x))


def test_untraceable_code_is_no_obstacle() -> None:
    conversion = mpelu.convert(Untraceable(), torch.randn(2, 7, 6))
    assert swapped(conversion) == {"act": ((24,), -1)}


def test_report_as_text_and_as_numbers() -> None:
    model = nn.Sequential(Functional(), nn.Linear(4, 4), nn.ReLU(), nn.GELU())
    conversion = mpelu.convert(model, torch.randn(2, 3, 6, 6), keep_function=True)
    lines = str(conversion).splitlines()
    assert lines[0].split() == ["activation", "was", "now", "dim", "channels", "from", "note"]
    assert lines[1].split("  ")[0] == "2"
    assert "MPELU(4)" in lines[1]
    assert "off by at most 1.0e-06" in lines[1]
    assert "no MPELU equals GELU" in lines[2]
    assert "called at" in lines[3]
    assert lines[-2].startswith("outputs differ by at most")
    assert lines[-1] == "converted in place: keep using the model you passed"
    rows = conversion.to_dict()["rows"]
    assert rows[0]["channels"] == (4,)


@pytest.mark.parametrize("page", ["convert.md"])
def test_pages(page: str) -> None:
    path = Path(__file__).parents[3] / "docs" / page
    torch.manual_seed(0)
    result = doctest.testfile(str(path), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0
