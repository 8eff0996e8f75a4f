"""Parameter counts to the last unit."""

import functools
from typing import Any

import pytest
import torch

from mpelu import models
from mpelu.lab.commands import models as sizes


@functools.cache
def count(name: str, **options: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in models.create(name, **options).parameters())


BASIC = {
    20: (269_722, 271_098, 270_426),
    32: (464_154, 466_426, 465_306),
    44: (658_586, 661_754, 660_186),
    56: (853_018, 857_082, 855_066),
    110: (1_727_962, 1_736_058, 1_732_026),
}


@pytest.mark.parametrize("depth", BASIC)
def test_basic_blocks(depth: int) -> None:
    relu, mpelu, without_activation_after = BASIC[depth]
    assert count(f"resnet-{depth}") == relu
    assert count(f"elu-resnet-{depth}") == relu
    assert count(f"mpelu-resnet-a-{depth}") == mpelu
    assert count(f"mpelu-resnet-b-{depth}") == mpelu
    assert count(f"resnet-{depth}", activation="mpelu") == mpelu
    assert count(f"mpelu-resnet-{depth}") == without_activation_after


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet-1202", 19_421_274),
        ("preresnet-164", 1_703_258),
        ("preresnet-1001", 10_327_706),
        ("mpelu-preresnet-164", 1_727_546),
        ("mpelu-only-preresnet-bn-164", 1_728_026),
        ("mpelu-only-preresnet-164", 1_711_898),
        ("nopre-bn-resnet-164", 1_712_378),
        ("nopre-resnet-164", 1_696_250),
        ("nopre-nobn1-nobnend-resnet-164", 1_695_706),
        ("nopre-nobn1-resnet-164", 1_696_218),
        ("nopre-nobn-resnet-164", 1_688_186),
        ("nopre-resnet-1001", 10_279_034),
        ("stochastic-resnet-110", 1_727_962),
        ("stochastic-resnet-1202", 19_421_274),
        # Our sum over the published layers; no source prints these to the last unit.
        ("all-cnn-c", 1_369_738),
        ("highway-19", 2_256_838),
        ("wide-resnet-16-8", 10_961_370),
        ("wide-resnet-28-10", 36_479_194),
    ],
)
def test_ten_classes(name: str, expected: int) -> None:
    assert count(name) == expected


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("nopre-resnet-164", {"num_classes": 100}, 1_719_380),
        ("nopre-resnet-1001", {"num_classes": 100}, 10_302_164),
        # What the paper's 1.727M and 1.713M may have been: ReLU replaced as it stands, and
        # shortcuts with BN.
        ("preresnet-164", {"activation": "mpelu"}, 1_727_482),
        ("nopre-bn-resnet-164", {"shortcut": "B"}, 1_713_274),
        ("nin", {}, 969_822),
        ("nin", {"activation": "relu"}, 966_986),
        ("nin", {"activation": "elu"}, 966_986),
        ("nin", {"activation": "prelu"}, 968_404),
        ("nin", {"activation": "srelu"}, 966_986 + 4 * 1_418),
        ("plain-15", {}, 111_977_576),
        ("plain-15", {"activation": "relu"}, 111_956_456),
        ("plain-15", {"activation": "leaky_relu"}, 111_956_456),
        ("plain-15", {"activation": "prelu"}, 111_967_016),
        ("plain-30", {}, 115_921_256),
        ("plain-30", {"activation": "elu"}, 115_892_456),
        ("plain-30", {"activation": "prelu"}, 115_906_856),
        ("plain-30", {"batch_norm": True}, 115_921_256),
        ("plain-52", {"activation": "elu"}, 121_665_256),
    ],
)
def test_with_options(name: str, options: dict[str, Any], expected: int) -> None:
    assert count(name, **options) == expected


def test_shortcuts() -> None:
    projections = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    assert count("resnet-20", shortcut="B") == 269_722 + projections
    assert count("resnet-20", shortcut="conv") == 269_722 + 16 * 32 + 32 * 64
    everywhere = 3 * (16 * 16 + 2 * 16) + 2 * (32 * 32 + 2 * 32) + 2 * (64 * 64 + 2 * 64)
    assert count("resnet-20", shortcut="C") == 269_722 + projections + everywhere


def test_where_the_paper_prints_another_count_the_table_says_why() -> None:
    def reads(printed: str, parameters: int) -> bool:
        digits = len(printed.removesuffix("M").partition(".")[2])
        return f"{parameters / 1e6:.{digits}f}M" == printed

    for name, (printed, remark) in sizes.PAPER.items():
        assert name in models.names()
        if printed:
            assert reads(printed, count(name)) == (remark == ""), name
