"""Models of the tests of convert, with the habits of models in the wild."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """One ReLU for two widths, in place, as torchvision's blocks have it."""

    def __init__(self, channels: int = 16, narrow: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, narrow, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(narrow)
        self.conv3 = nn.Conv2d(narrow, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out)) + x
        shown: Tensor = self.relu(out)
        return shown


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.layer1 = nn.Sequential(Bottleneck(), Bottleneck())
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.stem(x))
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class Functional(nn.Module):
    """Calls functions: by name, as a method, in place, with a flag of the mode beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        x = self.hidden(x.mean((2, 3)))
        x.relu_()
        if scale is not None:
            x = x * scale
        x = F.dropout(x, 0.5, self.training)
        x = self.out(x).relu()
        shown: Tensor = torch.relu(x + 0.5)
        return shown


class Untraceable(nn.Module):
    """Tokens, through code that torch.fx can't follow."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 24)
        self.act = nn.GELU()
        self.down = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e30:
            x = x / 2
        shown: Tensor = self.down(self.act(self.up(x)))
        return shown


class ChannelsLast(nn.Module):
    """ConvNeXt's block: a convolution, then linear layers on the permuted map."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * channels, channels)
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x).permute(0, 2, 3, 1))
        out = self.down(self.act(self.up(out))).permute(0, 3, 1, 2)
        shown: Tensor = self.last(x + out)
        return shown
