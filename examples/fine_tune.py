"""Fine-tuning from where a trained ReLU network was: convert with keep_function.

python examples/fine_tune.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import mpelu


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def train(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for rows in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return (model.eval()(x).argmax(1) == y).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    x_train, y_train, x_test, y_test = x[:1200], y[:1200], x[1200:], y[1200:]

    trained = network()
    train(trained, x_train, y_train, torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9))
    checkpoint = trained.state_dict()
    print(f"with ReLU: {accuracy(trained, x_test, y_test):.1%}")

    model = network()
    conversion = mpelu.convert(model, x_train[:64], keep_function=True)
    loaded = conversion.load_state_dict(checkpoint)  # only alpha and beta are new
    print(f"{len(conversion.swapped)} activations, {len(loaded.new)} new parameters")
    print(f"converted: {accuracy(model, x_test, y_test):.1%}")

    optimizer = torch.optim.SGD(mpelu.param_groups(model, lr=0.02), momentum=0.9)
    train(model, x_train, y_train, optimizer)
    print(f"fine-tuned: {accuracy(model, x_test, y_test):.1%}")


if __name__ == "__main__":
    main()
