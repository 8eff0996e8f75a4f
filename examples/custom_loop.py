"""A training loop of your own: parameter groups, autocast, clipping, a schedule, a checkpoint.

python examples/custom_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import mpelu

EPOCHS = 3


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.SiLU(), nn.Conv2d(16, 32, 3), nn.SiLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.SiLU(), nn.Linear(64, 10),
    )  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target)

    model = network()
    mpelu.convert(model, x[:64])
    mpelu.init.initialize_(model, x[:64], method="exact")
    # alpha and beta learn at five times the rate, and the schedule keeps it so.
    adamw = torch.optim.AdamW
    groups = mpelu.param_groups(model, lr=2e-3, weight_decay=1e-2, optimizer=adamw)
    optimizer = adamw(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(1500).split(100):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item() / 15
        schedule.step()
        print(f"epoch {epoch + 1}: loss {total:.3f}, alpha of the first layer "
              f"{model[1].alpha.min():.2f} to {model[1].alpha.max():.2f}")  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.save(model.state_dict(), path)
        restored = network()
        mpelu.convert(restored)  # without inputs: the checkpoint says how many channels there are
        restored.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        right = (restored(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    print(f"restored: {right:.1%} of the test images are right")


if __name__ == "__main__":
    main()
