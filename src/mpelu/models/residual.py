"""Residual networks: each variant is a `ResidualDesign`, and one function builds them all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mpelu.models.parts import (
    ActivationSpec,
    Images,
    activation_spec,
    at_least,
    keep_variance_,
    one_of,
)

SHORTCUTS = ("A", "B", "C", "conv")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualDesign:
    """Describes a residual network in words: "conv3", "conv1" (with kernel size), "bn" and "act".

    It has three stages of n blocks each; the second and third start with stride 2. A block computes
    after(shortcut + branch(before(input))).
    """

    branch: str
    """Residual function. Its first convolution has the stride. Three convolutions make a
    bottleneck: the last is four times as wide as the others."""
    before: str = ""
    """Layers before the branch; if the block changes shape, before the shortcut as well."""
    after: str = ""
    """Layers after the addition."""
    stem: str = "conv3 bn act"
    """Layers before the blocks."""
    tail: str = ""
    """Layers after the blocks, before the average over the map and the linear classifier."""
    shortcut: str = "conv"
    """Shortcut where the shape changes: "A" subsamples and adds zero channels, "B" is a 1x1
    convolution and BN, "conv" the convolution alone. "C" is "B" in every block."""
    after_start: tuple[float, float] | None = None
    """Initial alpha and beta of an MPELU after the addition, if different from the others."""
    last_survival: float = 1.0
    """Stochastic depth: probability that the last block is kept in a training step; it falls
    linearly from 1 before the first block."""
    layers_outside: int = 2
    """Weight layers that the depth counts besides those in branches: stem and classifier."""

    @property
    def convolutions(self) -> int:
        """Number of convolutions in a branch."""
        return self.branch.count("conv")

    @property
    def expansion(self) -> int:
        """Ratio of a block's output channels to the channels inside it: 4 in a bottleneck."""
        return 4 if self.convolutions == 3 else 1


BASIC = "conv3 bn act conv3 bn"
BOTTLENECK = "conv1 bn act conv3 bn act conv1"
BN_ACT = "bn act"

RESNET = ResidualDesign(branch=BASIC, after="act", shortcut="A")
"""The original, Fig. 4(a)."""
RESNET_B = ResidualDesign(branch=BASIC, after="act", shortcut="A", after_start=(98.0, 0.01))
"""MPELU ResNet (B): shortcut and MPELU after the addition start close to the identity."""
NON_BOTTLENECK = ResidualDesign(branch=BASIC, shortcut="A")
"""Fig. 4(b). The paper counts more parameters than its description gives; see docs/models.md."""
PRE = ResidualDesign(before=BN_ACT, branch=BOTTLENECK, stem="conv3", tail=BN_ACT)
"""Full pre-activation as published, Fig. 4(c)."""
MPELU_PRE = ResidualDesign(before=BN_ACT, branch=BOTTLENECK, tail=BN_ACT)
"""Fig. 4(d), with BN_1 and MPELU after the stem as in the paper's other networks."""
MPELU_ONLY_PRE_BN = ResidualDesign(before="act", branch=BOTTLENECK + " bn", tail=BN_ACT)
"""Fig. 5(a)."""
MPELU_ONLY_PRE = ResidualDesign(before="act", branch=BOTTLENECK, tail=BN_ACT)
"""Fig. 5(b)."""
NOPRE_BN = ResidualDesign(branch=BOTTLENECK + " bn", tail=BN_ACT)
"""Fig. 5(c)."""
NOPRE = ResidualDesign(branch=BOTTLENECK, tail=BN_ACT)
"""Fig. 5(d), the proposed network."""
NOPRE_NO_BN = ResidualDesign(branch="conv1 act conv3 act conv1", tail=BN_ACT)
"""Fig. 5(e): no BN in the residual function."""
NOPRE_NO_BN_1 = ResidualDesign(branch=BOTTLENECK, stem="conv3 act", tail=BN_ACT)
"""Fig. 5(d) without BN_1."""
NOPRE_NO_BN_1_END = ResidualDesign(branch=BOTTLENECK, stem="conv3 act", tail="act")
"""Fig. 5(d) without BN_1 and BN_end."""
STOCHASTIC = ResidualDesign(branch=BASIC, after="act", shortcut="A", last_survival=0.5)
"""ResNet with stochastic depth (Huang et al., 1603.09382)."""
WIDE = ResidualDesign(
    before=BN_ACT, branch="conv3 bn act conv3", stem="conv3", tail=BN_ACT, layers_outside=4
)
"""Wide ResNet (Zagoruyko and Komodakis, 1605.07146), without dropout. Its depth counts the stem
and three shortcuts, but not the classifier."""


def _stack(
    order: str, channels: Sequence[int], activation: ActivationSpec, stride: int = 1
) -> nn.Sequential:
    """Builds layers from their order in words.

    Args:
        order: sequence of the words "conv1", "conv3", "bn" and "act".
        channels: channels of the input, then of the output of each convolution.
        activation: activation that "act" stands for.
        stride: stride of the first convolution.
    """
    layers = nn.Sequential()
    width, *rest = channels
    for word in order.split():
        if word == "bn":
            layers.append(nn.BatchNorm2d(width))
        elif word == "act":
            layers.append(activation.make(width))
        else:
            kernel = int(word.removeprefix("conv"))
            layers.append(
                nn.Conv2d(width, rest[0], kernel, stride, padding=kernel // 2, bias=False)
            )
            width, *rest = rest
            stride = 1
    return layers


class Subsample(nn.Module):
    """Shortcut option A: keeps every stride-th pixel and appends zero channels.

    Shape:
        - Input: [batch, channels, height, width].
        - Output: [batch, channels + added, ceil(height / stride), ceil(width / stride)].
    """

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.added = added
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        kept = input[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, 0, self.added))

    def extra_repr(self) -> str:
        return f"added={self.added}, stride={self.stride}"


def _shortcut(kind: str, before: int, after: int, stride: int) -> nn.Module:
    if before == after and stride == 1 and kind != "C":
        return nn.Identity()
    if kind == "A":
        return Subsample(after - before, stride)
    conv = nn.Conv2d(before, after, 1, stride, bias=False)
    return conv if kind == "conv" else nn.Sequential(conv, nn.BatchNorm2d(after))


def _draw() -> float:
    """Draws a uniform number from the CPU's generator, so that no device has to be waited for."""
    return torch.rand((), device="cpu").item()


class Block(nn.Module):
    """Computes after(shortcut + branch(before(input))).

    Args:
        before: layers before the branch.
        branch: residual function.
        shortcut: path around the branch.
        after: layers after the addition.
        shared: whether the shortcut also starts after `before`.
        survival: probability that a training step uses the branch, drawn once for the whole batch.
            Outside training, the branch is multiplied by it.

    Shape:
        - Input: [batch, channels, height, width].
        - Output: shape of the branch's output.
    """

    def __init__(
        self,
        before: nn.Module,
        branch: nn.Module,
        shortcut: nn.Module,
        after: nn.Module,
        *,
        shared: bool,
        survival: float,
    ) -> None:
        super().__init__()
        self.before = before
        self.branch = branch
        self.shortcut = shortcut
        self.after = after
        self.shared = shared
        self.survival = survival

    def forward(self, input: Tensor) -> Tensor:
        if self.survival < 1 and self.training and _draw() >= self.survival:
            output: Tensor = self.after(self.shortcut(self.before(input) if self.shared else input))
            return output
        ready = self.before(input)
        residual = self.branch(ready)
        if self.survival < 1 and not self.training:
            residual = residual * self.survival
        output = self.after(self.shortcut(ready if self.shared else input) + residual)
        return output

    def extra_repr(self) -> str:
        parts = ["shared=True"] if self.shared else []
        return ", ".join(parts + ([f"survival={self.survival:g}"] if self.survival < 1 else []))


class ResidualNetwork(nn.Module):
    """Residual network: stem, blocks, tail and classifier.

    Shape:
        - Input: [batch, in_channels, height, width].
        - Output: [batch, num_classes].
    """

    def __init__(
        self,
        images: Images,
        stem: nn.Module,
        blocks: nn.Sequential,
        tail: nn.Module,
        classifier: nn.Linear,
        *,
        gradient_checkpointing: bool,
    ) -> None:
        super().__init__()
        self.images = images
        self.stem = stem
        self.blocks = blocks
        self.tail = tail
        self.classifier = classifier
        self.gradient_checkpointing = gradient_checkpointing

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(self.images(images))
        if self.gradient_checkpointing and torch.is_grad_enabled():
            features = run_in_segments(self.blocks, features)
        else:
            features = self.blocks(features)
        output: Tensor = self.classifier(self.tail(features).mean((2, 3)))
        return output


def run_in_segments(blocks: nn.Sequential, input: Tensor) -> Tensor:
    """Runs n blocks, keeping only the input of every sqrt(n)-th block for backward.

    Backward reruns each segment, so at most about 2 sqrt(n) blocks are held at a time. The second
    run draws the same random numbers and leaves batch statistics unchanged.

    Args:
        blocks: blocks to run, in order.
        input: input of the first block.

    Returns:
        The output of the last block, bitwise equal to `blocks(input)`.
    """
    size = max(1, round(math.sqrt(len(blocks))))
    for start in range(0, len(blocks), size):
        segment = blocks[start : start + size]
        input = checkpoint(
            segment,
            input,
            use_reentrant=False,
            context_fn=partial(_first_and_second_run, segment),
            # torch would stop once the last tensor is saved. For an RReLU this is before its noise
            # is drawn, which would give wrong gradients.
            early_stop=False,
        )
    return input


def _first_and_second_run(
    segment: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _statistics_left_alone(segment)


@contextmanager
def _statistics_left_alone(segment: nn.Module) -> Iterator[None]:
    """Sends batch statistics to copies, since turning them off would change what backward keeps."""
    norms = [module for module in segment.modules() if isinstance(module, _BatchNorm)]
    kept = [(norm, dict(norm.named_buffers(recurse=False))) for norm in norms]
    for norm, buffers in kept:
        for name, buffer in buffers.items():
            setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, buffers in kept:
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)


def blocks_per_stage(name: str, design: ResidualDesign, depth: int) -> int:
    """Returns n for a depth, or raises a ValueError that names the closest valid depth."""
    step, outside = 3 * design.convolutions, design.layers_outside
    blocks, remainder = divmod(depth - outside, step)
    if remainder or blocks < 1:
        depths = ", ".join(str(step * n + outside) for n in (1, 2, 3))
        closest = max(1, round((depth - outside) / step)) * step + outside
        raise ValueError(
            f"{name}: this CIFAR network has {step}n+{outside} layers ({depths}, ...), "
            f"got {depth} (closest: {closest})"
        )
    return blocks


def build(
    design: ResidualDesign,
    name: str,
    depth: int,
    widening: int = 1,
    *,
    activation: ActivationSpec,
    num_classes: int,
    in_channels: int,
    width: int = 16,
    shortcut: str | None = None,
    gradient_checkpointing: bool = False,
) -> ResidualNetwork:
    """Builds a residual network for small images.

    Args:
        design: variant to build.
        name: name of the network, for errors.
        depth: number of weight layers.
        widening: factor by which the blocks are wider (Wide ResNet).
        activation: activation that "act" stands for.
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        width: channels of the stem and the first stage; the others have twice and four times as
            many.
        shortcut: "A", "B", "C" or "conv" (default: the design's).
        gradient_checkpointing: whether training keeps the activations of about 2 sqrt(n) blocks.
    """
    count = blocks_per_stage(name, design, depth)
    at_least(f"{name}: widening", widening, 1)
    at_least(f"{name}: width", width, 1)
    kind = design.shortcut if shortcut is None else shortcut
    one_of("shortcut", kind, SHORTCUTS, network=name)
    after_activation = (
        activation_spec("mpelu", *design.after_start, activation.coordinates)
        if design.after_start and activation.name == "mpelu"
        else activation
    )

    blocks = nn.Sequential()
    channels = width
    for stage in range(3):
        inner = width * widening * 2**stage
        out = inner * design.expansion
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            survival = 1 - (len(blocks) + 1) / (3 * count) * (1 - design.last_survival)
            branch_channels = [channels, *[inner] * (design.convolutions - 1), out]
            blocks.append(
                Block(
                    _stack(design.before, [channels], activation),
                    _stack(design.branch, branch_channels, activation, stride),
                    _shortcut(kind, channels, out, stride),
                    _stack(design.after, [out], after_activation),
                    shared=bool(design.before) and (channels != out or stride != 1),
                    survival=survival,
                )
            )
            channels = out
    network = ResidualNetwork(
        Images(name, in_channels, 1),
        _stack(design.stem, [in_channels, width], activation),
        blocks,
        _stack(design.tail, [channels], activation),
        nn.Linear(channels, num_classes),
        gradient_checkpointing=gradient_checkpointing,
    )
    keep_variance_(network, activation, "fan_out")
    return network
