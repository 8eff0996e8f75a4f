"""Networks for CIFAR that aren't residual: Network in Network, and others in the last table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mpelu.models.parts import (
    ActivationSpec,
    Images,
    at_least,
    gaussian_,
    keep_variance_,
    one_of_depths,
    taylor_,
)

SMALLEST = 4
WIDTH = 192
"""Channels of the first convolution in the published network."""


def conv_act(
    before: int, after: int, kernel: int, activation: ActivationSpec, stride: int = 1
) -> list[nn.Module]:
    """Returns a convolution that keeps the size, unless it has a stride, and an activation."""
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2)
    return [conv, activation.make(after)]


def nin(
    name: str,
    *,
    activation: ActivationSpec,
    num_classes: int,
    in_channels: int,
    width: int = WIDTH,
    dropout: float = 0.5,
) -> nn.Sequential:
    """Builds the paper's Network in Network: nine convolutions with an activation after each.

    Weights start from a Gaussian with std 0.05, as in the published files; the paper says 0.01.

    Args:
        name: name of the network, for errors.
        activation: activation after every convolution, including the last.
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        width: channels of the first convolution; the other widths scale in proportion.
        dropout: dropout rate after the two pooling layers; 0 for none.
    """
    at_least(f"{name}: width", width, 1)
    wide, middle, narrow = (max(1, round(each * width / WIDTH)) for each in (WIDTH, 160, 96))
    network = nn.Sequential(
        Images(name, in_channels, SMALLEST),
        *conv_act(in_channels, wide, 5, activation),
        *conv_act(wide, middle, 1, activation),
        *conv_act(middle, narrow, 1, activation),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *([nn.Dropout(dropout)] if dropout else []),
        *conv_act(narrow, wide, 5, activation),
        *conv_act(wide, wide, 1, activation),
        *conv_act(wide, wide, 1, activation),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        *([nn.Dropout(dropout)] if dropout else []),
        *conv_act(wide, wide, 3, activation),
        *conv_act(wide, wide, 1, activation),
        *conv_act(wide, num_classes, 1, activation),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    gaussian_(network, 0.05)
    return network


def all_cnn_c(
    name: str, *, activation: ActivationSpec, num_classes: int, in_channels: int
) -> nn.Sequential:
    """Builds All-CNN-C (Springenberg et al., 1412.6806), with convolutions instead of pooling.

    The dropout rate is 0.2 on the image and 0.5 after each convolution with stride 2. The seventh
    convolution has no padding, since the paper averages a 6x6 map. The paper leaves the initial
    weights open; here they follow the MPELU paper's rule, counting inputs.
    """
    widths = (96, 96, 96, 192, 192, 192)
    network = nn.Sequential(Images(name, in_channels, 9), nn.Dropout(0.2))
    channels = in_channels
    for index, width in enumerate(widths, 1):
        strided = index % 3 == 0
        network.extend(conv_act(channels, width, 3, activation, stride=2 if strided else 1))
        if strided:
            network.append(nn.Dropout(0.5))
        channels = width
    network.extend([nn.Conv2d(channels, 192, 3), activation.make(192)])
    network.extend(conv_act(192, 192, 1, activation))
    network.extend(conv_act(192, num_classes, 1, activation))
    network.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    keep_variance_(network, activation, "fan_in")
    return network


class Highway(nn.Module):
    """Computes T(x) act(H(x)) + (1 - T(x)) x with 3x3 convolutions H and T, T with a sigmoid.

    Shape:
        - Input, output: [batch, channels, height, width].
    """

    def __init__(self, channels: int, activation: ActivationSpec) -> None:
        super().__init__()
        self.transform = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = activation.make(channels)
        self.gate = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(input))
        output: Tensor = gate * self.activation(self.transform(input)) + (1 - gate) * input
        return output


_HIGHWAY = {19: ((32, 5), (80, 6), (128, 6)), 32: ((32, 10), (48, 10), (64, 10))}
"""Width and number of 3x3 layers of each stage, by depth."""


def highway(
    name: str, depth: int, *, activation: ActivationSpec, num_classes: int, in_channels: int
) -> nn.Sequential:
    """Builds a convolutional highway network (Srivastava et al., 1507.06228).

    It has three stages, each a convolution and then highway layers, with max pooling and dropout of
    0.2 in between, then a 1x1 convolution to 100 channels, an average over the map and a linear
    classifier. Gate biases start at -2.

    The network of 19 layers is the one the authors published. The layers of the deeper one aren't
    published: its widths of 32, 48 and 64, with ten layers each, were chosen for this package to
    come near the 1.25M parameters reported for it.
    """
    one_of_depths(name, depth, tuple(_HIGHWAY))
    network = nn.Sequential(Images(name, in_channels, 4), nn.Dropout(0.2))
    channels = in_channels
    for stage, (width, count) in enumerate(_HIGHWAY[depth]):
        if stage:
            network.extend([nn.MaxPool2d(2), nn.Dropout(0.2)])
        network.extend(conv_act(channels, width, 3, activation))
        network.extend([Highway(width, activation) for _ in range(count - 1)])
        channels = width
    network.extend(conv_act(channels, 100, 1, activation))
    network.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)])
    network.append(nn.Linear(100, num_classes))
    keep_variance_(network, activation, "fan_in")
    for module in network:
        if isinstance(module, Highway) and module.gate.bias is not None:
            nn.init.constant_(module.gate.bias, -2.0)
    return network


class DeeplySupervised(nn.Module):
    """Runs stages that start with a convolution, whose output also goes to a companion classifier.

    Shape:
        - Input: [batch, in_channels, height, width].
        - Output: [batch, num_classes]; in training, a tuple of this and one such tensor for each
          companion, over which the loss is to sum.
    """

    def __init__(
        self,
        images: Images,
        convolutions: list[nn.Module],
        stages: list[nn.Module],
        companions: list[nn.Module],
    ) -> None:
        super().__init__()
        self.images = images
        self.convolutions = nn.ModuleList(convolutions)
        self.stages = nn.ModuleList(stages)
        self.companions = nn.ModuleList(companions)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        features = self.images(images)
        seen = []
        for convolution, stage, companion in zip(
            self.convolutions, self.stages, self.companions, strict=True
        ):
            features = convolution(features)
            if self.training:
                seen.append(companion(features))
            features = stage(features)
        return (features, *seen) if self.training else features


def dsn(
    name: str,
    *,
    activation: ActivationSpec,
    num_classes: int,
    in_channels: int,
    input_size: int = 32,
) -> DeeplySupervised:
    """Builds the deeply-supervised net (Lee et al., 1409.5185) as published for CIFAR-10.

    It is Network in Network with max pooling throughout and no activation after the last
    convolution. In training, linear companion classifiers see the outputs of the three spatial
    convolutions before their activation. Weighting the companion losses and dropping them over
    time, as the paper describes, is left to the training.

    Args:
        name: name of the network, for errors.
        activation: activation after every convolution but the last.
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        input_size: height and width of the images, on which the companions depend.
    """
    at_least(f"{name}: input_size", input_size, SMALLEST)
    stages = [
        nn.Sequential(
            activation.make(192),
            *conv_act(192, 160, 1, activation),
            *conv_act(160, 96, 1, activation),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Dropout(0.5),
        ),
        nn.Sequential(
            activation.make(192),
            *conv_act(192, 192, 1, activation),
            *conv_act(192, 192, 1, activation),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Dropout(0.5),
        ),
        nn.Sequential(
            activation.make(192),
            *conv_act(192, 192, 1, activation),
            nn.Conv2d(192, num_classes, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
    ]
    convolutions: list[nn.Module] = [
        nn.Conv2d(in_channels, 192, 5, padding=2),
        nn.Conv2d(96, 192, 5, padding=2),
        nn.Conv2d(192, 192, 3, padding=1),
    ]
    companions = [
        nn.Sequential(nn.Flatten(), nn.Linear(192 * side**2, num_classes))
        for side in (input_size, input_size // 2, input_size // 2 // 2)
    ]
    network = DeeplySupervised(
        Images(name, in_channels, input_size, exact=True), convolutions, [*stages], [*companions]
    )
    gaussian_(network, 0.05)
    return network


class Maxout(nn.Module):
    """Takes the largest of every `pieces` channels in a row.

    Shape:
        - Input: [batch, channels * pieces, ...].
        - Output: [batch, channels, ...].
    """

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces

    def forward(self, input: Tensor) -> Tensor:
        largest: Tensor = input.unflatten(1, (-1, self.pieces)).max(2).values
        return largest

    def extra_repr(self) -> str:
        return f"pieces={self.pieces}"


def fitnet(
    name: str, depth: int, *, activation: ActivationSpec | None, num_classes: int, in_channels: int
) -> nn.Sequential:
    """Builds the thin FitNet of 19 layers (Romero et al., 1412.6550, with the published file).

    It has 17 3x3 convolutions with two-piece maxout, the maximum over the last map, a five-piece
    maxout layer of width 500 and a linear classifier. With another activation, the maxout layers
    become ordinary ones of the same width. The paper's hints from a teacher and its bounds on
    weight norms are left to the training, and its uniform initial weights of 0.005, which need the
    hints, are replaced by ones that preserve variance. The paper counts "about 2.5M" parameters.
    """
    one_of_depths(name, depth, (19,))
    stages = ((32, 32, 32, 48, 48), (80,) * 6, (128,) * 6)

    def act(width: int, pieces: int) -> nn.Module:
        return Maxout(pieces) if activation is None else activation.make(width)

    conv_pieces, linear_pieces = (2, 5) if activation is None else (1, 1)
    network = nn.Sequential(Images(name, in_channels, 4))
    channels = in_channels
    for index, widths in enumerate(stages):
        if index:
            network.append(nn.MaxPool2d(2))
        for width in widths:
            network.append(nn.Conv2d(channels, width * conv_pieces, 3, padding=1))
            network.append(act(width, conv_pieces))
            channels = width
    network.extend([nn.AdaptiveMaxPool2d(1), nn.Flatten()])
    network.extend([nn.Linear(channels, 500 * linear_pieces), act(500, linear_pieces)])
    network.append(nn.Linear(500, num_classes))
    # The larger of two standard Gaussians has mean square 1, like the identity, so slope is 1.
    if activation is None:
        taylor_(network, 1.0, "fan_in")
    else:
        keep_variance_(network, activation, "fan_in")
    return network


_ELU_STACKS = (
    ((1, 384, 3),),
    ((1, 384, 1), (1, 384, 2), (2, 640, 2)),
    ((1, 640, 1), (3, 768, 2)),
    ((1, 768, 1), (2, 896, 2)),
    ((1, 896, 3), (2, 1024, 2)),
    ((1, 1024, 1), (1, 1152, 2)),
    ((1, 1152, 1),),
)
"""Stacks of layers, each a list of (number of layers, channels, kernel size)."""
_ELU_DROPOUT = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.0)


def elu(
    name: str, depth: int, *, activation: ActivationSpec, num_classes: int, in_channels: int
) -> nn.Sequential:
    """Builds the 18-convolution ELU network for CIFAR-100 (Clevert et al., 1511.07289).

    Stacks of convolutions, each followed by 2x2 max pooling and dropout, precede a 1x1 convolution
    to the classes, which the paper doesn't count among the 18. It leaves open the padding, here 1
    for 2x2 kernels (without any, the map would vanish); pooling of odd maps, here rounded up; how
    the last map becomes one value per class, here by averaging; which of the eight stacks have the
    seven dropout rates, here all but the output; and the initial weights, here counting inputs.
    """
    one_of_depths(name, depth, (18,))
    network = nn.Sequential(Images(name, in_channels, 1))
    channels = in_channels
    for stack, rate in zip(_ELU_STACKS, _ELU_DROPOUT, strict=True):
        for count, width, kernel in stack:
            for _ in range(count):
                network.extend(conv_act(channels, width, kernel, activation))
                channels = width
        network.append(nn.MaxPool2d(2, ceil_mode=True))
        if rate:
            network.append(nn.Dropout(rate))
    network.extend([nn.Conv2d(channels, num_classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    keep_variance_(network, activation, "fan_in")
    return network
