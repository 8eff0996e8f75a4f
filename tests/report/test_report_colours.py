"""Colours of the page: apart for colour-blind readers, and clear of the background."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from mpelu.activations import TABLE
from mpelu.lab.plots import COLORS, Series, activation_styles, looks

# Linear RGB as seen without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def themes() -> list[dict[str, str]]:
    """The custom properties of every block of the style sheet that sets the colours."""
    style = (files("mpelu.lab.reporting") / "assets" / "page.css").read_text()
    blocks = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in style.split("}")]
    return [block for block in blocks if "paper" in block]


def linear(colour: str) -> np.ndarray:
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = XYZ @ np.clip(rgb, 0, 1) / (XYZ @ np.ones(3))
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(colour)) + 0.05 for colour in (one, other))
    return high / low


def test_light_dark_and_dark_by_preference() -> None:
    light, dark, preferred = themes()
    assert dark == preferred
    assert light.keys() == dark.keys()


@pytest.mark.parametrize("sight", SIGHTS)
def test_series_are_apart(sight: str) -> None:
    for theme in themes():
        seen = [lab(SIGHTS[sight] @ linear(theme[f"c{index}"])) for index in range(7)]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 25


def test_lines_and_text_are_clear_of_the_background() -> None:
    for theme in themes():
        for index in range(7):
            assert contrast(theme[f"c{index}"], theme["paper"]) > 3
        for ink, ground in (
            ("ink", "paper"),
            ("ink", "field"),
            ("soft", "paper"),
            ("link", "paper"),
            ("good-ink", "paper"),
            ("low-ink", "paper"),
            ("high-ink", "paper"),
            ("low-ink", "low"),
            ("high-ink", "high"),
        ):
            assert contrast(theme[ink], theme[ground]) > 4.5


def test_activations_have_the_color_of_the_table_and_are_seen_in_the_dark() -> None:
    style = activation_styles()
    light, dark, preferred = (
        dict(re.findall(r"--c-(\w+): (#\w{6})", block)) for block in style.split("\n")[:3]
    )
    assert light == COLORS
    assert dark == preferred
    assert dark.keys() == light.keys()
    for color in dark.values():
        assert contrast(color, themes()[1]["paper"]) > 3.9
    for name in TABLE:
        assert f".c-{name} {{" in style


def test_a_figure_draws_activations_in_the_color_of_the_table() -> None:
    def colors(*names: str) -> list[str]:
        return [color for color, _ in looks([Series(name, [1], [1], name) for name in names])]

    assert colors("relu", "mpelu") == [COLORS["relu"], COLORS["mpelu"]]
    assert colors("mpelu", "relu") == [COLORS["mpelu"], COLORS["relu"]]
    own, other = colors("", "prelu")
    assert own != other == COLORS["prelu"]
    # The same activation again has another style; too often, and all lines take turns.
    again = looks([Series(f"{i}", [1], [1], "elu") for i in range(4)])
    assert len(set(again)) == 4
    assert {color for color, _ in again} == {COLORS["elu"]}
    assert len({color for color, _ in looks(5 * [Series("", [1], [1], "elu")])}) == 5
