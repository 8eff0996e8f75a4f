"""MPELU in a ResNet of timm: convert, initialize, train a few steps.

python examples/timm_resnet.py
"""

from __future__ import annotations

import timm
import torch
from torch.nn import functional as F

import mpelu


def main() -> None:
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10)
    images, labels = torch.randn(16, 3, 64, 64), torch.arange(16) % 10

    conversion = mpelu.convert(model, images)
    print(conversion)
    mpelu.init.initialize_(model, images, method="exact")

    optimizer = torch.optim.SGD(mpelu.param_groups(model, lr=0.02), momentum=0.9)
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{len(conversion.swapped)} activations, loss {losses[0]:.2f} -> {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
