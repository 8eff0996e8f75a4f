"""The drawn blocks follow the models."""

from typing import Any

import pytest
from torch import nn

from mpelu import MPELU, models
from mpelu.lab.paper import blocks


@pytest.mark.parametrize("panel", [*blocks.VARIOUS, *blocks.ALTERNATIVES])
def test_drawn_words_are_the_layers_of_a_block(panel: tuple[str, str]) -> None:
    title, family = panel
    description, activation = blocks.describe(family)
    depth = 8 if description.branch.count("conv") == 2 else 11
    network: Any = models.create(f"{family}-{depth}")
    block = network.blocks[0]
    layers = [*block.before, *block.branch, None, *block.after]
    for word, layer in zip(blocks.words(description), layers, strict=True):
        kinds = {
            "+": type(None),
            "bn": nn.BatchNorm2d,
            "act": MPELU if activation == "MPELU" else nn.ReLU,
        }
        assert isinstance(layer, kinds.get(word, nn.Conv2d))
    texts = {text.get_text() for text in blocks.figure([panel]).axes[0].texts}
    assert activation in texts
    assert ("BN" in texts) == ("bn" in blocks.words(description))
    assert title.startswith("(")
